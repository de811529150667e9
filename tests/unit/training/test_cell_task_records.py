"""A cell's record, files and state, tested with made-up contents instead of training."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    recall_score,
    top_k_accuracy_score,
)

from dpprobe.data.options import headline_metric
from dpprobe.features.feature_store import FeatureStore
from dpprobe.files.json_files import read_json, write_record
from dpprobe.heads.registry import method_options
from dpprobe.privacy.plan import Patients
from dpprobe.results.cell_files import CELL_FILES
from dpprobe.training.cell_contents import CellContents, merge_seeds
from dpprobe.training.cell_task import CellTask
from dpprobe.training.job_features import JobFeatures, read_job_features
from tests.support.feature_stores import separable, write_split
from tests.support.training_jobs import make_job
from tests.unit.training.test_head_job import Run

TRAIN, TEST, DIMENSION = 60, 24, 12
FULL: dict[str, Any] = {"head": "sgd", "batch_size": "full", "steps": 3}
TUNED = {"head": "tuned", "base": FULL, "search": {"learning_rate": [0.5, 2.0]}, "trials": 2}
PRIORS = {"head": "momentum", "steps": 2, "class_priors": "released"}
ACCEPTED = [[[], [2], [0, 1]][row % 3] for row in range(TEST)]
SEX = ["fm"[row % 5 > 2] for row in range(TEST)]


def labels_of(rows: int, classes: int) -> np.ndarray:
    """Returns labels of uneven classes: at least half of all rows are in the first class."""
    return np.where(np.arange(rows) % 2 == 0, 0, np.arange(rows) % classes)


def run_of(
    folder: Path,
    calibration: Path,
    options: dict[str, Any],
    *,
    classes: int = 3,
    images: int | None = None,
    **changes: Any,
) -> Run:
    for number, (split, rows) in enumerate({"train": TRAIN, "test": TEST}.items()):
        labels = labels_of(rows, classes)
        more: dict[str, Any] = {}
        if split == "test":
            more = {"accepted": ACCEPTED, "groups": {"sex": SEX}}
        write_split(
            folder / split,
            separable(labels, DIMENSION, seed=number),
            labels,
            units=None if images is None else [f"{split} {row // images}" for row in range(rows)],
            class_names=tuple(f"class {k}" for k in range(classes)),
            **more,
        )
    values = {"delta": 1e-3, "methods": {"m": method_options(options)}} | changes
    units = {"image": TRAIN, "patient": -(-TRAIN // (images or 1))}
    return Run(folder, make_job(**values), calibration, units)


def made(
    task: CellTask, indices: tuple[int, ...] = (0, 1), seed: int = 0, seconds: float = 1.25
) -> CellContents:
    """Returns random weights and scores, an unsorted history, and class priors if released."""
    generator = np.random.default_rng(seed)
    classes, count = len(task.train.class_names), len(indices)
    priors = {"class_priors": np.full((count, classes), 1 / classes, np.float32)}
    return CellContents(
        indices=indices,
        weights=generator.normal(size=(count, classes, DIMENSION + 1)).astype(np.float32),
        arrays=priors if task.options.releases_priors else {},
        scores=generator.normal(size=(count, TEST, classes)).astype(np.float32),
        history=[
            {
                "seed_index": index,
                "step": step,
                "epoch": float(step),
                "train_loss": 1 / (1 + index),
                "test_accuracy": 0.1 * step,
                "test_auc": None,
            }
            for index in indices
            for step in (3, 1)
        ],
        chosen=tuple({"learning_rate": 0.5 + index} for index in indices)
        if task.options.head == "tuned"
        else (),
        seconds=seconds,
    )


def open_task(run: Run, **changes: Any) -> tuple[CellTask, JobFeatures]:
    opened = run.open(**changes)
    task = opened.make_task("m", device="cpu")
    features = read_job_features(
        opened.inputs, opened.stores[1], device="cpu", memory_mb=9, headline=task.headline
    )
    return task, features


def stage(task: CellTask, features: JobFeatures, contents: CellContents) -> dict[str, Any]:
    task.store_cell(contents, features)
    record: dict[str, Any] = read_json(task.stored / "metrics.json")
    return record


def test_the_record_of_a_private_cell_has_the_facts_of_its_plan_and_rows(
    tmp_path: Path, calibration: Path
) -> None:
    run = run_of(tmp_path, calibration, FULL, study_seed=5)
    task, features = open_task(run)
    record = stage(task, features, made(task, seconds=1.23456))
    (mechanism,) = task.plan.mechanisms
    labels = labels_of(TEST, 3)
    counts = Counter(labels.tolist())
    wanted = {
        "cell": {"dataset": "toy", "backbone": "none", "method": "m", "epsilon": "4"},
        "head": "sgd",
        "private": True,
        "delta": 1e-3,
        "noise_multiplier": mechanism.noise_multiplier,
        "realised_epsilon": task.plan.realised_epsilon,
        "rows": {"train": TRAIN, "test": TEST},
        "units": None,
        "unit": "image",
        "n": TRAIN,
        "accountant": "pld",
        "study_seed": 5,
        "dimension": DIMENSION,
        "class_names": ["class 0", "class 1", "class 2"],
        "multi_label": False,
        "headline": "macro_accuracy",
        "metric_named": False,
        "test_counts": [counts[k] for k in range(3)],
        "constant_accuracy": max(counts.values()) / TEST,
        "auc_labels": 0,
        "seconds": 1.235,
    }
    assert {name: record[name] for name in wanted} == wanted
    assert 0.98 * 4 < record["realised_epsilon"] <= 4


def test_without_a_budget_a_record_has_no_epsilon(tmp_path: Path, calibration: Path) -> None:
    task, features = open_task(run_of(tmp_path, calibration, FULL, epsilon="inf"))
    record = stage(task, features, made(task))
    absent = ("delta", "noise_multiplier", "realised_epsilon", "accountant")
    assert [record[name] for name in absent] == [None] * 4
    assert (record["private"], record["n"]) == (False, TRAIN)
    statement = read_json(task.stored / "privacy.json")
    assert statement["private"] is False


@pytest.mark.parametrize("classes", [2, 3, 11])
def test_a_seed_s_metrics_are_scikit_learn_s(
    tmp_path: Path, calibration: Path, classes: int
) -> None:
    task, features = open_task(run_of(tmp_path, calibration, FULL, classes=classes))
    contents, labels = made(task), labels_of(TEST, classes)
    record = stage(task, features, contents)
    assert record["headline"] == headline_metric(
        None,
        num_classes=classes,
        multi_label=False,
        test_counts=np.bincount(labels, minlength=classes).tolist(),
    )
    for seed, scores in zip(record["seeds"], contents.scores, strict=True):
        found = scores.argmax(1)
        assert seed["accuracy"] == pytest.approx(accuracy_score(labels, found))
        assert seed["macro_accuracy"] == pytest.approx(balanced_accuracy_score(labels, found))
        recalls = recall_score(labels, found, average=None, labels=range(classes), zero_division=0)
        assert seed["per_class_recall"] == pytest.approx(recalls)
        assert seed["never_predicted"] == sorted(set(labels.tolist()) - set(found.tolist()))
        judged = [
            found[row] in right for row, right in enumerate(ACCEPTED) if right
        ]  # only rows with an accepted label
        assert seed["real_accuracy"] == pytest.approx(np.mean(judged))
        assert ("top5_accuracy" in seed) == (classes > 10)
        if classes > 10:
            top = top_k_accuracy_score(labels, scores, k=5, labels=range(classes))
            assert seed["top5_accuracy"] == pytest.approx(top)
    means = np.mean([seed["accuracy"] for seed in record["seeds"]])
    assert record["summary"]["accuracy"]["mean"] == pytest.approx(means)


def test_the_headline_of_both_halves_averages_to_the_whole(
    tmp_path: Path, calibration: Path
) -> None:
    """Each half has 12 of 24 rows, so the accuracy is the mean of both halves' accuracies."""
    task, features = open_task(run_of(tmp_path, calibration, FULL, metric="accuracy"))
    record = stage(task, features, made(task))
    assert (record["headline"], record["metric_named"]) == ("accuracy", True)
    for seed in record["seeds"]:
        halves = np.array(seed["halves"])
        assert halves.shape == (32, 2)
        np.testing.assert_allclose(halves.mean(1), seed["accuracy"], atol=1e-6)
        assert len(set(halves[:, 0])) > 3, "the splits differ"


