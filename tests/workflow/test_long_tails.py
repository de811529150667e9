"""Long tails in real runs: what is made, kept and shown."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.artifacts import read_json

from .conftest import Workspace

METHODS = {"least_squares": {"head": "least_squares"}, "nonprivate": {"head": "nonprivate"}}


@pytest.fixture
def study(small: dict[str, Any]) -> dict[str, Any]:
    options = {"clusters": [4], "memorisation": {"heads": 50, "rows": 300}}
    return small | {"methods": METHODS, "long_tail": options}


def test_long_tails_are_made_kept_and_shown(workspace: Workspace, study: dict[str, Any]) -> None:
    study["backbones"] = {"pixels": {"family": "pixels"}, "small": {"family": "pixels", "size": 4}}
    workspace.run(study, "long_tail", "results/report.html")
    results = workspace.directory / "results"
    for backbone, dimension in (("pixels", 64), ("small", 16)):
        record = read_json(results / f"long_tail/digits/{backbone}.json")
        assert (record["dimension"], record["private"]) == (dimension, False)
        assert record["memorisation"]["rows"] == 300 < record["rows"]
        assert (results / f"long_tail/digits/{backbone}.parquet").is_file()
    for name in ("long_tail", "long_tail_gap"):
        assert "ot private" in (results / f"tables/{name}.md").read_text()
    assert (results / "figures/digits/long_tail.png").is_file()
    assert '<section id="long-tail"' in (results / "report.html").read_text(encoding="utf-8")
    assert "Nothing to be done" in workspace.run(study, "long_tail").stdout

    study["long_tail"]["memorisation"]["heads"] = 60
    planned = workspace.planned(study, "long_tail")
    assert planned["measure_long_tail"] == 2
    assert planned["train_heads"] == planned["extract_features"] == 0


def test_one_dataset_needs_no_heads(workspace: Workspace, study: dict[str, Any]) -> None:
    planned = workspace.planned(study, "long_tail_digits")
    assert planned["measure_long_tail"] == planned["plot_long_tail"] == 1
    assert planned["train_heads"] == planned["calibrate"] == 0
