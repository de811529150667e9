"""Groups in real runs: what is made, kept and planned."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.analyses.fairness.fairness_record import FairnessRecord

from .conftest import Workspace

METHODS = {
    "sgd": {"head": "sgd", "batch_size": 64, "epochs": 2},
    "nonprivate": {"head": "nonprivate"},
}
RECORD = "results/fairness/digits/pixels.json"


@pytest.fixture
def study(small: dict[str, Any]) -> dict[str, Any]:
    return small | {"methods": METHODS, "fairness": {"resamples": 200}}


def test_groups_are_compared_once_and_again_when_an_option_changes(
    workspace: Workspace, study: dict[str, Any]
) -> None:
    workspace.run(study, "fairness_digits")
    record = FairnessRecord.read(workspace.directory / RECORD)
    assert [(cell.method, cell.epsilon) for cell in record.cells] == [
        ("sgd", "2"),
        ("nonprivate", "inf"),
    ]
    assert record.find_attribute("class").groups[0].rows > 30
    private = record.cells[0].find_gap("class", "accuracy")
    assert private is not None
    assert private.groups == 10
    assert private.difference is not None
    assert "Nothing to be done" in workspace.run(study, "fairness").stdout

    # Cells of a job that failed are not compared before it has been done again.
    mark = workspace.directory / "results/cells/digits/pixels/.eps-2.done"
    mark.unlink()
    (workspace.directory / RECORD).unlink()
    planned = workspace.planned(study, "fairness")
    assert (planned["train_heads"], planned["compare_groups"]) == (1, 1)
    workspace.run(study, "fairness")

    study["fairness"]["confidence"] = 0.9
    planned = workspace.planned(study, "fairness")
    assert planned["compare_groups"] == 1
    assert planned["train_heads"] == planned["extract_features"] == 0


def test_a_study_without_the_block_compares_no_groups(
    workspace: Workspace, study: dict[str, Any]
) -> None:
    assert workspace.planned(study)["compare_groups"] == 1
    del study["fairness"]
    planned = workspace.planned(study)
    assert planned["compare_groups"] == 0
    assert planned["write_report"] == 1


def test_groups_that_no_dataset_has_stop_a_study_before_any_job(
    workspace: Workspace, study: dict[str, Any]
) -> None:
    study["fairness"] = {"groups": ["sex"]}
    result = workspace.run(study, "fairness", check=False)
    assert result.returncode != 0
    assert "fairness: groups: sex is a group of no dataset" in result.stdout
    assert not (workspace.directory / "results").exists()
