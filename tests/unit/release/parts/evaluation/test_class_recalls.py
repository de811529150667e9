"""Noisy recalls of a released head: intervals, and cases without a measurement."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dpprobe.release.parts.evaluation.class_recalls import (
    Estimate,
    Worst,
    count_answers,
    estimate_recalls,
)


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
    """At least 93% of 2,000 intervals cover; at 95% coverage, fewer have a chance of 6e-5."""
    generator, runs = np.random.default_rng(1), 2000
    n, p = np.array(units), np.array(recalls)
    covered = worst_covered = 0
    for _ in range(runs):
        right = generator.binomial(n, p)
        table = np.stack([right, n - right], axis=1)
        noisy = table + generator.normal(0, deviation, table.shape)
        mean, worst = estimate_recalls(noisy, deviation)
        assert worst is not None
        covered += mean.low <= p.mean() <= mean.high
        worst_covered += worst.low <= p.min() <= worst.high
    assert covered / runs >= 0.93
    assert worst_covered / runs >= 0.93


def test_the_error_of_the_mean_equals_that_of_draws() -> None:
    generator, n, p, deviation = np.random.default_rng(1), 1000, np.array([0.5, 0.8]), 30.0
    right = generator.binomial(n, p, (2000, 2))
    tables = np.stack([right, n - right], axis=2) + generator.normal(0, deviation, (2000, 2, 2))
    told = [estimate_recalls(table, deviation)[0] for table in tables]
    spread = np.std([one.value for one in told])
    assert np.mean([one.standard_error for one in told]) == pytest.approx(spread, rel=0.1)


def plain_recalls(table: Any, deviation: float) -> tuple[Estimate, Worst]:
    """Computes the module's formulas class by class."""
    classes, per_class = len(table), []
    for right, wrong in table:
        m = right + wrong
        p = min(max(right / m, 0), 1)
        m -= deviation * math.sqrt(2)  # measured classes tend to have had luck
        ends = []
        for alpha in (0.05, 0.05 / classes):
            z = norm.ppf(1 - alpha / 2)
            moved = (p * m + z**2 / 2) / (m + z**2)
            noise = deviation**2 * (p**2 + (1 - p) ** 2) / m**2
            ends.append(math.sqrt(moved * (1 - moved) / m + noise) * np.array([1, z]))
        per_class.append((p, ends[0][0], ends[1][1]))
    recalls, errors, reach = (np.array(each) for each in zip(*per_class, strict=True))
    mean, error = recalls.mean(), math.hypot(*errors) / classes
    place = int(recalls.argmin())
    low, high = (max(0, (recalls - reach).min()), min(1, (recalls + reach).min()))
    z = norm.ppf(0.975)
    return (
        Estimate(mean, max(0, mean - z * error), min(1, mean + z * error), error),
        Worst(place, recalls[place], low, max(high, recalls[place])),
    )


@pytest.mark.parametrize("deviation", [0.01, 3.0])
@pytest.mark.parametrize(
    "table",
    [
        [(80, 20), (90, 60)],
        [(50, 0), (300, 3)],
        [(3, 97), (60, 40), (45, 45)],
        [(101, -1), (70, 30), (70, 30), (-2, 99)],
    ],
    ids=str,
)
def test_recalls_equal_a_plain_loop(table: Any, deviation: float) -> None:
    found, worst = estimate_recalls(table, deviation)
    expected, lowest = plain_recalls(table, deviation)
    assert found == pytest.approx(expected)
    assert worst == pytest.approx(lowest)


def test_a_class_must_exceed_four_deviations_and_one_unit() -> None:
    nothing = Estimate(1 / 3, 0.0, 1.0, 0.5), None
    limit = 4 * 2.0 * math.sqrt(2)
    for units, measured in ((limit * 0.999, False), (limit * 1.001, True)):
        found = estimate_recalls([(units, 0.0), (90, 9), (9, 90)], 2.0)
        assert (found[1] is not None) == measured
        assert measured or found == nothing
    assert estimate_recalls([(1.0, 0), (3, 2), (0, 9)], 0.1) == nothing
    assert estimate_recalls([(1.0 + 1e-6, 0), (3, 2), (0, 9)], 0.1)[1] is not None


def test_right_and_wrong_answers_have_their_places() -> None:
    right = np.array([True, False, True, True, False])
    labels = np.array([0, 0, 2, 2, 1])
    units = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    expected = [[1, 2], [0, 16], [12, 0], [0, 0]]
    assert count_answers(right, labels, units, 4).tolist() == expected
