"""The mean numbers of runs that tests price, and the generating function."""

from __future__ import annotations

import numpy as np

MEANS = [3.0, 10.0, 100.0]


def generating(mean: float, x: np.ndarray) -> np.ndarray:
    """E[x^K] of a geometric number of runs, in closed form."""
    return x / (mean - (mean - 1) * x)