def test_patients_are_counted_in_both_splits(tmp_path: Path, calibration: Path) -> None:
    run = run_of(tmp_path, calibration, FULL, images=3, unit="patient")
    task, features = open_task(run)
    contents = made(task)
    record = stage(task, features, contents)
    assert record["units"] == {"train": 20, "test": 8}
    assert (record["unit"], record["n"]) == ("patient", 20)
    table = pq.read_table(task.stored / "predictions.parquet")
    assert table["unit"].to_pylist() == [row // 3 for row in range(TEST)] * 2


@pytest.mark.parametrize(("images", "worth"), [(3, True), (None, False)])
def test_a_promise_for_images_has_its_worth_to_a_patient_where_images_are_limited(
    tmp_path: Path, calibration: Path, images: int | None, worth: bool
) -> None:
    run = run_of(tmp_path, calibration, FULL, images=3, patients=Patients(images=images))
    task, _ = open_task(run)
    said = task.statement["patients"]
    assert said["images"] == images
    assert (said["epsilon"] is not None) == worth
    if worth:
        assert said["epsilon"] > 2 * task.plan.realised_epsilon


def test_the_files_have_what_was_made(tmp_path: Path, calibration: Path) -> None:
    task, features = open_task(run_of(tmp_path, calibration, FULL))
    contents = made(task)
    stage(task, features, contents)
    table = pq.read_table(task.stored / "predictions.parquet")
    assert table.column_names == ["seed_index", "id", "label", "scores", "sex"]
    assert [str(table.schema.field(name).type) for name in ("seed_index", "label")] == [
        "int32",
        "int64",
    ]
    assert table.schema.field("scores").type == pa.list_(pa.float32())
    assert table["seed_index"].to_pylist() == [0] * TEST + [1] * TEST
    assert table["id"].to_pylist() == [f"test-{row}" for row in range(TEST)] * 2
    assert table["label"].to_pylist() == labels_of(TEST, 3).tolist() * 2
    assert table["sex"].to_pylist() == SEX * 2
    scores = np.array(table["scores"].to_pylist(), np.float32)
    np.testing.assert_array_equal(scores, contents.scores.reshape(-1, 3))
    history = pq.read_table(task.stored / "history.parquet")
    assert history.to_pylist() == contents.history
    with safe_open(task.stored / "heads.safetensors", framework="numpy") as stream:
        mark = json.loads(stream.metadata()["dpprobe"])
        assert list(stream.keys()) == ["weights"]
    assert mark["private_rows"] == task.name.model_dump()


@pytest.mark.parametrize("options", [FULL, PRIORS, TUNED], ids=["plain", "priors", "tuned"])
def test_a_staged_cell_reads_back_as_it_was_made(
    tmp_path: Path, calibration: Path, options: dict[str, Any]
) -> None:
    task, features = open_task(run_of(tmp_path, calibration, options))
    assert not task.is_current()
    assert task.find_reusable() is None
    contents = made(task)
    record = stage(task, features, contents)
    again = task.find_reusable()
    assert again is not None
    for name in ("weights", "scores"):
        np.testing.assert_array_equal(getattr(again, name), getattr(contents, name))
    assert again.arrays.keys() == contents.arrays.keys()
    for name, values in contents.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], values)
        assert [seed[name] for seed in record["seeds"]] == values.tolist()
    assert (again.indices, again.chosen) == ((0, 1), contents.chosen)
    assert again.history == contents.history
    # the duration of a private search would reveal its number of trials
    assert (record["seconds"], again.seconds) == ((None, 0.0) if options is TUNED else (1.25, 1.25))
    assert [seed.get("chosen") for seed in record["seeds"]] == list(contents.chosen or (None, None))


