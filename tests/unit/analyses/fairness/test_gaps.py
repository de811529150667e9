"""Intervals of gaps: coverage, power for a planted gap, and no gaps by chance."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, norm

from dpprobe.analyses.fairness.comparison import (
    Comparison,
    compute_chance,
    compute_intervals,
    gap_of,
    measure_comparison,
)
from dpprobe.analyses.fairness.fairness_record import Gap
from dpprobe.analyses.fairness.gaps import (
    Groups,
    count_units,
    gap_difference,
    mean_gap_interval,
    smallest_deviation,
)
from dpprobe.analyses.fairness.group_metrics import Resamples
from tests.support.fairness_rows import compare, head, made_rows

TRIALS = 150
ROWS = 300
# With 150 trials at 95%, 133 to 149 succeed, except once in a thousand cases.
LEAST = 132.5 / TRIALS


@lru_cache
def _compared(groups: tuple[int, ...]) -> Comparison:
    """Returns a comparison of accuracy, in which labels do not matter."""
    rows = made_rows(np.zeros(len(groups), dtype=np.int64), {"site": groups}, classes=3)
    return compare(rows, "accuracy")


@lru_cache(maxsize=TRIALS)
def _resamples(rows: int, seed: int) -> Resamples:
    return Resamples(rows, 200, seed=seed)


def _trial(
    seed: int, accuracies: np.ndarray, others: np.ndarray, groups: np.ndarray | None = None
) -> Gap:
    """Returns the gap of a cell with these accuracies per group, against a reference."""
    groups = np.arange(ROWS) % len(accuracies) if groups is None else groups
    comparison = _compared(tuple(groups.tolist()))
    # shared: rows that are hard for one cell are hard for the other
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
    # The gap is misleading, but the gap by chance exposes it.
    chance = np.mean([gap.chance_gap for gap in gaps])
    assert 0 < np.mean([gap.gap > gap.chance_gap for gap in gaps]) < 1 - LEAST  # type: ignore[operator]
    assert chance > 0.09


@pytest.mark.parametrize("missing", [0.0, 0.4, 0.9, 1.0])
@pytest.mark.parametrize("metric", ["calibration_error", "recall"])
def test_chance_equals_that_of_random_groups_with_a_metric(missing: float, metric: str) -> None:
    generator = np.random.default_rng(0)
    shuffled = generator.random((3, 50))
    shuffled[generator.random((3, 50)) < missing] = np.nan
    whole = {"compute_whole": lambda *_: np.array([0.2, 0.4])}
    of_groups = {"compute_shuffled": lambda *_: shuffled[None]}
    made: Any = SimpleNamespace(ways=0, metric=metric, **of_groups, **whole)
    gap, (excess,), (spread,) = compute_chance(made, SimpleNamespace(), _resamples(2, 0))  # type: ignore[arg-type]
    groups, ways = ([one[np.isfinite(one)] for one in each] for each in (shuffled, shuffled.T))
    gaps = [np.ptp(one) for one in ways if len(one) > 1]
    assert gap == (pytest.approx(np.quantile(gaps, 0.95)) if gaps else None)
    beyond = [one.mean() - 0.3 if len(one) and "error" in metric else 0.0 for one in groups]
    np.testing.assert_allclose(excess, beyond)
    np.testing.assert_allclose(spread, [one.std() if len(one) else 0.0 for one in groups])


def test_the_error_of_a_difference_leaves_out_what_both_groups_share() -> None:
    """Values of groups with the same patients rise and fall together in resamples."""
    shared, own = np.random.default_rng(0).normal(size=(2, 4000))
    drawn = np.stack([shared + 0.1 * own, shared - 0.1 * own, 3 * own])
    none = np.zeros((1, 3))
    (errors,) = Groups.prepare_groups(none, drawn[None], least=none, excess=none).errors
    for first in range(3):
        wanted = (drawn[first] - drawn).std(axis=1)
        np.testing.assert_allclose(errors[first], wanted, rtol=1e-3, atol=1e-3)
    assert errors[0, 1] < 0.25 < 1 < errors[0, 2]


def test_one_outlying_head_does_not_raise_the_lower_bound_of_the_mean_gap() -> None:
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
    """Cases: a group of 40 rows, or two views of 500 patients with one row each."""
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
    """Returns two groups whose resamples are independent and normal."""
    drawn = np.random.default_rng(seed).normal(size=(1, 2, 20_000), scale=0.05)
    none = np.zeros((1, 2))
    return Groups.prepare_groups(np.array([values]), drawn, least=none, excess=none)


def test_the_interval_bounds_of_two_groups_use_normal_quantiles() -> None:
    groups, others = _two_groups([0.9, 0.5], 0), _two_groups([0.7, 0.6], 1)
    error = 0.05 * 2**0.5
    low, high = groups.gap_interval(0.95)
    assert (0.4 - low) / error == pytest.approx(1.96, abs=0.04)
    assert (high - 0.4) / error == pytest.approx(1.96, abs=0.04)
    between, low, high = gap_difference([groups], [others], 0.95)
    assert between == pytest.approx(0.3)
    # each end leaves out half of 5%, and is the extreme of two pairs
    for distance in (between - low, high - between):
        assert distance / (2**0.5 * error) == pytest.approx(2.24, abs=0.06)


def test_intervals_of_groups_are_central_quantiles_of_resamples() -> None:
    drawn = np.random.default_rng(0).normal(size=(1, 1, 20_000), scale=0.05) + 0.7
    low, high = compute_intervals(
        np.full((1, 1), 0.6), drawn.astype(np.float32), np.full((1, 1), 100.0), 0.95
    )
    assert (0.6 - low.item()) / 0.05 == pytest.approx(1.96, abs=0.04)
    assert (high.item() - 0.6) / 0.05 == pytest.approx(1.96, abs=0.04)


def test_no_two_resamples_are_alike() -> None:
    counts = np.concatenate(Resamples(50, 300, seed=3).blocks, axis=1)
    assert counts.shape == (50, 301)
    assert len(np.unique(counts, axis=1).T) == 301


def test_deviations_of_gaps_use_only_resamples_that_contain_both_groups() -> None:
    """Means and deviations of differences use only resamples that have both groups."""
    generator = np.random.default_rng(4)
    drawn = 0.5 + 0.1 * generator.normal(size=(1, 3, 400))
    drawn[0, 0, :100] = np.nan
    none = np.zeros((1, 3))
    groups = Groups.prepare_groups(np.full((1, 3), 0.5), drawn, least=none, excess=none)
    apart = drawn[0] - np.nanmean(drawn[0], axis=1, keepdims=True)
    np.testing.assert_allclose(groups.deviations[0], apart, atol=1e-6)
    for one in range(3):
        for other in range(3):
            wanted = np.sqrt(np.nanmean((apart[one] - apart[other]) ** 2))
            assert groups.errors[0, one, other] == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_deviations_have_a_least_and_values_lose_their_excess() -> None:
    values, least = np.array([[0.9, 0.4]]), np.array([[0.03, 0.04]])
    excess = np.array([[0.1, 0.2]])
    still = np.repeat(values[..., None], 50, axis=2)
    groups = Groups.prepare_groups(values, still, least=least, excess=excess)
    # independent groups, whose minimum deviations are 0.03 and 0.04
    assert groups.errors[0, 0, 1] == pytest.approx(0.05)
    assert groups.corrected == pytest.approx(np.array([[0.8, 0.2]]))
    assert groups.gap == pytest.approx(0.5), "the gap itself is of the values"
    low, high = groups.gap_interval(0.95)
    assert (0.6 - low, high - 0.6) == pytest.approx((1.96 * 0.05, 1.96 * 0.05), abs=1e-4)
    assert groups.extremes == (0, 0, 1)
    distance, moved = groups.gap_spread
    assert distance == pytest.approx(0.6)
    assert np.abs(moved).max() < 1e-12


def test_of_several_columns_the_one_with_the_largest_gap_counts() -> None:
    values = np.array([[0.5, 0.6, 0.55], [0.9, 0.2, 0.4]])
    none = np.zeros((2, 3))
    groups = Groups.prepare_groups(values, values[..., None] + np.zeros(7), least=none, excess=none)
    assert groups.gap == pytest.approx(0.7)
    assert groups.extremes == (1, 0, 1)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_bounds_of_several_heads_are_means_and_contain_the_mean_gap(level: float) -> None:
    heads = [_two_groups([0.5 + step, 0.5], seed) for seed, step in enumerate((0.3, 0.0, 0.2))]
    ends = np.array([each.gap_interval(level) for each in heads])
    low, high = mean_gap_interval(heads, level)
    assert ends[1, 0] < 0, "a head's bound may be negative; the mean is what is cut"
    assert low == pytest.approx(max(0.0, ends[:, 0].mean()))
    assert high == pytest.approx(ends[:, 1].mean())
    alike = [_two_groups([0.5, 0.5], seed) for seed in range(3)]
    assert mean_gap_interval(alike, level)[0] == 0.0


def test_without_resamples_the_gap_interval_starts_at_zero_and_contains_the_gap() -> None:
    values, least = np.array([[1.0, 1.0, 0.4]]), np.full((1, 3), 0.05)
    lost = Groups.prepare_groups(
        values, np.full((1, 3, 5), np.nan), least=least, excess=np.zeros((1, 3))
    )
    low, high = mean_gap_interval([lost], 0.95)
    assert low == 0.0
    assert high == pytest.approx(0.6 + 1.96 * 0.05 * 2**0.5, abs=1e-4)


def test_differences_of_gaps_are_antisymmetric_and_none_from_oneself() -> None:
    heads = [_two_groups([0.9, 0.5], 0), _two_groups([0.8, 0.5], 1)]
    others = [_two_groups([0.7, 0.6], 2)]
    between, low, high = gap_difference(heads, others, 0.9)
    back, lower, upper = gap_difference(others, heads, 0.9)
    assert between == pytest.approx(0.35 - 0.1)
    assert (back, lower, upper) == pytest.approx((-between, -high, -low))
    same, low, high = gap_difference(others, others, 0.9)
    assert same == 0.0
    assert low <= 0.0 <= high
    assert high - low < 0.02, "equal deviations cancel"


@pytest.mark.parametrize("units", [1, 40, 1000])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_least_deviation_is_wilsons_half_width_at_0_over_z(
    units: int, confidence: float
) -> None:
    interval = binomtest(0, units).proportion_ci(confidence, method="wilson")
    wanted = interval.high / 2 / norm.ppf((1 + confidence) / 2)
    found = smallest_deviation(np.array([float(units)]), confidence)
    assert found == pytest.approx(wanted)


def test_the_units_of_a_mean_equal_those_of_its_mean_deviation() -> None:
    """Labels with 1 and 4 units have deviations 1 and 1/2, as 1 / 0.75^2 units; 0 counts as 1."""
    found = count_units(np.array([[1, 4], [0, 100], [30, 30]]))
    assert found == pytest.approx([1 / 0.75**2, 1 / 0.55**2, 30])


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_an_interval_at_the_end_of_what_a_share_can_be_is_joined_with_wilsons(level: float) -> None:
    """Cases: all rows right, none right, and half right without a resample that has the group."""
    values = np.array([[1.0, 0.0, 0.5]])
    drawn = np.repeat(values[..., None], 61, axis=2).astype(np.float32)
    drawn[0, 2] = np.nan
    low, high = compute_intervals(values, drawn, np.full((1, 3), 20.0), level)
    for place, right in enumerate((20, 0, 10)):
        wilson = binomtest(right, 20).proportion_ci(level, method="wilson")
        assert low[0, place] == pytest.approx(wilson.low, abs=1e-9)
        assert high[0, place] == pytest.approx(wilson.high, abs=1e-9)


def test_an_interval_s_ends_are_ranks_of_the_resamples_that_have_the_group() -> None:
    """Of 21 values from -0.1 to 0.1 around 0.5, the third and the nineteenth are the 80% ends."""
    drawn = np.linspace(0.4, 0.6, 21)[None, None]
    lost = np.concatenate([drawn, np.full((1, 1, 9), np.nan)], axis=2)
    for resamples in (drawn, lost):
        low, high = compute_intervals(
            np.full((1, 1), 0.7), resamples.astype(np.float32), np.full((1, 1), 9.0), 0.8
        )
        assert (low.item(), high.item()) == pytest.approx((0.62, 0.78), abs=1e-6)


def test_an_interval_that_touches_0_is_joined_with_wilsons_there_too() -> None:
    """No resample can fall below the lower end, which is exactly 0."""
    one, three = np.full((1, 1), 0.125), np.array([[[0.0, 0.125, 0.25]]], dtype=np.float32)
    low, high = compute_intervals(one, three, np.full((1, 1), 24.0), 0.95)
    wilson = binomtest(3, 24).proportion_ci(0.95, method="wilson")
    assert (low.item(), high.item()) == pytest.approx((0.0, max(0.25, wilson.high)))
