"""Noisy recalls of a released head: intervals, and when nothing can be measured."""

from __future__ import annotations

import numpy as np
import pytest

from dpprobe.release.parts.evaluation.class_recalls import estimate_recalls


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
        noisy = table + generator.normal(0, deviation, table.shape)
        mean, worst = estimate_recalls(noisy, deviation)
        assert worst is not None
        covered += mean.low <= p.mean() <= mean.high
        worst_covered += worst.low <= p.min() <= worst.high
    assert covered / runs >= 0.93
    assert worst_covered / runs >= 0.93


def test_the_error_of_the_mean_is_that_of_draws() -> None:
    generator, n, p, deviation = np.random.default_rng(1), 1000, np.array([0.5, 0.8]), 30.0
    right = generator.binomial(n, p, (2000, 2))
    tables = np.stack([right, n - right], axis=2) + generator.normal(0, deviation, (2000, 2, 2))
    told = [estimate_recalls(table, deviation)[0] for table in tables]
    spread = np.std([one.value for one in told])
    assert np.mean([one.standard_error for one in told]) == pytest.approx(spread, rel=0.1)
