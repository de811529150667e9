"""A paired interval for two cells on the same rows covers their difference, and is narrower."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpprobe.results.halves import half_values
from dpprobe.results.metrics import Evaluation
from dpprobe.results.paired_difference import INDEPENDENT, PAIRED, Comparison, compare_entries
from dpprobe.results.summary import Entry
from dpprobe.results.uncertainty import summarise_records
from tests.support.made_grids import made_entry

TIMES = 200


def _entry(correct: np.ndarray, *, halves: bool = True) -> Entry:
    """Returns the entry of a cell with right answers `correct`, [seeds, rows]."""
    labels = np.zeros(correct.shape[1], dtype=np.int64)
    seeds = [Evaluation(np.eye(2)[1 - right.astype(int)], labels) for right in correct]
    values = [half_values("accuracy", each) for each in seeds]
    records = [{"accuracy": float(right.mean())} for right in correct]
    summary = summarise_records(records, seeds[0])["accuracy"]
    return Entry(
        mean=100 * summary["mean"],
        low=None,
        high=None,
        interval=None,
        both_low=100 * summary["both_low"],
        both_high=100 * summary["both_high"],
        values=tuple(100 * record["accuracy"] for record in records),
        halves=100 * np.array(values) if halves else None,
        test_units=correct.shape[1],
        seeds=len(correct),
        private=True,
        ceiling=False,
    )


def _holds(told: Comparison, truth: float) -> bool:
    assert told.low is not None
    assert told.high is not None
    return told.low <= truth <= told.high


def _pair(generator: np.random.Generator, rows: int, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns right answers of cells with 80% and 85% accuracy, on rows equally hard for both."""
    hard = generator.random(rows)
    made = []
    for chance, count in ((0.80, seeds), (0.85, 1)):
        easy = np.where(hard < 0.6, 1.0, (chance - 0.6) / 0.4)
        made.append(generator.random((count, rows)) < easy)
    return made[0], made[1]


@pytest.mark.parametrize(("rows", "seeds"), [(300, 5), (300, 1), (12, 1)])
def test_the_interval_covers_the_difference(rows: int, seeds: int) -> None:
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(TIMES):
        first, second = _pair(generator, rows, seeds)
        found = compare_entries(_entry(first), _entry(second))
        assert found.way == (PAIRED if rows == 300 else INDEPENDENT)
        held += _holds(found, -5.0)
    assert held >= 0.92 * TIMES


def test_pairs_tell_more_than_two_intervals() -> None:
    first, second = _pair(np.random.default_rng(1), 1000, 3)
    paired = compare_entries(_entry(first), _entry(second))
    alone = compare_entries(_entry(first, halves=False), _entry(second, halves=False))
    assert paired.difference == alone.difference
    width, other = (each.high - each.low for each in (paired, alone) if each.high and each.low)
    assert width < 0.9 * other


def test_cells_that_are_alike_everywhere_have_an_interval_with_a_width() -> None:
    entry = _entry(np.arange(660)[None] < 600)
    found = compare_entries(entry, entry)
    assert (found.difference, found.way) == (0.0, INDEPENDENT)
    assert not found.apart


def test_how_many_units_would_tell_a_difference() -> None:
    for difference, low, high, needed in (
        (-10.0, -40.0, 20.0, 900),  # a third of the width: the side towards 0 has 30 points
        (10.0, -5.0, 60.0, 225),
        (0.5, -8.0, 9.0, 1807),  # differences below two points count as two
        (2.0, 0.0, 4.0, 100),
        (-2.0, -4.0, 0.0, 100),
        (2.0, 0.5, 4.0, 57),
    ):
        told = Comparison(difference=difference, low=low, high=high, way=PAIRED)
        assert told.units_to_tell(100, least=2.0) == needed
        assert told.apart == (needed < 100)


HALVES = np.random.default_rng(0).normal(50, 5, size=(5, 32, 2))


def _told(values: tuple[float, ...], halves: np.ndarray | None, **changes: object) -> Entry:
    facts: dict[str, object] = {"both_low": 40.0, "both_high": 70.0, "test_units": 20}
    return made_entry(
        float(np.mean(values)),
        **facts | {"values": values, "seeds": len(values), "halves": halves} | changes,
    )


