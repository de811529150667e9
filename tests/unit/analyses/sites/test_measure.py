"""Heads of simulated sites: pooled bits, the order of four heads, and units split over sites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.sites import measure
from dpprobe.analyses.sites.measure import Pool, plan_sizes, simulate_sites, split_units
from dpprobe.analyses.sites.options import SimulatedSitesOptions
from dpprobe.analyses.sites.show import sites_table
from dpprobe.analyses.sites.sites_record import SitesRecord
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.registry import method_options
from dpprobe.privacy.randomness import derived_seed
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
    """Writes 1,800 training rows of 900 patients, and 300 test rows."""
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
        assert cell.alone.mean + 0.02 < min(cell.averaged.mean, cell.together.mean)
        assert cell.averaged.mean < cell.together.mean + 0.03  # within the noise of few seeds
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
    make_plan = plan_sizes(method, "1", inputs, tmp_path)
    parts = split_units(pool.labels, 5, split, 2)
    together = pool.fit_together(method, parts, make_plan, 9, None)
    pooled = fit_heads(method, pool.features.train, make_plan(pool.n), [9])
    assert together.weights.tobytes() == pooled.weights.tobytes()
    assert pool.measure(pool.score(together)) == pool.measure(pool.score(pooled))
    shared = pool.fit_together(method, parts, make_plan, 9, 1)
    assert shared.weights.tobytes() != pooled.weights.tobytes()


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


# Facts about a pool, and results of sites that train alone


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Writes 240 rows of 20 patients, each with several classes, and 60 test rows of 30."""
    folder = tmp_path_factory.mktemp("small")
    labels = np.random.default_rng(1).integers(CLASSES, size=240)
    patients = [f"p{row * 5 % 100}" for row in range(240)]
    tested = [f"t{row // 2}" for row in range(60)]
    return (
        write_rows(folder / "train", labels, patients),
        write_rows(folder / "test", np.arange(60) % 3, tested),
    )


def test_a_plan_is_for_the_number_of_units_that_it_is_asked_for(tmp_path: Path) -> None:
    """A site's own head has noise for the number of its units, at the full budget."""
    for unit in ("image", "patient"):
        inputs = {"delta": 1e-4, "accountant": "pld", "unit": unit}
        make_plan = plan_sizes(method_options(HEAD), "1", inputs, tmp_path)
        for n in (80, 200):
            plan = make_plan(n)
            assert (plan.n, plan.unit, plan.delta) == (n, unit, 1e-4)
            assert 0.97 < (plan.realised_epsilon or 0) <= 1
        assert make_plan(80) is make_plan(80), "calibrated once"


def _needs(least: int, make_plan: Any) -> Any:
    def plan(n: int) -> Any:
        if n < least:
            raise DataError(f"{n} units, {least} needed")
        return make_plan(n)

    return plan


@pytest.fixture
def pool_and_plans(small: tuple[Path, Path], tmp_path: Path) -> tuple[Pool, Any]:
    inputs = {"delta": 1e-4, "accountant": "pld", "unit": "image"}
    return read_pool(small, "image"), plan_sizes(method_options(HEAD), "1", inputs, tmp_path)


def test_a_site_alone_has_its_own_rows_plan_and_noise(pool_and_plans: tuple[Pool, Any]) -> None:
    pool, make_plan = pool_and_plans
    parts = [np.arange(3), np.arange(3, 50), np.flatnonzero(pool.labels == 1)[:30]]
    sizes = [int(np.isin(pool.codes, part).sum()) for part in parts]
    method = method_options(HEAD)
    alone = measure.train_alone(method, pool, parts, _needs(37, make_plan), 5)
    assert alone.sizes == sizes
    assert alone.failures == [f"{sizes[0]} units, 37 needed"]
    assert alone.one_class == sum(len(pool.select(part).labels.unique()) == 1 for part in parts)
    for place, scores in zip((1, 2), alone.scores, strict=True):
        seed = derived_seed(5, f"{place} of 3 sites")
        heads = fit_heads(method, pool.select(parts[place]), make_plan(sizes[place]), [seed])
        np.testing.assert_array_equal(scores, pool.score(heads))


