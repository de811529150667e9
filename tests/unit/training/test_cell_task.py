"""Cells of rows with several labels, and the headline metric of a cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from dpprobe.heads.registry import method_options
from tests.support.feature_stores import write_split
from tests.support.training_jobs import make_job
from tests.unit.training.test_head_job import Run

ROWS = {"train": 400, "test": 120}
DIMENSION = 5
SIGMOID = method_options(
    {"head": "sgd", "loss": "sigmoid", "batch_size": "full", "steps": 4, "learning_rate": 2.0}
)


def write_features(
    folder: Path,
    labels: dict[str, np.ndarray],
    names: tuple[str, ...],
    patients: dict[str, list[str]] | None = None,
) -> None:
    """Writes noisy rows whose first features depend on their labels ([n] or [n, K] per split)."""
    for number, (split, own) in enumerate(labels.items()):
        generator = np.random.default_rng(number)
        features = generator.normal(size=(len(own), DIMENSION))
        shown = own if own.ndim == 2 else np.eye(len(names))[own]
        features[:, : shown.shape[1]] += 1.5 * shown
        units = None if patients is None else patients[split]
        write_split(folder / split, features, own, class_names=names, units=units)


def several() -> dict[str, np.ndarray]:
    """Returns three labels per row, each positive in three of ten rows."""
    return {
        split: (np.random.default_rng(rows).random((rows, 3)) < 0.3).astype(np.int8)
        for split, rows in ROWS.items()
    }


def one_of(classes: int) -> dict[str, np.ndarray]:
    return {split: np.arange(rows) % classes for split, rows in ROWS.items()}


def make_run(folder: Path, calibration: Path) -> Run:
    """Returns a job of two seeds at epsilon 8."""
    job = make_job(epsilon="8", methods={"sgd": SIGMOID})
    return Run(folder, job, calibration, {"image": ROWS["train"]})


@pytest.mark.parametrize("memory_mb", [1000, 0])
def test_a_multi_label_cell_agrees_with_its_predictions(
    tmp_path: Path, calibration: Path, memory_mb: int
) -> None:
    write_features(tmp_path, several(), ("a", "b", "c"))
    run = make_run(tmp_path, calibration)
    run.train(memory_mb=memory_mb)
    cell, record = run.cell("sgd"), run.record("sgd")
    assert (record["headline"], record["multi_label"], record["auc_labels"]) == ("auc", True, 3)
    table = pq.read_table(cell / "predictions.parquet")
    assert table.schema.field("label").type == pa.list_(pa.int8())
    rows = table.to_pandas()
    history = pq.read_table(cell / "history.parquet").to_pandas()
    for seed in record["seeds"]:
        own = rows[rows["seed_index"] == seed["index"]]
        labels, scores = np.stack(own["label"].to_list()), np.stack(own["scores"].to_list())
        np.testing.assert_array_equal(labels, several()["test"])
        assert seed["auc"] == pytest.approx(roc_auc_score(labels, scores))
        assert seed["mean_average_precision"] == pytest.approx(
            average_precision_score(labels, scores)
        )
        assert seed["accuracy"] == pytest.approx(np.mean((scores > 0) == labels))
        assert "expected_calibration_error" in seed
        last = history[history["seed_index"] == seed["index"]].iloc[-1]
        assert last["test_auc"] == pytest.approx(seed["auc"], abs=1e-3)
        assert last["test_accuracy"] == pytest.approx(seed["accuracy"], abs=0.01)
    assert record["summary"]["auc"]["mean"] > 0.7
    assert history["test_auc"].iloc[0] < record["summary"]["auc"]["mean"]


def test_another_metric_needs_no_training(
    tmp_path: Path, calibration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_features(tmp_path, one_of(2), ("no", "yes"))
    run = make_run(tmp_path, calibration)
    run.train()
    cell, before = run.cell("sgd"), run.record("sgd")
    weights = (cell / "heads.safetensors").read_bytes()
    assert before["headline"] == "accuracy"
    assert before["summary"]["auc"]["mean"] > 0.7
    history = pq.read_table(cell / "history.parquet").to_pandas()
    assert history["test_auc"].notna().all()

    def fit(*_: Any, **__: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("dpprobe.training.head_fits.fit_heads", fit)
    run.train(metric="auc")
    after = run.record("sgd")
    assert after["headline"] == "auc"
    values = [seed.pop("halves") for seed in (*before["seeds"], *after["seeds"])]
    assert values[0] != values[len(before["seeds"])], "of the metric that is shown"
    assert after["seeds"] == before["seeds"]
    assert after["content_hash"] != before["content_hash"]
    assert (cell / "heads.safetensors").read_bytes() == weights
    kept = (cell / "metrics.json").read_bytes()
    run.train(metric="auc")
    assert (cell / "metrics.json").read_bytes() == kept


def named(test: list[str]) -> dict[str, list[str]]:
    """Returns patients by split; each training patient has four images."""
    return {"train": [f"secret-{row // 4}" for row in range(ROWS["train"])], "test": test}


@pytest.mark.parametrize("labels", [one_of(3), several()], ids=["one label", "several"])
def test_a_cell_of_patients_agrees_with_its_predictions(
    labels: dict[str, np.ndarray], tmp_path: Path, calibration: Path
) -> None:
    patients = named([f"secret-{max(0, row - 60)}" for row in range(ROWS["test"])])
    write_features(tmp_path, labels, ("a", "b", "c"), patients)
    run = make_run(tmp_path, calibration)
    run.train()
    cell, record = run.cell("sgd"), run.record("sgd")
    assert record["units"] == {"train": 100, "test": 60}
    assert record["rows"] == ROWS
    assert record["n"] == ROWS["train"], "the unit of privacy is an image"
    table = pq.read_table(cell / "predictions.parquet")
    assert table.schema.field("unit").type == pa.int64()
    rows = table.to_pandas()
    history = pq.read_table(cell / "history.parquet").to_pandas()
    for seed in record["seeds"]:
        own = rows[rows["seed_index"] == seed["index"]]
        weights = 1 / own.groupby("unit")["unit"].transform("size").to_numpy()
        assert weights.sum() == pytest.approx(60)
        truth, scores = np.stack(own["label"].to_list()), np.stack(own["scores"].to_list())
        right = (scores > 0) == truth if truth.ndim == 2 else scores.argmax(1) == truth
        shares = right.mean(1) if truth.ndim == 2 else right
        assert seed["accuracy"] == pytest.approx(np.average(shares, weights=weights))
        assert seed["accuracy"] != pytest.approx(shares.mean(), abs=1e-6)
        last = history[history["seed_index"] == seed["index"]].iloc[-1]
        assert last["test_accuracy"] == pytest.approx(seed["accuracy"], abs=1e-6)
        if truth.ndim == 2:
            assert seed["auc"] == pytest.approx(roc_auc_score(truth, scores, sample_weight=weights))
    entry = record["summary"]["accuracy"]
    assert entry["rows_interval"] == "bootstrap over test patients"
    assert b"secret" not in b"".join(path.read_bytes() for path in cell.iterdir())
