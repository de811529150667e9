"""The random number of runs, of which the best is released."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpprobe.privacy.plan import Selection
from dpprobe.privacy.random_run_count import draw_runs, stopping_probability
from tests.support.mechanisms import best_of
from tests.support.number_of_runs import KINDS, generating


def probabilities(kind: Selection, most: int = 20_000) -> np.ndarray:
    """P[K = k] for k = 0, 1, ..., by the definitions."""
    if math.isinf(kind.shape):
        logs = [-kind.mean]
        for k in range(1, most):
            logs.append(logs[-1] + math.log(kind.mean / k))
        return np.exp(logs)
    gamma, shape = stopping_probability(kind), kind.shape
    first = (1 - gamma) / math.log(1 / gamma)
    if shape:
        first = shape * (1 - gamma) / (gamma**-shape - 1)
    values = [0.0, first]
    for k in range(1, most - 1):
        values.append(values[-1] * (1 - gamma) * (k + shape) / (k + 1))
    return np.array(values)


@pytest.mark.parametrize(("mean", "shape"), [*KINDS, (60, 100.0), (1000, 20.0), (2, 0.5)])
def test_the_number_of_runs_is_what_is_priced(mean: float, shape: float) -> None:
    kind = best_of(mean, shape)
    expected = probabilities(kind)
    assert expected.sum() == pytest.approx(1, abs=1e-9)
    assert expected @ np.arange(len(expected)) == pytest.approx(mean, rel=1e-6)
    x = np.array([0.1, 0.7, 0.99])
    powers = x[:, None] ** np.arange(len(expected))
    assert powers @ expected == pytest.approx(generating(kind, x), rel=1e-9)
    generator = np.random.Generator(np.random.SFC64(7))
    drawn = np.bincount([draw_runs(kind, generator) for _ in range(20_000)])
    likely = np.flatnonzero(expected * 20_000 > 20)
    counts = drawn[likely[likely < len(drawn)]]
    wanted = 20_000 * expected[likely[: len(counts)]]
    # Chi squared: beyond mean + 5 deviations with probability 1e-6.
    assert ((counts - wanted) ** 2 / wanted).sum() < len(counts) + 5 * math.sqrt(2 * len(counts))


def test_known_stopping_probabilities() -> None:
    assert stopping_probability(best_of(10, 1.0)) == pytest.approx(0.1, rel=1e-12)
    gamma = stopping_probability(best_of(10, 0.0))
    assert (1 / gamma - 1) / math.log(1 / gamma) == pytest.approx(10, rel=1e-9)
    near = stopping_probability(best_of(10, 1e-9))
    assert near == pytest.approx(gamma, rel=1e-6)
