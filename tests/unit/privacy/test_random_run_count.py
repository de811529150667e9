"""The number of runs is random, and the best run is released."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpprobe.privacy.random_run_count import draw_runs, runs_at
from tests.support.mechanisms import MEANS, generating


@pytest.mark.parametrize("mean", [*MEANS, 1.5])
def test_the_number_of_runs_has_the_priced_distribution(mean: float) -> None:
    law = stats.geom(1 / mean)
    expected = law.pmf(np.arange(40_000))
    x = np.array([0.1, 0.7, 0.99])
    powers = x[:, None] ** np.arange(len(expected))
    assert powers @ expected == pytest.approx(generating(mean, x), rel=1e-9)
    generator = np.random.Generator(np.random.SFC64(7))
    drawn = np.bincount([draw_runs(mean, generator) for _ in range(20_000)])
    likely = np.flatnonzero(expected * 20_000 > 20)
    counts = drawn[likely[likely < len(drawn)]]
    wanted = 20_000 * expected[likely[: len(counts)]]
    # A chi-square variable exceeds mean + 5 deviations with probability 1e-6.
    assert ((counts - wanted) ** 2 / wanted).sum() < len(counts) + 5 * math.sqrt(2 * len(counts))


@pytest.mark.parametrize("mean", [*MEANS, 1.5, 1000.0])
def test_quantiles_of_the_number_of_runs(mean: float) -> None:
    at = [0.0, 1e-9, 0.25, 0.5, 0.999, 1 - 1e-9]
    expected = np.maximum(stats.geom(1 / mean).ppf(at), 1)
    assert [runs_at(mean, each) for each in at] == expected.tolist()
