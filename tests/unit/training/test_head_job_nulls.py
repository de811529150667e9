"""Null examples in stored features change no sums or test results, but count in n."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import torch

from dpprobe.data.promise_facts import PromiseFacts
from dpprobe.estimator.known_rows import find_origins, remember_store
from dpprobe.estimator.row_copies import count_copies
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.release.counted_units import find_usable, score_test_rows, weights_of_rows
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.job_features import read_job_features
from dpprobe.training.tasks import open_job
from tests.support.feature_stores import separable, write_split
from tests.support.linear_heads import plan_for
from tests.support.mechanisms import made_plan
from tests.support.training_jobs import list_files, make_job, plan_job, run_job

ROWS, CLASSES, DIMENSION = {"train": 120, "test": 60}, 3, 6
NULLS = {"train": (0, 5, 6, 119), "test": (1, 2, 59)}
CHANNELS = {"kind": "channels", "channels": 2, "max_mean_norm": 0.7, "max_deviation_norm": 0.3}
SGD = {"head": "sgd", "batch_size": "full", "steps": 3}
HEADS: dict[str, dict[str, Any]] = {
    "nonprivate": {"head": "nonprivate", "max_iterations": 30},
    "exact": SGD | {"engine": "exact"},
    "batches": SGD | {"batch_size": 20, "class_priors": "released"},
    "sums": {"head": "least_squares", "normalize": "l2"},
    "covariance": {"head": "feature_covariance", "normalize": "centred"},
    "prototypes": {"head": "prototypes", "normalize": "layer_norm"},
    "newton": {"head": "newton", "normalize": "whitened"},
    "channels": {"head": "prototypes", "normalize": CHANNELS, "max_row_norm": 1e-4},
}
EACH = pytest.mark.parametrize("head", HEADS)


def make_split(split: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any], list[str]]:
    labels = np.arange(ROWS[split]) % CLASSES
    features = separable(labels, DIMENSION, seed=len(split)).astype(np.float32)
    return features, labels, [f"p{row // 3}" for row in range(ROWS[split])]


def write(folder: Path, split: str, nulls: Sequence[int], **more: Any) -> FeatureStore:
    features, labels, names = make_split(split)
    features[list(nulls)] = np.nan
    given = {"units": names} | more
    return FeatureStore(write_split(folder / split, features, given.pop("labels", labels), **given))


@pytest.mark.parametrize("unit", ["image", "patient"])
@pytest.mark.parametrize("memory_mb", [100, 0], ids=["in memory", "streamed"])
@EACH
def test_heads_equal_those_of_null_rows(
    tmp_path: Path, head: str, unit: str, memory_mb: int
) -> None:
    """The bits are equal for any labels of null examples, and n includes null examples."""
    method = method_options(HEADS[head])
    memory_mb = 100 if "batch_size" in HEADS[head] else memory_mb  # samples need memory
    features, labels, names = make_split("train")
    others = labels.copy()
    others[list(NULLS["train"])] = 2
    units = Units.number_units(names) if unit == "patient" else None
    plan = plan_for(method, len({*names}) if units else len(labels), 1.0)
    features[list(NULLS["train"])] = np.nan
    nulled = TrainingSet(torch.from_numpy(features), torch.from_numpy(labels), CLASSES, units=units)
    wanted = fit_heads(method, nulled, plan, [3]).weights
    for number, written in enumerate((labels, others)):
        store = write(tmp_path / f"{number}", "train", NULLS["train"], labels=written)
        rows = FitInputs(store, unit).read_rows(device="cpu", memory_mb=memory_mb)
        assert rows.n == plan.n
        np.testing.assert_array_equal(fit_heads(method, rows, plan, [3]).weights, wanted)
    readable = FitInputs(write(tmp_path / "readable", "train", ()), unit)
    rows = readable.read_rows(device="cpu", memory_mb=memory_mb)
    assert not np.array_equal(fit_heads(method, rows, plan, [3]).weights, wanted)


@pytest.mark.parametrize("unit", ["image", "patient"])
@EACH
def test_a_release_counts_no_null_row_of_its_test(tmp_path: Path, head: str, unit: str) -> None:
    """Null rows have NaN scores after each normalisation; other units keep their weights."""
    method = method_options(HEADS[head])
    train, test = (write(tmp_path, split, NULLS[split]) for split in ROWS)
    inputs = FitInputs(train, unit)
    for memory_mb in {100, 100 if "batch_size" in HEADS[head] else 0}:
        features = read_job_features(
            inputs, test, device="cpu", memory_mb=memory_mb, headline="accuracy"
        )
        heads = fit_heads(method, features.train, plan_for(method, inputs.n, 1.0), [3])
        scores = score_test_rows(heads, features)
        assert tuple(np.flatnonzero(~find_usable(scores))) == NULLS["test"]
        n = FitInputs(test, unit).n
        assert n == (ROWS["test"] if unit == "image" else ROWS["test"] // 3)
        weights = weights_of_rows(features, made_plan((), n, unit=unit))
        assert weights.sum() == pytest.approx(n), "a null row's weight goes to no other row"


def test_a_cell_is_tested_only_on_readable_rows(tmp_path: Path, calibration: Path) -> None:
    for split in ROWS:
        write(tmp_path, split, NULLS[split], units=None)
    job = make_job(methods={"small": method_options(HEADS["batches"])})
    plans = plan_job(job, ROWS["train"], tmp_path / "plans.json", calibration)
    opened = open_job(job, list_files(tmp_path, plans))
    assert (opened.stores[0].rows, opened.stores[1].rows) == (120, 57)
    run_job(tmp_path, job, plans)
    cell = tmp_path / "cells/toy/none/small/eps-4"
    record = json.loads((cell / "metrics.json").read_text())
    predictions = pq.read_table(cell / "predictions.parquet").to_pandas()
    kept = [f"test-{row}" for row in range(60) if row not in NULLS["test"]]
    assert record["rows"] == {"train": 120, "test": 57}
    for seed in record["seeds"]:
        rows = predictions[predictions["seed_index"] == seed["index"]]
        assert rows["id"].tolist() == kept
        right = np.stack(rows["scores"].to_list()).argmax(1) == rows["label"]
        assert seed["accuracy"] == pytest.approx(right.mean())
    statement = json.loads((cell / "privacy.json").read_text())
    assert statement["plan"]["n"] == 120 if "plan" in statement else statement["n"] == 120
    assert "null_rows" not in json.dumps(statement)


def test_null_rows_do_not_count_as_images_of_one_patient(tmp_path: Path) -> None:
    """All null rows have equal bits, but do not count as many images of one patient."""
    store = write(
        tmp_path / "features/a/b",
        "train",
        range(0, 60, 3),
        promise=PromiseFacts(unit_column="who", images_per_patient=3),
    )
    remember_store(store)
    rows = store.read()[::-1].copy()
    assert count_copies(rows, None) == (0, 1)
    (origin,) = find_origins(rows, np.zeros(len(rows), int))
    origin.check_units("image", None)
    assert len(origin.rows) == 100
    assert {len(names) for names in origin.names} == {1}
    assert count_copies(np.full((3, 2), np.nan, np.float32), None) == (0, 0)
