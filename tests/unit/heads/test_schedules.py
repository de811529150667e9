"""Learning rates over the steps, and averages of iterates."""

from __future__ import annotations

import numpy as np

from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.schedules import mixing_rates
from dpprobe.heads.sgd import Options


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
