"""Groups in real runs: what is made, kept and planned."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.analyses.fairness.fairness_record import FairnessRecord
from tests.support.stored_records import check_stored

from .conftest import Workspace
from .test_multi_label import STUDY, write_digits

METHODS = {
    "sgd": {"head": "sgd", "loss": "sigmoid", "batch_size": 64, "epochs": 2},
    "nonprivate": {"head": "nonprivate"},
}
DATASET = STUDY["datasets"]["attributes"] | {"group_columns": ["ink", "side"]}
RECORD = "results/fairness/digits/pixels.json"


@pytest.fixture
def study(workspace: Workspace, small: dict[str, Any]) -> dict[str, Any]:
    write_digits(workspace.directory / "raw")
    return small | {
        "datasets": {"digits": DATASET},
        "methods": METHODS,
        "epsilons": [0.5, 2],
        "fairness": {"resamples": 200},
    }


def test_groups_are_compared_once_and_again_when_an_option_changes(
    workspace: Workspace, study: dict[str, Any]
) -> None:
    workspace.run(study, "fairness_digits")
    path = workspace.directory / RECORD
    for suffix in (".json", ".parquet"):
        check_stored(path.with_suffix(suffix), f"fairness{suffix}")
    for method, epsilon in (("sgd", "2"), ("nonprivate", "inf")):
        check_stored(workspace.cell(method, epsilon) / "privacy.json", f"statement_{method}.json")
    record = FairnessRecord.read(path)
    assert [(cell.method, cell.epsilon) for cell in record.cells] == [
        ("sgd", "0.5"),
        ("sgd", "2"),
        ("nonprivate", "inf"),
    ]
    private = record.cells[0].find_gap("side", "auc")
    assert private is not None
    assert private.groups == 3
    assert private.difference is not None
    assert "Nothing to be done" in workspace.run(study, "fairness").stdout

    # Cells of a job that failed are not compared before it has been done again.
    mark = workspace.directory / "results/cells/digits/pixels/.eps-2.done"
    mark.unlink()
    path.unlink()
    planned = workspace.planned(study, "fairness")
    assert (planned["train_heads"], planned["compare_groups"]) == (1, 1)
    workspace.run(study, "fairness")

    study["fairness"]["confidence"] = 0.9
    planned = workspace.planned(study, "fairness")
    assert planned["compare_groups"] == 1
    assert planned["train_heads"] == planned["extract_features"] == 0
