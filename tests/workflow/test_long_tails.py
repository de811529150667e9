"""Long tails in real runs: what is made, kept and shown."""

from __future__ import annotations

from typing import Any

from dpprobe.artifacts import read_json

from .conftest import Workspace


def test_long_tails_are_made_kept_and_shown(workspace: Workspace, analysed: dict[str, Any]) -> None:
    results = workspace.directory / "results"
    record = read_json(results / "long_tail/digits/pixels.json")
    assert (record["dimension"], record["private"]) == (64, False)
    assert record["memorisation"]["rows"] == 300 < record["rows"]
    assert (results / "long_tail/digits/pixels.parquet").is_file()
    for name in ("long_tail", "long_tail_gap"):
        assert "ot private" in (results / f"tables/{name}.md").read_text()
    assert (results / "figures/digits/long_tail.png").is_file()
    assert '<section id="long-tail"' in (results / "report.html").read_text(encoding="utf-8")
    assert "Nothing to be done" in workspace.run(analysed, "long_tail").stdout

    analysed["long_tail"]["memorisation"]["heads"] = 60
    planned = workspace.planned(analysed, "long_tail")
    assert planned["measure_long_tail"] == 1
    assert planned["train_heads"] == planned["extract_features"] == 0
