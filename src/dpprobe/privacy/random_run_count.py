"""The random number of runs of a repeated run, drawn here and priced in `best_of_runs_price`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpprobe.privacy.plan import Selection

if TYPE_CHECKING:
    import numpy as np


def stopping_probability(selection: Selection) -> float:
    """Computes gamma of a truncated negative binomial (Papernot and Steinke 2022, definition 1)."""
    from scipy.optimize import brentq

    shape = selection.shape

    def mean_surplus(log_gamma: float) -> float:
        odds = math.expm1(-log_gamma)  # 1 / gamma - 1
        return math.log(odds * _over_one_minus_power(log_gamma, shape) / selection.mean)

    return math.exp(brentq(mean_surplus, -60.0, -1e-9, xtol=1e-14, rtol=1e-14))


def _over_one_minus_power(log_gamma: float, shape: float) -> float:
    """Computes shape / (1 - gamma^shape), or its limit at shape 0."""
    power = shape * log_gamma
    return shape / -math.expm1(power) if power < -1e-12 else -1 / log_gamma


def draw_runs(selection: Selection, generator: np.random.Generator) -> int:
    """Draws the number of runs from the distribution that epsilon assumes.

    Papernot and Steinke 2022, definition 1: a Poisson variable whose mean is Gamma distributed; a
    draw of 0 is repeated. Shapes below 1, where 0 is likely, are inverted.
    """
    if math.isinf(selection.shape):
        return int(generator.poisson(selection.mean))
    gamma, shape = stopping_probability(selection), selection.shape
    stay = 1 - gamma
    if shape >= 1:
        while True:
            runs = int(generator.poisson(generator.gamma(shape) * stay / gamma))
            if runs:
                return runs
    return _runs_of_small_shape(gamma, shape, generator.random())


def _runs_of_small_shape(gamma: float, shape: float, at: float) -> int:
    """Returns the quantile `at` of the number of runs, for shapes below 1."""
    stay = 1 - gamma
    probability = stay * gamma**shape * _over_one_minus_power(math.log(gamma), shape)
    left, runs = at - probability, 1
    while left >= 0 and probability > 1e-18:
        probability *= stay * (runs + shape) / (runs + 1)
        left -= probability
        runs += 1
    return runs


def runs_at(selection: Selection, at: float) -> int:
    """Returns the number of runs at a quantile of the distribution that epsilon assumes."""
    from scipy import stats  # heavy: planning imports what imports this module

    if math.isinf(selection.shape):
        return int(stats.poisson.ppf(at, selection.mean))
    gamma = stopping_probability(selection)
    if selection.shape < 1:
        return _runs_of_small_shape(gamma, selection.shape, at)
    untruncated = stats.nbinom(selection.shape, gamma)
    none = untruncated.pmf(0)
    return max(1, int(untruncated.ppf(none + at * (1 - none))))