def test_a_cell_is_current_only_for_its_own_seeds_metric_and_identity(
    tmp_path: Path, calibration: Path
) -> None:
    task, features = open_task(run_of(tmp_path, calibration, FULL))
    stage(task, features, made(task))
    assert task.is_current()
    task.publish_cell()
    assert sorted(path.name for path in task.published.iterdir()) == sorted(CELL_FILES)
    for other in (
        replace(task, asked=replace(task.asked, seeds=3)),
        replace(task, asked=replace(task.asked, metric="macro_accuracy")),
        replace(task, headline="accuracy"),  # instead of macro accuracy
        replace(task, near_duplicates={"near": 1}),
    ):
        assert not other.is_current()
        assert other.find_reusable() is not None, "its heads are trained"
    assert replace(task, identity={}).find_reusable() is None
    train, test = (FeatureStore(tmp_path / name / "manifest.json") for name in ("train", "test"))
    assert (task.identity["train"], task.identity["test"]) == (train.fingerprint, test.fingerprint)
    assert (task.identity["study_seed"], task.identity["mode"]) == (0, "benchmark")


def test_the_statement_has_the_counts_of_near_duplicates(tmp_path: Path, calibration: Path) -> None:
    run = run_of(tmp_path, calibration, FULL)
    of = {
        split: {"features": FeatureStore(tmp_path / split / "manifest.json").fingerprint}
        for split in ("train", "test")
    }
    overlap = tmp_path / "overlap.json"
    write_record(overlap, {"format": "dpprobe-overlap", "format_version": 2, **of, "near": 3})
    told = open_task(run)[0].statement["public_data"]["near_duplicate_check"]
    assert told == "not_run"
    checked = run.open(overlap=overlap).make_task("m", device="cpu")
    assert checked.statement["public_data"]["near_duplicate_check"] == {**of, "near": 3}


@pytest.mark.parametrize("seeds", [1, 5])
def test_seeds_of_several_runs_are_merged_in_order(
    tmp_path: Path, calibration: Path, seeds: int
) -> None:
    task, _ = open_task(run_of(tmp_path, calibration, TUNED))
    parts = [made(task, each, seed=k) for k, each in enumerate([(10, 0, 3), (2, 1, 11, 4)])]
    merged = merge_seeds(parts, seeds)
    places = [(0, 1), (1, 1), (1, 0), (0, 2), (1, 3)][:seeds]  # part and position of each seed
    assert merged.indices == tuple(range(seeds))
    for name in ("weights", "scores"):
        expected = [getattr(parts[part], name)[place] for part, place in places]
        np.testing.assert_array_equal(getattr(merged, name), expected)
    steps = [(row["seed_index"], row["step"]) for row in merged.history]
    assert steps == [(seed, step) for seed in range(seeds) for step in (1, 3)]
    assert [each["learning_rate"] for each in merged.chosen] == [0.5 + k for k in range(seeds)]
    assert math.isclose(merged.seconds, 2.5)
