"""The estimator trains the same heads as the workflow, bit for bit, from any kind of X."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

from dpprobe.estimator import array_inputs, fit_and_score
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.results.cell_files import STATEMENT_FILE, WEIGHTS_FILE
from tests.support.classifiers import CLASSES, DELTA, ROWS, make_benchmark, make_rows
from tests.support.feature_stores import write_split
from tests.support.training_jobs import make_job, plan_job, run_job

METHODS: dict[str, dict[str, Any]] = {
    "small": {"head": "sgd", "batch_size": 30, "steps": 12},
    "full": {"head": "sgd", "batch_size": "full", "steps": 4, "normalize": "l2"},
    "second_moment": {"head": "feature_covariance"},
    "auto": {"head": "auto"},
}
UNITS = [f"patient {row // 3}" for row in range(ROWS)]


def train_cells(folder: Path, **job: Any) -> Callable[[str], tuple[np.ndarray, list[int]]]:
    """Trains a cell of each method; returns a function that reads a cell's weights and seeds."""
    for split, seed in (("train", 0), ("test", 1)):
        write_split(folder / split, *make_rows(seed), units=UNITS)
    made = make_job(
        methods={name: method_options(values) for name, values in METHODS.items()},
        epsilon="2",
        delta=DELTA,
        **job,
    )
    n = ROWS if made.terms.unit == "image" else len(set(UNITS))
    run_job(folder, made, plan_job(made, n, folder / "plans.json", folder / "calibration"))

    def read_cell(method: str) -> tuple[np.ndarray, list[int]]:
        cell = folder / "cells/toy/none" / method / "eps-2"
        statement = json.loads((cell / STATEMENT_FILE).read_text())
        seeds = [int(seed, 16) for seed in statement["seeds"]]
        return load_file(cell / WEIGHTS_FILE)["weights"], seeds

    return read_cell


def test_the_estimator_gives_the_bits_of_a_workflow_s_cells(tmp_path: Path) -> None:
    read_cell = train_cells(tmp_path)
    for method, values in METHODS.items():
        weights, seeds = read_cell(method)
        for place, seed in enumerate(seeds):
            fitted = make_benchmark(epsilon=2.0, head=values, random_state=seed).fit(*make_rows(0))
            np.testing.assert_array_equal(fitted.fit_.heads.weights[0], weights[place])
            assert fitted.coef_.tobytes() == weights[place, :, :-1].tobytes()
            assert fitted.intercept_.tobytes() == weights[place, :, -1].tobytes()


def test_groups_are_the_workflow_s_patients(tmp_path: Path) -> None:
    """Equal bits imply equal mechanisms, sensitivity and noise."""
    read_cell = train_cells(tmp_path, unit="patient")
    for method, values in METHODS.items():
        weights, seeds = read_cell(method)
        for unit in ("group", "patient"):
            fitted = make_benchmark(epsilon=2.0, head=values, random_state=seeds[0], unit=unit)
            fitted.fit(*make_rows(0), groups=UNITS)
            assert fitted.fit_.heads.weights[0].tobytes() == weights[0].tobytes()
            assert fitted.plan_.n == len(set(UNITS))


def as_map(values: np.ndarray, folder: Path) -> np.memmap:
    np.save(folder / "rows.npy", values)
    mapped: np.memmap = np.load(folder / "rows.npy", mmap_mode="r")
    return mapped


KINDS: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "float64": lambda rows, _: rows.astype(np.float64),
    "list": lambda rows, _: rows.tolist(),
    "strided": lambda rows, _: np.repeat(rows, 2, axis=0)[::2],
    "fortran": lambda rows, _: np.asfortranarray(rows),
    "reversed": lambda rows, _: rows[::-1].copy()[::-1],
    "read-only": lambda rows, _: np.frombuffer(rows.tobytes(), rows.dtype).reshape(rows.shape),
    "data frame": lambda rows, _: pd.DataFrame(rows),
    "tensor": lambda rows, _: torch.from_numpy(rows),
    "tensor with gradient": lambda rows, _: torch.from_numpy(rows).requires_grad_(),
    "memory map": as_map,
    "iterator of blocks": lambda rows, _: (rows[at : at + 50] for at in range(0, len(rows), 50)),
    "feature store": lambda rows, folder: FeatureStore(
        write_split(folder / "train", rows, make_rows(0).y, shards=2)
    ),
}


@pytest.mark.filterwarnings("ignore:X does not have valid feature names", "ignore:X has feature")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rows_gives_the_same_head(kind: str, method: str, tmp_path: Path) -> None:
    X, y = make_rows(0)
    before = X.copy()
    values = METHODS[method]
    wanted = make_benchmark(head=values).fit(X, y)
    got = make_benchmark(head=values).fit(KINDS[kind](X, tmp_path), y)
    assert got.fit_.heads.weights.tobytes() == wanted.fit_.heads.weights.tobytes()
    np.testing.assert_array_equal(X, before)
    scores = got.decision_function(KINDS[kind](X, tmp_path))
    np.testing.assert_array_equal(scores, wanted.decision_function(X))


@pytest.fixture
def mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.memmap:
    """Returns rows on disk that exceed the memory limit, with one unusable row."""
    for module in (array_inputs, fit_and_score):
        monkeypatch.setattr(module, "STREAMED_BYTES", 0)
    X, _ = make_rows(0)
    X[5] = np.nan
    return as_map(X, tmp_path)


def test_a_large_memory_map_is_streamed(mapped: np.memmap) -> None:
    X, y = np.array(mapped), make_rows(0).y
    got = make_benchmark().fit(mapped, y)
    source = array_inputs.find_source(mapped)
    assert source is not None
    data = TrainingSet(source, torch.from_numpy(y), len(CLASSES))
    streamed = fit_heads(got.fit_.method, data, got.plan_, [7])
    assert got.fit_.heads.weights.tobytes() == streamed.weights.tobytes()
    np.testing.assert_allclose(got.coef_, make_benchmark().fit(X, y).coef_, rtol=1e-4)
    with pytest.warns(UserWarning, match="1 rows"):
        scores = got.decision_function(mapped)
    np.testing.assert_array_equal(scores, got.decision_function(np.nan_to_num(X, nan=0.0)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, 1e300, 1e-30])
@pytest.mark.parametrize("method", METHODS)
def test_a_row_that_cannot_be_used_counts_as_zeros(method: str, value: float) -> None:
    """The workflow does the same, but also distinguishes rows of zeros from omitted rows."""
    X, y = make_rows(0)
    bad, zero = X.astype(np.float64), X.astype(np.float64)
    bad[3], zero[3] = value, 0.0
    head = METHODS[method]
    data = TrainingSet(torch.from_numpy(bad.astype(np.float32)), torch.from_numpy(y), len(CLASSES))
    fitted = make_benchmark(head=head).fit(bad, y)
    workflow = fit_heads(fitted.fit_.method, data, fitted.plan_, [7])
    assert fitted.fit_.heads.weights.tobytes() == workflow.weights.tobytes()
    assert np.isfinite(fitted.coef_).all()
    assert np.isfinite(make_benchmark(head=head).fit(zero, y).coef_).all()
