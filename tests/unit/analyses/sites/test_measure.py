"""Heads of simulated sites: pooled bits and the order of four heads; splits of units over sites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.sites.measure import Pool, _plan_sizes, simulate_sites, split_units
from dpprobe.analyses.sites.options import SimulatedSitesOptions
from dpprobe.analyses.sites.show import sites_table
from dpprobe.analyses.sites.sites_record import SitesRecord
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.registry import method_options
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
    patients, others = ([f"p{row // 2}" for row in range(1800)], [f"t{row}" for row in range(300)])
    test = write_rows(tmp_path / "test", np.arange(300) % CLASSES, others)
    return write_rows(tmp_path / "train", labels, patients), test


def simulate(folder: Path, stores: tuple[Path, Path], unit: str, **block: Any) -> SitesRecord:
    epsilons = block.pop("epsilons", ["1"])
    study = load_study(
        {**STUDY, "methods": {"head": HEAD}, "epsilons": [1], "seeds": 2, "sites": block}
    )
    record = folder / "sites/digits/pixels.json"
    inputs = {
        "method": "head",
        "epsilons": epsilons,
        "delta": 1e-4,
        "accountant": "pld",
        "unit": unit,
        "metric": None,
        "seed": 0,
    }
    simulate_sites(
        *stores,
        record,
        folder / "sites",
        options=SimulatedSitesOptions(**block),
        inputs=inputs,
        dataset="digits",
        backbone="pixels",
        threads=1,
        study=study,
    )
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
        assert (cell.worst or 1) < cell.alone.mean < (cell.best or 0)
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
        seen = [
            set(pool.codes[np.isin(pool.codes, part)])
            for part in split_units(pool.labels, 7, "labels", 1)
        ]
        assert len(set().union(*seen)) == sum(map(len, seen)) == 900
        assert pool.select(np.array([3, 8])).n == (4 if unit == "image" else 2)


LABELS = np.repeat([0, 1, 2], [600, 300, 100])


@pytest.mark.parametrize("split", ["equal", "sizes", "labels"])
@pytest.mark.parametrize(("units", "sites"), [(1000, 10), (12, 10), (10, 10), (7, 2)])
def test_each_unit_is_at_one_site_and_each_site_has_a_unit(
    split: str, units: int, sites: int
) -> None:
    parts = split_units(LABELS[:: 1000 // units][:units], sites, split, 3)
    assert len(parts) == sites
    assert min(map(len, parts)) >= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(units))


def test_sizes_are_equal_or_fall_as_one_over_the_rank() -> None:
    for split in ("equal", "labels"):
        assert {len(part) for part in split_units(LABELS, 8, split, 1)} == {125}
    sizes = [len(part) for part in split_units(LABELS, 4, "sizes", 1)]
    np.testing.assert_allclose(sizes, 1000 / np.arange(1, 5) / (25 / 12), atol=2)


def test_only_skewed_labels_change_the_frequencies_of_classes() -> None:
    def spread(split: str) -> float:
        parts = split_units(LABELS, 5, split, 2)
        shares = [np.bincount(LABELS[part], minlength=3) / len(part) for part in parts]
        return float(np.std(shares, axis=0).max())

    assert spread("equal") < 0.05 < 0.2 < spread("labels")


def test_a_site_takes_classes_in_the_ratio_of_dirichlet_weights_times_units() -> None:
    parts = [split_units(LABELS, 20, "labels", seed)[0] for seed in range(300)]
    shares = np.mean([np.bincount(LABELS[part], minlength=3) / len(part) for part in parts], axis=0)
    drawn = np.random.default_rng(0).dirichlet([0.5] * 3, 20_000) * np.bincount(LABELS)
    expected = (drawn / drawn.sum(axis=1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(shares, expected, atol=0.07)