def test_the_interval_has_the_variances_of_halves_and_seeds_by_satterthwaite() -> None:
    """A quarter of the mean squared change between halves, plus each cell's variance over seeds."""
    first, second = _told((50.0, 52.0, 57.0), HALVES[:3]), _told((48.0, 49.0), HALVES[3:])
    changes = [
        (HALVES[:3, split, 0].mean() - HALVES[3:, split, 0].mean())
        - (HALVES[:3, split, 1].mean() - HALVES[3:, split, 1].mean())
        for split in range(32)
    ]
    parts = [
        (sum(change**2 for change in changes) / 32 / 4, 32),
        (statistics.variance(first.values) / 3, 2),
        (statistics.variance(second.values) / 2, 1),
    ]
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(variance)
    found = compare_entries(first, second)
    assert found.way == PAIRED
    assert found.difference == pytest.approx(53 - 48.5)
    assert (found.low, found.high) == pytest.approx((4.5 - half, 4.5 + half))


def test_a_split_that_is_undefined_for_a_cell_is_left_out() -> None:
    halves = HALVES.copy()
    halves[0, 3, 1] = np.nan
    known = np.delete(HALVES, 3, axis=1)
    second = _told((48.0,), HALVES[3:4])
    found = compare_entries(_told((50.0,), halves[:1]), second)
    plain = compare_entries(_told((50.0,), known[:1]), _told((48.0,), known[3:4]))
    assert found == plain
    assert found.way == PAIRED


@pytest.mark.parametrize(
    ("changes", "way"),
    [
        ({}, PAIRED),
        ({"test_units": 19}, INDEPENDENT),
        ({"test_units": 100, "resting": 19.9}, INDEPENDENT),
        ({"test_units": 5, "resting": 20.0}, PAIRED),
        ({"halves": None}, INDEPENDENT),
        ({"halves": HALVES[:1, :9]}, INDEPENDENT),  # other splits
        ({"halves": np.full((1, 32, 2), np.nan)}, INDEPENDENT),
    ],
)
def test_entries_are_paired_only_with_enough_units_and_matching_halves(
    changes: dict[str, object], way: str
) -> None:
    first = replace(_told((50.0,), HALVES[:1]), **changes)  # type: ignore[arg-type]
    assert compare_entries(first, _told((48.0,), HALVES[1:2])).way == way


@pytest.mark.parametrize("known", [1, 2])
def test_two_splits_are_the_fewest(known: int) -> None:
    first, second = (_told((50.0,), HALVES[seed : seed + 1, :known]) for seed in (0, 1))
    assert compare_entries(first, second).way == (PAIRED if known == 2 else INDEPENDENT)


def test_independent_errors_add_up_on_the_sides_that_push_apart() -> None:
    """The cells have sides -10 and +3, and -4 and +6; if a side is missing, no interval exists."""
    first = _told((50.0, 50.0), None, both_low=40.0, both_high=53.0)
    second = _told((48.0, 48.0), None, both_low=44.0, both_high=54.0)
    found = compare_entries(first, second)
    assert (found.low, found.high) == pytest.approx((2 - math.hypot(10, 6), 2 + math.hypot(3, 4)))
    for lacking in ({"both_low": None}, {"both_high": None}):
        for pair in ((replace(first, **lacking), second), (first, replace(second, **lacking))):  # type: ignore[arg-type]
            none = compare_entries(*pair)
            assert (none.low, none.high, none.way, none.apart) == (None, None, None, False)
            assert none.difference == 2.0


@pytest.mark.parametrize(
    ("seeds", "private", "one"), [(1, True, True), (2, True, False), (1, False, False)]
)
def test_one_private_seed_leaves_out_the_noise_of_training(
    seeds: int, private: bool, one: bool
) -> None:
    alone = _told((50.0,) * seeds, None, private=private)
    many = _told((48.0, 50.0), None)
    assert compare_entries(alone, many).one_seed is one
    assert compare_entries(many, alone).one_seed is one
