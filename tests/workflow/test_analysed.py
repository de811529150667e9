"""All analyses of a real run are made, reused and shown; another option costs only its own jobs."""

from __future__ import annotations

import copy
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from dpprobe.files.json_files import read_json

from .conftest import SMALL, Workspace

# All analyses except of networks, with one report.
ANALYSED: dict[str, Any] = SMALL | {
    "study": "analysed",
    "methods": {
        "prototypes": {"head": "prototypes"},
        "least_squares": {"head": "least_squares"},
        "sgd": {"head": "sgd", "batch_size": "full", "steps": 3},
        "nonprivate": {"head": "nonprivate"},
    },
    "audit": {
        "methods": ["least_squares", "sgd", "nonprivate"],
        "runs": 40,
        "membership": {"shadows": 8, "rows": 60},
    },
    "imbalance": {"datasets": ["digits"], "classes": [3], "fractions": [0.1]},
    "fairness": {"resamples": 200},
    "long_tail": {
        "datasets": ["digits"],  # excludes copies by `imbalance`
        "clusters": [4],
        "memorisation": {"heads": 50, "rows": 300},
    },
}

AUDIT = "audit/digits/pixels/{}/eps-{}.json"
FIGURES = (
    "audit.png",
    "membership_pixels-sgd-eps-2.png",
    "imbalance_pixels.png",
    "long_tail.png",
    *(f"fairness_{name}.{kind}" for name in ("gap", "auc", "parity") for kind in ("svg", "png")),
)
TABLES = {
    "long_tail.md": ("ot private",),
    "long_tail_gap.md": ("ot private",),
    "digits_fairness.md": ("**gap, best to worst**", "gap minus the gap of nonprivate at ∞"),
}
REPORT = (
    '<section id="audits"',
    '<section id="imbalance"',
    "Recall of rare classes",
    '<section id="long-tail"',
    'id="subgroups"',
    'id="gaps-digits"',
)
TARGETS = ("audit_digits", "imbalance", "long_tail")


@pytest.fixture(scope="module")
def audited(module_workspace: Callable[[str], Workspace]) -> Workspace:
    workspace = module_workspace("analysed")
    workspace.run(ANALYSED, "audits")
    return workspace


@pytest.fixture(scope="module")
def analysed(audited: Workspace) -> Workspace:
    audited.run(ANALYSED, "audits", "imbalance", "long_tail", "fairness", "html_report")
    return audited


def test_audits_are_made(audited: Workspace) -> None:
    check_audits(audited.directory / "results")


def test_analyses_are_made_kept_and_shown(analysed: Workspace) -> None:
    results = analysed.directory / "results"
    check_rare_classes(results)
    tail = read_json(results / "long_tail/digits/pixels.json")
    assert (tail["dimension"], tail["private"]) == (64, False)
    assert tail["memorisation"]["rows"] == 300 < tail["rows"]
    assert (results / "long_tail/digits/pixels.parquet").is_file()
    assert [name for name in FIGURES if not (results / "figures/digits" / name).is_file()] == []
    pages = {results / "tables" / name: words for name, words in TABLES.items()}
    for page, words in (pages | {results / "report.html": REPORT}).items():
        text = page.read_text(encoding="utf-8")
        assert [each for each in words if each not in text] == [], page
    assert "Nothing to be done" in analysed.run(ANALYSED, *TARGETS).stdout


def test_changed_options_repeat_only_what_they_affect(analysed: Workspace) -> None:
    study, results = copy.deepcopy(ANALYSED), analysed.directory / "results"
    # Another choice of methods keeps existing audits: a repeated audit would be a new file.
    path = results / AUDIT.format("sgd", "2")
    before = path.stat().st_ino
    study["audit"]["methods"] = ["sgd", "nonprivate"]
    planned = analysed.planned(study, "audit_digits")
    assert (planned["audit_cells"], planned["train_heads"]) == (1, 0)
    analysed.run(study, "audit_digits")
    assert path.stat().st_ino == before

    # A further fraction trains only its own cells; memorisation is measured without training.
    study["imbalance"]["fractions"].append(0.2)
    study["long_tail"]["memorisation"]["heads"] = 60
    planned = analysed.planned(study, "imbalance", "long_tail")
    rules = ("train_heads", "train_heads_without_privacy", "compare_rare_classes")
    assert {planned[rule] for rule in (*rules, "measure_long_tail")} == {1}
    assert (planned["extract_features"], planned["select_features"]) == (0, 2)


def check_audits(results: Path) -> None:
    cells = (("least_squares", "2"), ("sgd", "2"), ("nonprivate", "inf"))
    records = {cell: read_json(results / AUDIT.format(*cell)) for cell in cells}
    for (method, epsilon), record in records.items():
        assert (record["method"], record["epsilon"]) == (method, epsilon)
        assert (record["white_box"] is None) == (epsilon == "inf")
        assert record["membership"]["units"] <= 60 < record["membership"]["n"]
        assert (results / AUDIT.format(method, epsilon)).with_suffix(".parquet").is_file()
    assert records["sgd", "2"]["white_box"]["runs"] == 40
    assert records["sgd", "2"]["claim"]["epsilon"] <= 2


def check_rare_classes(results: Path) -> None:
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
    table = pq.read_table(metrics.with_name("predictions.parquet")).to_pandas()
    seeds = [np.stack(part["scores"]).astype(np.float64) for _, part in table.groupby("seed_index")]
    labels = table[table["seed_index"] == 0]["label"].to_numpy()
    # scores of class means are no logits: rows are ranked by the lead over the best other class
    leads = [each[:, 3] - np.delete(each, 3, axis=1).max(axis=1) for each in seeds]
    areas = [roc_auc_score(labels == 3, lead) for lead in leads]
    assert rare["auc"]["mean"] == pytest.approx(np.mean(areas), abs=1e-6)
    never = sum(not (each.argmax(axis=1) == 3).any() for each in seeds)
    assert rare["never_predicted"] == never
    with (results / "tables/digits_imbalance.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == ["3"] * 8


def test_a_part_whose_whole_is_not_in_the_study_is_extracted(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    few = {"source": "sklearn", "name": "digits", "subsample": {"per_class": 20}}
    small["datasets"] = {"few": few}
    planned = workspace.planned(small, "features")
    rules = ("prepare_data", "extract_features", "select_features")
    assert [planned[rule] for rule in rules] == [1, 2, 0]
    workspace.run(small, "data")
    info = read_json(workspace.directory / "data/few/dataset.json")
    assert info["splits"]["train"]["per_class"] == [20] * 10