def test_heads_alone_are_summed_up_over_sites_and_seeds(pool_and_plans: tuple[Pool, Any]) -> None:
    pool, _ = pool_and_plans
    labels = np.arange(60) % 3

    def head(right: int) -> np.ndarray:
        """Returns scores with an accuracy of `right` out of 60."""
        scores = np.eye(3)[(labels + (np.arange(60) >= right)) % 3]
        return np.asarray(scores, dtype=np.float32)

    first = measure.Alone([head(30), head(60)], ["too few: 3 units"], [3, 50, 30], 1)
    second = measure.Alone([head(45)], ["none", "none"], [7, 8, 90], 2)
    told = measure.describe_alone(pool, [first, second])
    assert (told["smallest"], told["largest"], told["one_class"]) == (3, 90, 3)
    assert (told["untrained"], told["reason"]) == (3, "too few: 3 units")
    assert told["alone"].mean == pytest.approx(((0.5 + 1.0) / 2 + 0.75) / 2)
    assert told["worst"] == pytest.approx((0.5 + 0.75) / 2)
    assert told["best"] == pytest.approx((1.0 + 0.75) / 2)
    weighed = measure.Alone([head(30), head(30), 3 * head(60)], [], [9, 9, 9], 0)
    averaged = measure.describe_alone(pool, [weighed])["averaged"]
    assert averaged.mean == 1.0, "of the mean of scores the one with larger scores decides"
    lost = measure.describe_alone(pool, [measure.Alone([], ["gone"], [3], 1)])
    assert [lost[name] for name in ("alone", "worst", "best", "averaged")] == [None] * 4
    assert (lost["untrained"], lost["reason"]) == (1, "gone")


def test_the_interval_of_several_heads_has_the_mean_width_of_theirs(
    small: tuple[Path, Path],
) -> None:
    pool = read_pool(small, "image")
    labels = np.arange(60) % 3

    def scores(right: int) -> np.ndarray:
        return np.asarray(np.eye(3, dtype=np.float32)[(labels + (np.arange(60) >= right)) % 3])

    ends = []
    for right in (30, 54):
        alone = pool.estimate([[scores(right)]])
        assert alone.mean == pytest.approx(right / 60)
        assert alone.low < alone.mean < alone.high
        ends.append((alone.low - alone.mean, alone.high - alone.mean))
    both = pool.estimate([[scores(30), scores(54)]])
    assert both.mean == pytest.approx(0.7)
    low, high = np.mean(ends, axis=0)
    assert (both.low, both.high) == pytest.approx((0.7 + low, 0.7 + high))
    spread = pool.estimate([[scores(30)], [scores(54)]])
    assert spread.mean == pytest.approx(0.7)
    assert spread.low < both.low, "seeds differ, so the interval is wider"


def test_cells_follow_budgets_counts_and_splits(tmp_path: Path, small: tuple[Path, Path]) -> None:
    given: dict[str, Any] = {"counts": [4, 2], "splits": ["sizes", "labels"], "colluders": 1}
    record = simulate(tmp_path, small, "image", epsilons=["1", "30"], **given)
    cells = record.cells
    assert [(cell.epsilon, cell.sites, cell.split) for cell in cells] == [
        (epsilon, sites, split)
        for epsilon in ("1", "30")
        for sites in (4, 2)
        for split in ("sizes", "labels")
    ]
    for cell in cells:
        even = 240 // cell.sites
        assert (cell.smallest < even < cell.largest) == (cell.split == "sizes")
        assert (cell.smallest == even == cell.largest) == (cell.split == "labels")
        assert cell.pooled == cells[4 * (cell.epsilon == "30")].pooled, "of all rows, once"
    for one, other in zip(cells[::2], cells[1::2], strict=True):
        assert one.together == other.together, "sums do not depend on the split"
    assert cells[0].pooled != cells[4].pooled
    assert (record.dataset, record.backbone, record.method) == ("digits", "pixels", "head")
    assert (record.unit, record.n, record.seeds, record.colluders) == ("image", 240, 2, 1)
