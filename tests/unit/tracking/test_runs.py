"""The contents of runs: params, metrics, tags, notes and artifacts."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name

from dpprobe.artifacts import read_json, write_json, write_table, write_text
from dpprobe.errors import TrackingError
from dpprobe.results.cell_record import HISTORY_FILE, read_cell
from dpprobe.tracking.receipt import find_store_fault
from dpprobe.tracking.runs import cell_run, curve_metrics, metric_name
from tests.support.audit_records import WHITE_BOX, write_audit
from tests.support.cell_files import write_cell
from tests.support.fairness_records import write_fairness
from tests.support.tracked_study import Study

FIRST = "study/digits/pixels/sgd/eps-0.5"


def test_each_cell_is_one_complete_run(study: Study) -> None:
    receipt = study.ingest()
    runs = study.runs()
    assert len(runs) == len(study.cells) == 8
    run = runs["study/digits/scattering/sgd/eps-0.5"]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "sgd ε0.5 scattering"
    assert (run.data.params["delta"], run.data.params["train_rows"]) == ("1e-05", "1000")
    assert run.data.metrics["allows/balanced_accuracy"] == 0.5663  # of 0.566223, up
    assert run.inputs is not None
    assert run.inputs.dataset_inputs[0].dataset.name == "digits"
    assert study.artifacts(run) == [
        "confusion/counts.csv",
        "confusion/matrix.html",
        "metrics.json",
        "privacy.json",
    ]
    assert run.info.end_time - run.info.start_time == 1500
    assert receipt["runs"]["study/digits/scattering/sgd/eps-0.5"] == run.info.run_id
    assert (receipt["created"], receipt["replaced"], receipt["kept"]) == (13, 0, 0)


def test_an_audit_renews_the_run_of_its_cell_alone(study: Study) -> None:
    before = study.ingest()["runs"]
    path = write_audit(study.root, epsilon="0.5")
    receipt = study.ingest(audits=[path])
    assert (receipt["replaced"], receipt["created"]) == (1, 0)
    assert {key for key, run in receipt["runs"].items() if before[key] != run} == {FIRST}
    assert study.ingest(audits=[path])["replaced"] == 0
    write_json(path, read_json(path) | {"white_box": {**WHITE_BOX, "epsilon_lower": 0.1}})
    assert study.ingest(audits=[path])["replaced"] == 1
    run = study.runs()[FIRST]
    assert run.data.metrics["audit/epsilon_lower"] == 0.1
    assert "audit/eps-0.5.json" in study.artifacts(run)
    assert "audit/epsilon_lower" in str(study.view("digits"))


def write_gaps(root: Path, **gap: float) -> Path:
    return write_fairness(root, names={"ink": "sex / age", "bold": "f", "thin": "m"}, gap=gap)


def test_a_gap_that_changes_renews_the_runs_that_show_it(study: Study) -> None:
    before = study.ingest(fairness=[write_gaps(study.root)])["runs"]
    assert study.ingest(fairness=[write_gaps(study.root)])["replaced"] == 0
    after = study.ingest(fairness=[write_gaps(study.root, gap=0.5)])["runs"]
    changed = {key for key, run in after.items() if before[key] != run}
    assert FIRST in changed
    assert "study/digits/pixels/sgd/eps-1" not in changed


def test_a_seed_that_diverged_ends_the_curve_of_the_mean(tmp_path: Path) -> None:
    rows = [
        {
            "step": step,
            "train_loss": {20: math.nan, 30: math.inf}.get(step * seed, 1.0),
            "test_accuracy": 0.5,
            "test_auc": None,
        }
        for seed in (0, 1)
        for step in (10, 20, 30)
    ]
    write_table(tmp_path / "history.parquet", pa.Table.from_pylist(rows))
    points = curve_metrics(tmp_path / "history.parquet")
    assert [(name, step) for name, _, step in points] == [
        ("curve/train_loss", 10),
        ("curve/test_accuracy", 10),
        ("curve/test_accuracy", 20),
        ("curve/test_accuracy", 30),
    ]


@given(st.text(max_size=200))
def test_any_class_name_becomes_a_legal_metric(text: str) -> None:
    name = f"per_class_recall/{metric_name(text)}"
    _validate_metric_name(name)
    assert name.count("/") == 1
    assert len(name) <= 250


def test_damaged_predictions_are_named(study: Study) -> None:
    folder = study.root / "cells/digits/pixels/sgd/eps-2"
    record = read_cell(folder / "metrics.json")
    run = cell_run(folder / "metrics.json", record, "s", {}, Mock())
    draw, read = run.drawn["confusion/counts.csv"], partial(curve_metrics, folder / HISTORY_FILE)
    for name, call in (("predictions.parquet", draw), (HISTORY_FILE, read)):
        for damage in (lambda path: path.write_bytes(b"not parquet"), Path.unlink):
            damage(folder / name)
            with pytest.raises(TrackingError, match=f"eps-2/{name}: unreadable"):
                call()


def test_a_study_is_one_run_with_its_report_and_tables(study: Study) -> None:
    for name in ("tables/accuracy.md", "tables/papers/table_2.md"):
        write_text(study.root / name, name)
    receipt = study.ingest_whole()
    run = study.runs("all studies")["study"]
    assert run.info.run_name == "study"
    assert study.artifacts(run) == [
        "report.html",
        "tables/accuracy.md",
        "tables/papers/table_2.md",
    ]
    assert {"digits/gap_eps_0.5", "digits/gap_eps_2"} <= set(run.data.metrics)
    assert run.inputs is not None
    (dataset,) = (item.dataset for item in run.inputs.dataset_inputs)
    assert dataset.name == "digits"
    assert json.loads(dataset.profile or "") == {"train_rows": 1000, "test_rows": 200}
    assert "viewStateShareKey" in receipt["pages"]["studies"]
    chosen = 'params.datasets LIKE "%digits%"'
    assert len(study.client.search_runs([run.info.experiment_id], chosen)) == 1
    assert not find_store_fault(study.root / "_study.json")
    assert study.ingest_whole()["kept"] == 1
    write_text(study.root / "report.html", "<html>changed</html>")
    assert study.ingest_whole()["replaced"] == 1
    path = write_cell(study.root, epsilon="0.5", quality=9.0)
    assert path in study.cells
    assert study.ingest_whole()["replaced"] == 1, "another result, in the same report and tables"
