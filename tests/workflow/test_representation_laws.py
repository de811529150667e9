"""Representation laws in real runs: what is planned, made, kept and shown."""

from __future__ import annotations

from typing import Any

from dpprobe.artifacts import read_json

from .conftest import ANALYSED, Workspace


def test_laws_are_made_kept_and_shown(workspace: Workspace, analysed: dict[str, Any]) -> None:
    results = workspace.directory / "results"
    record = read_json(results / "layers/digits/tiny/law.json")
    assert (record["layers"], record["token"], record["private"]) == (4, "class", False)
    assert [network["setting"] for network in record["networks"]] == ["frozen", "constant"]
    for name in ("representation_law", "accuracy_by_blocks"):
        assert "ot private" in (results / f"tables/digits_{name}.md").read_text()
    for name in ("law_fuzziness", "law_residual_one_hot"):
        assert (results / f"figures/digits/{name}_tiny.png").is_file()
    assert '<section id="laws"' in (results / "report.html").read_text(encoding="utf-8")
    assert "Nothing to be done" in workspace.run(analysed, "representation_law").stdout

    analysed["representation_law"]["rows"] = 120
    planned = workspace.planned(analysed, "representation_law_digits")
    assert planned["measure_law"] == 1
    assert planned["tune_network"] == planned["extract_features"] == 0


def test_the_frozen_network_alone_needs_no_networks(workspace: Workspace) -> None:
    law = ANALYSED["representation_law"] | {"methods": []}
    study = ANALYSED | {"representation_law": law}
    planned = workspace.planned(study, "results/layers/digits/tiny/law.json")
    assert planned["measure_law"] == 1
    assert planned["tune_network"] == planned["extract_features"] == 0
    assert workspace.planned(study, "representation_law_digits")["plot_law"] == 1
