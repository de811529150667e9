"""Subgroups in real runs: what is made and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.medical_tables import FINDINGS, write_chexpert, write_mimic

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


def test_the_medical_study_is_planned_whole(workspace: Workspace, repository: Path) -> None:
    study: dict[str, Any] = yaml.safe_load(
        (repository / "config/medical_fairness.yaml").read_text()
    )
    study |= {"data_dir": "data", "results_dir": "results"}
    write_chexpert(workspace.directory / "data/raw/chexpert")
    write_mimic(workspace.directory / "data/raw/mimic_cxr")
    # These files have few rows.
    study["datasets"]["mimic_cxr"]["expect"] = {"classes": len(FINDINGS)}
    study["methods"]["sgd"]["batch_size"] = 16
    planned = workspace.planned(study)
    assert planned["train_heads"] == 2 * 2 * len(study["epsilons"])
    assert planned["compare_groups"] == 4
    assert planned["plot_fairness"] == planned["write_fairness_table"] == 2
