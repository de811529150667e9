"""Draws the number of runs of a selection; `best_of_runs_price` bounds its epsilon.

The number of runs is geometric and at least 1: the truncated negative binomial of shape 1 of
Papernot and Steinke 2022, definition 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def draw_runs(mean: float, generator: np.random.Generator) -> int:
    """Draws a number of runs: a Poisson number with a Gamma-distributed mean, again if it is 0."""
    while True:
        runs = int(generator.poisson(generator.gamma(1.0) * (mean - 1)))
        if runs:
            return runs


def runs_at(mean: float, at: float) -> int:
    """Returns the quantile `at`, in [0, 1), of the number of runs.

    Example:
      >>> [runs_at(10, at) for at in (0.05, 0.5, 0.95)]
      [1, 7, 29]
    """
    return max(1, math.ceil(math.log1p(-at) / math.log1p(-1 / mean)))
