"""Noisy recalls of a released head: sensitivity, intervals, and when nothing can be measured."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpprobe.release.parts.evaluation.class_recalls import (
    count_answers,
    estimate_recalls,
    fewest_units,
)
from dpprobe.results.unit_counts import row_weights


@pytest.mark.parametrize("patients", [False, True])
def test_a_unit_moves_the_table_by_at_most_one(patients: bool) -> None:
    generator = np.random.default_rng(0)
    rows, classes = 60, 4
    labels = generator.integers(0, classes, rows)
    right = generator.random(rows) < 0.5
    units = np.arange(rows) // (3 if patients else 1)
    weights = row_weights(units)
    assert (weights is None) == (not patients)
    weights = np.ones(rows) if weights is None else weights
    whole = count_answers(right, labels, weights, classes)
    assert whole.sum() == pytest.approx(weights.sum())
    longest = 0.0
    for unit in np.unique(units):
        without = count_answers(right, labels, np.where(units == unit, 0.0, weights), classes)
        longest = max(longest, float(np.linalg.norm(whole - without)))
    assert longest <= 1 + 1e-9
    assert longest > 0.5, "the test would pass for a table of nothing"


@pytest.mark.parametrize(
    ("units", "recalls", "deviation"),
    [
        ((1000, 60), (0.98, 0.3), 3.7),  # a rare disease, mostly missed
        ((200, 30), (0.99, 0.9), 1.7),
        ((100,) * 20, (0.7,) * 20, 7.0),
    ],
)
def test_intervals_cover(
    units: tuple[int, ...], recalls: tuple[float, ...], deviation: float
) -> None:
    """Of 2,000 tests, 93% and more: a coverage of 95% falls below with a chance of 6e-5."""
    generator, runs = np.random.default_rng(1), 2000
    n, p = np.array(units), np.array(recalls)
    covered = worst_covered = 0
    for _ in range(runs):
        right = generator.binomial(n, p)
        table = np.stack([right, n - right], axis=1)
        told = estimate_recalls(table + generator.normal(0, deviation, table.shape), deviation)
        assert told.worst is not None
        covered += told.low <= p.mean() <= told.high
        worst_covered += told.worst_low <= p.min() <= told.worst_high
    assert covered / runs >= 0.93
    assert worst_covered / runs >= 0.93


def test_a_class_that_is_too_rare_leaves_nothing_measured() -> None:
    deviation = 3.7
    few = fewest_units(deviation)
    told = estimate_recalls([[500.0, 10.0], [few, 0.0]], deviation)
    assert (told.worst, told.mean, told.low, told.high) == (None, 0.5, 0.0, 1.0)
    told = estimate_recalls([[500.0, 10.0], [few + 2, -1.0]], deviation)
    assert told.worst == 0
    assert told.low <= told.mean <= told.high <= 1
    assert told.worst_low <= told.worst_recall <= told.worst_high


def test_right_answers_stand_first_in_the_table() -> None:
    right, labels = np.array([True, False, False]), np.array([0, 0, 1])
    assert count_answers(right, labels, np.ones(3), 2).tolist() == [[1, 1], [0, 1]]


def test_a_class_needs_four_deviations_of_its_two_counts() -> None:
    assert fewest_units(3.7) == pytest.approx(4 * math.hypot(3.7, 3.7))
    assert fewest_units(1e-9) == 1


def test_the_error_of_the_mean_is_that_of_draws() -> None:
    generator, n, p, deviation = np.random.default_rng(1), 1000, np.array([0.5, 0.8]), 30.0
    right = generator.binomial(n, p, (2000, 2))
    tables = np.stack([right, n - right], axis=2) + generator.normal(0, deviation, (2000, 2, 2))
    told = [estimate_recalls(table, deviation) for table in tables]
    spread = np.std([one.mean for one in told])
    assert np.mean([one.standard_error for one in told]) == pytest.approx(spread, rel=0.1)
