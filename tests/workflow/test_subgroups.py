"""Subgroups in real runs: what is made and shown."""

from __future__ import annotations

import pytest

from .conftest import Workspace


@pytest.mark.usefixtures("analysed")
def test_gaps_are_made_and_shown(workspace: Workspace) -> None:
    results = workspace.directory / "results"
    for name in ("fairness_gap", "fairness_auc"):
        for kind in ("svg", "png"):
            assert (results / f"figures/digits/{name}.{kind}").is_file()
    table = (results / "tables/digits_fairness.md").read_text(encoding="utf-8")
    assert "**gap, best to worst**" in table
    assert "gap minus the gap of nonprivate at ∞" in table
    page = (results / "report.html").read_text(encoding="utf-8")
    for part in ("subgroups", "gaps-digits"):
        assert f'id="{part}"' in page
