"""Rare classes in real runs: what is made, from what, and shown."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from dpprobe.artifacts import read_json

from .conftest import Workspace


def test_rare_classes_are_compared_and_shown(
    workspace: Workspace, analysed: dict[str, Any]
) -> None:
    results = workspace.directory / "results"
    record = read_json(results / "imbalance/digits/pixels.json")
    sets = {each["name"]: each["per_class"][3] for each in record["training_sets"]}
    assert sets["digits"] > sets["digits_3_0p1"] > 0
    cells = {(c["training_set"], c["method"], c["epsilon"]): c for c in record["cells"]}
    assert len(cells) == 2 * 4
    rare = cells["digits_3_0p1", "prototypes", "2"]
    assert rare["private"]
    assert rare["reference"] == ["nonprivate", "inf"]
    metrics = results / "cells/digits_3_0p1/pixels/prototypes/eps-2/metrics.json"
    recalls = [seed["per_class_recall"][3] for seed in read_json(metrics)["seeds"]]
    assert rare["recall"]["mean"] == pytest.approx(sum(recalls) / len(recalls))
    labels, seeds = _predictions(metrics.with_name("predictions.parquet"))
    # scores of class means are no logits: rows are ranked by the lead over the next class
    leads = [each[:, 3] - np.delete(each, 3, axis=1).max(axis=1) for each in seeds]
    areas = [roc_auc_score(labels == 3, lead) for lead in leads]
    assert rare["auc"]["mean"] == pytest.approx(np.mean(areas), abs=1e-6)
    never = sum(not (each.argmax(axis=1) == 3).any() for each in seeds)
    assert rare["never_predicted"] == never
    assert (results / "figures/digits/imbalance_pixels.png").is_file()
    with (results / "tables/digits_imbalance.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["class"] for row in rows} == {"3"}
    assert len(rows) == 8
    page = (results / "report.html").read_text(encoding="utf-8")
    assert '<section id="imbalance"' in page
    assert "Recall of rare classes" in page
    assert "Nothing to be done" in workspace.run(analysed, "imbalance").stdout

    # One more fraction trains its cells alone.
    analysed["imbalance"]["fractions"].append(0.2)
    planned = workspace.planned(analysed, "imbalance")
    assert planned["extract_features"] == 0
    assert planned["select_features"] == 2
    assert planned["train_heads"] == planned["train_heads_without_privacy"] == 1
    assert planned["compare_rare_classes"] == 1


def _predictions(path: Path) -> tuple[np.ndarray, list[np.ndarray]]:
    """The labels of the test rows, and each seed's scores."""
    table = pq.read_table(path).to_pandas()
    groups = [part for _, part in table.groupby("seed_index")]
    return groups[0]["label"].to_numpy(), [
        np.stack(part["scores"]).astype(np.float64) for part in groups
    ]


def test_a_part_whose_whole_is_not_in_the_study_is_extracted(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    small["datasets"] = {
        "few": {"source": "sklearn", "name": "digits", "subsample": {"per_class": 20}}
    }
    planned = workspace.planned(small, "features")
    assert planned["prepare_data"] == 1
    assert planned["extract_features"] == 2
    assert planned["select_features"] == 0
    workspace.run(small, "data")
    info = read_json(workspace.directory / "data/few/dataset.json")
    assert info["splits"]["train"]["per_class"] == [20] * 10
