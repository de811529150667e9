"""Intervals of gaps: their coverage, a disparity that is there, and one that is not."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.fairness.comparison import (
    Comparison,
    _compute_chance,
    _compute_intervals,
    gap_of,
    measure_comparison,
)
from dpprobe.analyses.fairness.fairness_record import Gap
from dpprobe.analyses.fairness.gaps import Groups, gap_difference, mean_gap_interval
from dpprobe.analyses.fairness.group_metrics import Resamples
from tests.support.fairness_rows import compare, head, made_rows

TRIALS = 150
ROWS = 300
# Of 150 trials with 95% chance, at least 133 succeed, and not all: wrong in one case of a thousand.
LEAST = 132.5 / TRIALS


@lru_cache
def _compared(groups: tuple[int, ...]) -> Comparison:
    """The accuracy of groups, which depends on which rows are right, but not on their labels."""
    rows = made_rows(np.zeros(len(groups), dtype=np.int64), {"site": groups}, classes=3)
    return compare(rows, "accuracy")


@lru_cache(maxsize=TRIALS)
def _resamples(rows: int, seed: int) -> Resamples:
    return Resamples(rows, 200, seed=seed)


def _trial(
    seed: int, accuracies: np.ndarray, others: np.ndarray, groups: np.ndarray | None = None
) -> Gap:
    """The gap in accuracy of a cell whose groups are right so often, against a reference."""
    groups = np.arange(ROWS) % len(accuracies) if groups is None else groups
    comparison = _compared(tuple(groups.tolist()))
    # shared: what is hard for one cell is hard for the other
    luck = np.random.default_rng(seed).random(len(groups))
    resamples, once = _resamples(len(groups), seed), Resamples(len(groups), 0, seed=0)
    heads = [
        head(comparison.rows, np.eye(3)[(luck > of[groups]).astype(int)])
        for of in (accuracies, others)
    ]
    measured = [measure_comparison(comparison, [each], resamples, once, 0.95) for each in heads]
    return gap_of(measured[0], measured[1].heads, 0.95)


def _trials(accuracies: list[float], others: list[float]) -> list[Gap]:
    return [_trial(seed, np.array(accuracies), np.array(others)) for seed in range(TRIALS)]


def _covered(gaps: list[Gap], truth: float) -> float:
    return float(np.mean([gap.low <= truth <= gap.high for gap in gaps]))  # type: ignore[operator]


def _differences_covered(gaps: list[Gap], truth: float) -> float:
    ends = np.array([(gap.difference_low, gap.difference_high) for gap in gaps])
    return float(np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1])))


def test_of_two_groups_a_planted_gap_is_covered_as_often_as_said_and_seen() -> None:
    gaps = _trials([0.85, 0.6], [0.9, 0.9])
    assert LEAST < _covered(gaps, 0.25) < 1
    assert np.mean([gap.is_apart for gap in gaps]) > 0.99
    assert _differences_covered(gaps, 0.25) > LEAST
    assert np.mean([gap.difference_low > 0 for gap in gaps]) > 0.75  # type: ignore[operator]


@pytest.mark.parametrize("groups", [2, 6])
def test_where_groups_are_alike_no_gap_is_seen(groups: int) -> None:
    gaps = _trials([0.7] * groups, [0.8] * groups)
    assert LEAST < _covered(gaps, 0.0) < 1
    assert np.mean([gap.difference_low > 0 for gap in gaps]) < 1 - LEAST  # type: ignore[operator]
    # The gap itself misleads, and the gap by chance says so.
    chance = np.mean([gap.chance_gap for gap in gaps])
    assert 0 < np.mean([gap.gap > gap.chance_gap for gap in gaps]) < 1 - LEAST  # type: ignore[operator]
    assert chance > 0.09


def test_of_many_small_groups_that_are_mostly_right_none_stands_out() -> None:
    """Beside a large group: one of 30 rows that happens to be all right hardly varies."""
    groups = np.repeat(np.arange(10), [600] + [30] * 9)
    alike = np.full(10, 0.89)
    gaps = [_trial(seed, alike, alike + 0.04, groups) for seed in range(TRIALS)]
    assert _covered(gaps, 0.0) > LEAST
    assert np.mean([gap.is_apart for gap in gaps]) < 1 - LEAST


def test_of_several_groups_the_interval_covers_at_least_as_often_as_said() -> None:
    gaps = _trials([0.8, 0.8, 0.8, 0.55], [0.85, 0.85, 0.85, 0.75])
    assert _covered(gaps, 0.25) > LEAST
    assert _differences_covered(gaps, 0.15) > LEAST
    assert np.mean([gap.worst_group == "3" for gap in gaps]) > 0.9


@pytest.mark.parametrize("missing", [0.0, 0.4, 0.9, 1.0])
@pytest.mark.parametrize("metric", ["calibration_error", "recall"])
def test_chance_is_that_of_random_groups_with_a_metric(missing: float, metric: str) -> None:
    generator = np.random.default_rng(0)
    shuffled = generator.random((3, 50))
    shuffled[generator.random((3, 50)) < missing] = np.nan
    whole = {"compute_whole": lambda *_: np.array([0.2, 0.4])}
    of_groups = {"compute_shuffled": lambda *_: shuffled[None]}
    made: Any = SimpleNamespace(ways=0, metric=metric, **of_groups, **whole)
    gap, (excess,), (spread,) = _compute_chance(made, SimpleNamespace(), _resamples(2, 0))  # type: ignore[arg-type]
    groups, ways = ([one[np.isfinite(one)] for one in each] for each in (shuffled, shuffled.T))
    gaps = [np.ptp(one) for one in ways if len(one) > 1]
    assert gap == (pytest.approx(np.quantile(gaps, 0.95)) if gaps else None)
    beyond = [one.mean() - 0.3 if len(one) and "error" in metric else 0.0 for one in groups]
    np.testing.assert_allclose(excess, beyond)
    np.testing.assert_allclose(spread, [one.std() if len(one) else 0.0 for one in groups])


def test_the_error_of_a_difference_leaves_out_what_both_groups_share() -> None:
    """Groups of the same patients go up and down together in resamples."""
    shared, own = np.random.default_rng(0).normal(size=(2, 4000))
    drawn = np.stack([shared + 0.1 * own, shared - 0.1 * own, 3 * own])
    none = np.zeros((1, 3))
    (errors,) = Groups.prepare_groups(none, drawn[None], least=none, excess=none).errors
    for first in range(3):
        wanted = (drawn[first] - drawn).std(axis=1)
        np.testing.assert_allclose(errors[first], wanted, rtol=1e-3, atol=1e-3)
    assert errors[0, 1] < 0.25 < 1 < errors[0, 2]


def test_one_head_of_several_that_stands_out_lifts_no_bound() -> None:
    drawn = np.random.default_rng(0).normal(size=(1, 2, 500), scale=0.1)
    none = np.zeros((1, 2))
    heads = [
        Groups.prepare_groups(np.array([[0.5 + gap, 0.5]]), drawn, least=none, excess=none)
        for gap in (0.5, 0.0, 0.0, 0.0, 0.0)
    ]
    assert mean_gap_interval(heads[:1], 0.95)[0] > 0.1
    low, high = mean_gap_interval(heads, 0.95)
    assert low == 0
    assert high > 0.1


@pytest.mark.parametrize("shared", [False, True])
def test_a_calibration_error_that_rows_explain_is_not_taken_for_a_gap(shared: bool) -> None:
    """Of a small group; or of two views, whose patients have a row of either."""
    seen, chances, gaps, plain = 0, [], [], 0
    groups = np.tile([0, 1], 500) if shared else (np.arange(1000) < 40).astype(int)
    units, count = (np.repeat(np.arange(500), 2), 500) if shared else (None, 1000)
    for seed in range(40):
        generator = np.random.default_rng(seed)
        scores = generator.normal(size=(1000, 1)) * 1.5
        labels = (generator.random((1000, 1)) < 1 / (1 + np.exp(-scores))).astype(int)
        rows = made_rows(labels, {"site": groups.tolist()}, units=units)
        calibration, accuracy = (
            gap_of(
                measure_comparison(
                    compare(rows, metric),
                    [head(rows, scores)],
                    Resamples(count, 200, seed=seed),
                    Resamples(count, 0, seed=0),
                    0.95,
                ),
                None,
                0.95,
            )
            for metric in ("calibration_error", "accuracy")
        )
        seen += calibration.is_apart
        plain += (calibration.gap or 0.0) > 0.05
        chances.append(accuracy.chance_gap or 0.0)
        gaps.append(accuracy.gap or 0.0)
    assert seen <= 6 + (not shared)
    assert shared or plain > 33
    assert np.mean(chances) == pytest.approx(np.quantile(gaps, 0.95), rel=0.4)


def _two_groups(values: list[float], seed: int) -> Groups:
    """Two groups whose resamples are independent and normal."""
    drawn = np.random.default_rng(seed).normal(size=(1, 2, 20_000), scale=0.05)
    none = np.zeros((1, 2))
    return Groups.prepare_groups(np.array([values]), drawn, least=none, excess=none)


def test_bounds_of_two_groups_are_normal_quantiles() -> None:
    groups, others = _two_groups([0.9, 0.5], 0), _two_groups([0.7, 0.6], 1)
    error = 0.05 * 2**0.5
    low, high = groups.gap_interval(0.95)
    assert (0.4 - low) / error == pytest.approx(1.96, abs=0.04)
    assert (high - 0.4) / error == pytest.approx(1.96, abs=0.04)
    between, low, high = gap_difference([groups], [others], 0.95)
    assert between == pytest.approx(0.3)
    # either end leaves out half of 5%, and of either end two pairs are looked at
    for distance in (between - low, high - between):
        assert distance / (2**0.5 * error) == pytest.approx(2.24, abs=0.06)


def test_intervals_of_groups_are_central_quantiles_of_resamples() -> None:
    drawn = np.random.default_rng(0).normal(size=(1, 1, 20_000), scale=0.05) + 0.7
    low, high = _compute_intervals(
        np.full((1, 1), 0.6), drawn.astype(np.float32), np.full((1, 1), 100.0), 0.95
    )
    assert (0.6 - low.item()) / 0.05 == pytest.approx(1.96, abs=0.04)
    assert (high.item() - 0.6) / 0.05 == pytest.approx(1.96, abs=0.04)


def test_no_two_resamples_are_alike() -> None:
    counts = np.concatenate(Resamples(50, 300, seed=3).blocks, axis=1)
    assert counts.shape == (50, 301)
    assert len(np.unique(counts, axis=1).T) == 301
