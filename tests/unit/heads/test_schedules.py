"""Learning rates over the steps, and averages of iterates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.schedules import learning_rates, mixing_rates
from dpprobe.heads.sgd import Options


def test_schedules() -> None:
    assert learning_rates(Options(learning_rate=0.3), 4).tolist() == [0.3] * 4
    linear = Options(learning_rate=0.4, schedule="warmup_linear", warmup=0.4)
    np.testing.assert_allclose(
        learning_rates(linear, 10),
        np.array([0.1, 0.2, 0.3, 0.4, 0.4, 0.4 * 5 / 6, 0.4 * 4 / 6, 0.2, 0.4 / 3, 0.4 / 6]),
    )
    cosine = Options(learning_rate=0.4, schedule="warmup_cosine", warmup=0.2)
    actual = learning_rates(cosine, 10)
    np.testing.assert_allclose(actual[:3], [0.2, 0.4, 0.4])
    np.testing.assert_allclose(actual[6], 0.2)  # half way through the eight that fall
    np.testing.assert_allclose(actual[9], 0.2 * (1 + math.cos(math.pi * 7 / 8)))
    assert np.all(np.diff(actual[2:]) < 0)


@pytest.mark.parametrize("schedule", ["constant", "warmup_cosine", "warmup_linear"])
@pytest.mark.parametrize("warmup", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 3, 100])
def test_every_step_has_a_positive_learning_rate(schedule: Any, warmup: float, steps: int) -> None:
    if schedule == "constant":
        warmup = 0.0
    actual = learning_rates(Options(schedule=schedule, warmup=warmup, learning_rate=2.0), steps)
    assert actual.shape == (steps,)
    assert actual.min() > 0
    assert actual.max() == pytest.approx(2.0)


def averaged(options: GradientOptions, values: np.ndarray) -> list[float]:
    mixing = mixing_rates(options, len(values))
    assert mixing is not None
    average, seen = 123.0, []
    for value, rate in zip(values, mixing, strict=True):
        average += rate * (value - average)
        seen.append(average)
    return seen


def test_averages() -> None:
    values = np.random.default_rng(1).normal(size=50)
    assert mixing_rates(Options(), 50) is None
    mean = averaged(Options(average="mean"), values)
    np.testing.assert_allclose(mean, np.cumsum(values) / np.arange(1, 51))
    for decay in (0.5, 0.9, 0.9999):
        raw, wanted = 0.0, []
        for taken, value in enumerate(values, start=1):
            raw = decay * raw + (1 - decay) * value
            wanted.append(raw / (1 - decay**taken))
        actual = averaged(Options(average="ema", ema_decay=decay), values)
        # One average is 2e-6, the small difference of larger numbers.
        np.testing.assert_allclose(actual, wanted, rtol=1e-9, atol=1e-13)
    # Debiased, a constant is its own average from the first step on.
    np.testing.assert_allclose(averaged(Options(average="ema"), np.full(5, 3.0)), 3.0)
