"""Heads of simulated sites: pooled bits, the order of four heads, and sites that are too small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.sites.measure import (
    Pool,
    _plan_sizes,
    simulate_sites,
    split_units,
)
from dpprobe.analyses.sites.options import SimulatedSitesOptions
from dpprobe.analyses.sites.show import sites_table
from dpprobe.analyses.sites.sites_record import SitesRecord
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.registry import method_options
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from dpprobe.training.fit_inputs import FitInputs
from tests.support.feature_stores import write_split
from tests.support.small_study import STUDY

DIMENSION, CLASSES = 16, 3
HEAD = {"head": "least_squares", "normalize": "l2"}


def write_rows(folder: Path, labels: np.ndarray, patients: Sequence[str] | None = None) -> Path:
    generator = np.random.default_rng(len(labels))
    features = generator.normal(size=(len(labels), DIMENSION)).astype(np.float32)
    features[np.arange(len(labels)), labels] += 3
    return write_split(folder, features, labels, units=patients)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    """1,800 rows of 900 patients, and 300 test rows."""
    labels = np.random.default_rng(1).integers(CLASSES, size=1800)
    patients = [f"p{row // 2}" for row in range(1800)]
    test = np.arange(300) % CLASSES
    return (
        write_rows(tmp_path / "train", labels, patients),
        write_rows(tmp_path / "test", test, [f"t{row}" for row in range(300)]),
    )


def make_study(**block: Any) -> Study:
    return load_study({**STUDY, "methods": {"head": HEAD}, "epsilons": [1], "sites": block})


def simulate(folder: Path, stores: tuple[Path, Path], unit: str, **block: Any) -> SitesRecord:
    study = make_study(**block).model_copy(update={"seeds": 2})
    record = folder / "sites/digits/pixels.json"
    inputs = {
        "method": "head", "epsilons": ["1"], "delta": 1e-4, "accountant": "pld", "unit": unit,
        "metric": None, "seed": 0,
    }  # fmt: skip
    simulate_sites(
        *stores, record, folder / "sites", options=SimulatedSitesOptions(**block), inputs=inputs,
        dataset="digits", backbone="pixels", threads=1, study=study,
    )  # fmt: skip
    return SitesRecord.read(record)


def read_pool(stores: tuple[Path, Path], unit: str) -> Pool:
    train, test = stores
    return Pool.read(FitInputs(FeatureStore(train), unit), test, None)


@pytest.mark.parametrize("unit", ["image", "patient"])
def test_the_order_is_alone_averaged_secure_sums_pooled(
    tmp_path: Path, stores: tuple[Path, Path], unit: str
) -> None:
    record = simulate(tmp_path, stores, unit, counts=6, splits=["equal", "labels"])
    assert (record.n, record.metric) == (1800 if unit == "image" else 900, "accuracy")
    for cell in record.cells:
        assert cell.alone is not None
        assert cell.averaged is not None
        assert cell.worst is not None
        assert cell.best is not None
        assert cell.worst < cell.alone.mean < cell.best
        assert cell.alone.low < cell.alone.mean < cell.alone.high
        assert cell.alone.mean + 0.05 < cell.averaged.mean < cell.together.mean
        assert cell.together.mean == pytest.approx(cell.pooled.mean, abs=0.03)
        assert cell.untrained == cell.one_class == 0
    equal, skewed = record.cells
    assert equal.together == skewed.together
    assert equal.alone != skewed.alone
    assert sites_table([record]).rows[0][3].text == ("300" if unit == "image" else "150")


@pytest.mark.parametrize("split", ["equal", "labels"])
def test_secure_sums_with_an_aggregator_are_the_pooled_head(
    tmp_path: Path, stores: tuple[Path, Path], split: str
) -> None:
    pool = read_pool(stores, "patient")
    method = method_options(HEAD)
    inputs = {"delta": 1e-4, "accountant": "pld", "unit": "patient"}
    make_plan = _plan_sizes(method, "1", inputs, tmp_path)
    parts = split_units(pool.labels, 5, split, 2)
    together = pool.fit_together(method, parts, make_plan, 9, None)
    pooled = fit_heads(method, pool.features.train, make_plan(pool.n), [9])
    assert together.weights.tobytes() == pooled.weights.tobytes()
    assert pool.measure(pool.score(together)) == pool.measure(pool.score(pooled))
    shared = pool.fit_together(method, parts, make_plan, 9, 1)
    assert shared.weights.tobytes() != pooled.weights.tobytes()


def test_no_patient_is_at_two_sites(stores: tuple[Path, Path]) -> None:
    for unit in ("image", "patient"):
        pool = read_pool(stores, unit)
        seen = [set(pool.codes[np.isin(pool.codes, part)])
                for part in split_units(pool.labels, 7, "labels", 1)]  # fmt: skip
        assert len(set().union(*seen)) == sum(map(len, seen)) == 900
        assert pool.select(np.array([3, 8])).n == (4 if unit == "image" else 2)
