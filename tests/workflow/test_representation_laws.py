"""Representation laws in real runs are planned, made, reused and shown."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.files.json_files import read_json

from .conftest import Workspace

pytestmark = pytest.mark.slow

TINY = {
    "family": "timm",
    "model": "vit_tiny_patch16_224",
    "pretrained": False,
    "model_args": {"img_size": 32, "depth": 4, "embed_dim": 48, "num_heads": 3},
    "preprocessing": {"size": 32},
}
TUNED = {"head": "fine_tune", "batch_size": "full", "steps": 2, "tune": {"blocks": 2}}


@pytest.fixture
def study(small: dict[str, Any]) -> dict[str, Any]:
    small["datasets"]["digits"]["subsample"] = {"per_class": 30}
    return small | {
        "backbones": {"tiny": TINY},
        "methods": {"two_blocks": TUNED, "least_squares": {"head": "least_squares"}},
        "epsilons": [1],
        "features": {"shards": 1, "batch_size": 4},
        "representation_law": {"rows": 100, "shuffles": 1},
        "seeds": 1,
    }


def test_laws_are_computed_once_and_shown(workspace: Workspace, study: dict[str, Any]) -> None:
    workspace.run(study, "representation_law", "html_report")
    results = workspace.directory / "results"
    record = read_json(results / "layers/digits/tiny/law.json")
    assert (record["layers"], record["token"], record["private"]) == (4, "class", False)
    assert [network["setting"] for network in record["networks"]] == ["frozen", "constant"]
    for name in ("representation_law", "accuracy_by_blocks"):
        assert "ot private" in (results / f"tables/digits_{name}.md").read_text()
    for name in ("law_fuzziness", "law_residual_one_hot"):
        assert (results / f"figures/digits/{name}_tiny.png").is_file()
    assert '<section id="laws"' in (results / "report.html").read_text(encoding="utf-8")
    assert "Nothing to be done" in workspace.run(study, "representation_law").stdout

    study["representation_law"]["rows"] = 120
    planned = workspace.planned(study, "representation_law")
    assert planned["measure_law"] == 1
    assert planned["tune_network"] == planned["extract_features"] == 0

    # For only the frozen network, no network is trained.
    study["representation_law"] |= {"rows": 130, "methods": []}
    law = results / "layers/digits/tiny/law.json"
    planned = workspace.planned(study, str(law.relative_to(workspace.directory)))
    assert (planned["measure_law"], planned["tune_network"]) == (1, 0)
    assert workspace.planned(study, "representation_law_digits")["plot_law"] == 1
