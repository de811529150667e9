"""Mechanisms and exact privacy computations, for tests of the accounting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import ndtr

from dpprobe.privacy.plan import Mechanism, Plan, Selection

# Sampling rate and number of steps of the sampled releases in `mixed`.
RATE, STEPS = 0.05, 60
# Means of the random number of runs, of which the best is released.
MEANS = [3.0, 10.0, 100.0]


def gaussians(noise: float, rate: float = 1.0, count: int = 1, name: str = "g") -> Mechanism:
    return Mechanism(
        name=name,
        released="a sum",
        sensitivity=1.0,
        noise_multiplier=noise,
        sample_rate=rate,
        count=count,
    )


def made_plan(mechanisms: Sequence[Mechanism], n: int, noise: float = 1.0, **values: Any) -> Plan:
    """Returns a plan whose noise is scaled by `noise` (0: no noise), with an arbitrary epsilon."""
    scaled = tuple(item.scale_noise(noise) for item in mechanisms)
    silent = not scaled or any(item.noise_multiplier == 0 for item in scaled)
    epsilon = values.pop("epsilon", math.inf if silent else 1.0)
    return Plan(
        mechanisms=scaled,
        n=n,
        epsilon=epsilon,
        delta=1e-5,
        accountant="pld",
        realised_epsilon=epsilon,
        **values,
    )


def mixed(noise: float, rate: float = RATE, count: int = STEPS) -> list[Mechanism]:
    """Returns an unsampled release with much noise, and sampled releases."""
    return [gaussians(8 * noise, name="covariance"), gaussians(noise, rate, count, "gradients")]


def best_of(mean: float, *repeated: str) -> Selection:
    return Selection(mean=mean, repeated=repeated or ("g",))


def generating(mean: float, x: np.ndarray) -> np.ndarray:
    """Returns E[x^K] for a geometric number of runs K, in closed form."""
    return x / (mean - (mean - 1) * x)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Returns delta of N(mu, 1) against N(0, 1), by quadrature of the definition."""

    def excess(x: float) -> float:
        return max(0.0, _normal(x - mu) - math.exp(epsilon) * _normal(x))

    start = epsilon / mu + mu / 2
    return sum(quad(excess, start + a, start + a + 1, epsabs=1e-18)[0] for a in range(12))


def exact_epsilon(mu: float, delta: float = 1e-5) -> float:
    """Returns the epsilon of mu-GDP by its definition (Dong, Roth and Su 2022, corollary 2.13)."""

    def excess(epsilon: float) -> float:
        first, second = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return float(ndtr(first) - math.exp(epsilon) * ndtr(second) - delta)

    return float(brentq(excess, 1e-9, 200, xtol=1e-13))


def sampled_delta(noise: float, rate: float, epsilon: float) -> float:
    """Returns delta of a sampled Gaussian release by quadrature, the larger of both directions."""
    x = np.linspace(-12 * noise, 1 + 12 * noise, 400_001)
    without = np.exp(-((x / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi))
    with_row = np.exp(-(((x - 1) / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi))
    mixture = (1 - rate) * without + rate * with_row
    return max(
        float(np.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0), x))
        for a, b in ((mixture, without), (without, mixture))
    )


def mixed_delta(mu: float, noise: float, rate: float, epsilon: float) -> float:
    """Returns delta of an unsampled mu-GDP release and a sampled one, by quadrature in 2D."""
    x = np.linspace(-12 * noise, 1 + 12 * noise, 1001)[:, None]
    y = np.linspace(-12, mu + 12, 1001)[None]
    without = _density(x / noise) * _density(y)
    with_row = ((1 - rate) * _density(x / noise) + rate * _density((x - 1) / noise)) * _density(
        y - mu
    )
    cell = (x[1, 0] - x[0, 0]) / noise * (y[0, 1] - y[0, 0])
    return max(
        float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * cell)
        for a, b in ((with_row, without), (without, with_row))
    )


def _density(x: np.ndarray) -> np.ndarray:
    density: np.ndarray = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return density


def _normal(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
