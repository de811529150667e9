"""Group comparisons in real runs are planned, made and reused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from dpprobe.analyses.fairness.fairness_record import FairnessRecord
from dpprobe.files.json_files import read_json
from dpprobe.privacy.accountants import compute_epsilon, price_together
from dpprobe.privacy.stated_facts import mechanisms_of

from .conftest import Workspace
from .test_multi_label import STUDY, write_digits

pytestmark = pytest.mark.slow

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
    record = FairnessRecord.read(path)
    _require_the_metrics_of_groups(workspace, record)
    _require_statements(workspace)
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

    # Cells that Snakemake deleted are compared only after their job has linked them again.
    (workspace.directory / "results/cells/digits/pixels/sgd/eps-2/metrics.json").unlink()
    path.unlink()
    planned = workspace.planned(study, "fairness")
    assert (planned["train_heads"], planned["compare_groups"]) == (1, 1)
    workspace.run(study, "fairness")

    study["fairness"]["confidence"] = 0.9
    planned = workspace.planned(study, "fairness")
    assert planned["compare_groups"] == 1
    assert planned["train_heads"] == planned["extract_features"] == 0


def _require_the_metrics_of_groups(workspace: Workspace, record: FairnessRecord) -> None:
    """Checks groups against the source's columns, and AUCs against the cells' predictions."""
    source = pd.read_parquet(workspace.directory / "raw/labels_test.parquet")
    assert record.rows == len(source)
    for attribute in record.attributes:
        counts = source[attribute.attribute].value_counts().to_dict()
        assert {each.group: each.rows for each in attribute.groups} == counts
        left_out = [each.group for each in attribute.groups if each.left_out]
        assert left_out == (["unknown"] if attribute.attribute == "side" else [])
    table = pq.read_table(workspace.directory / RECORD.replace(".json", ".parquet")).to_pandas()
    table = table[(table["metric"] == "auc") & (table["label"] == "") & table["left_out"].isna()]
    for cell in record.cells:
        seen = pd.read_parquet(workspace.cell(cell.method, cell.epsilon) / "predictions.parquet")
        for name in ("ink", "side"):
            lines = table[(table["method"] == cell.method) & (table["epsilon"] == cell.epsilon)]
            lines = lines[lines["attribute"] == name].set_index("group")
            for group, value in lines["value"].items():
                areas = [
                    roc_auc_score(np.stack(of_head["label"]), np.stack(of_head["scores"]))
                    for _, of_head in seen[seen[f"group_{name}"] == group].groupby("seed_index")
                ]
                assert value == pytest.approx(np.mean(areas)), (cell.method, cell.epsilon, group)


def _require_statements(workspace: Workspace) -> None:
    """Checks that a statement suffices to redo the accounting; the ceiling has no guarantee."""
    private, ceiling = (
        read_json(workspace.cell(method, epsilon) / "privacy.json")
        for method, epsilon in (("sgd", "2"), ("nonprivate", "inf"))
    )
    mechanisms = mechanisms_of(private)
    assert [(item.name, item.count) for item in mechanisms] == [("gradients", 2 * 22)]
    assert mechanisms[0].sample_rate == pytest.approx(64 / 1400)
    price = compute_epsilon(mechanisms, 1e-5, "pld")
    assert price == pytest.approx(private["epsilon_realised"], rel=1e-3)
    assert 1.99 < private["epsilon_realised"] <= private["epsilon_target"] == 2.0
    together = price_together(mechanisms, 1e-5, 2)
    assert private["epsilon_all_heads"] == pytest.approx(together, rel=1e-4)
    assert (private["n"], private["copies"]["rows"]) == (1400, 0)
    assert len(set(private["seeds"])) == 2
    assert (private["private"], private["delta"]) == (True, 1e-5)
    assert (ceiling["private"], ceiling["unpriced"]) == (False, "nonprivate_head")
    assert (ceiling["epsilon_realised"], ceiling["mechanisms"]) == ("inf", [])
