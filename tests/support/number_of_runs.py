"""The numbers of runs that tests price, and their generating function."""

from __future__ import annotations

import math

import numpy as np

from dpprobe.privacy.plan import Selection
from dpprobe.privacy.random_run_count import stopping_probability

KINDS = [(3, 1.0), (10, 1.0), (10, 0.0), (10, 4.0), (10, math.inf), (100, math.inf)]


def generating(kind: Selection, x: np.ndarray) -> np.ndarray:
    """E[x^K] in closed form."""
    if math.isinf(kind.shape):
        return np.exp(kind.mean * (x - 1))
    gamma, shape = stopping_probability(kind), kind.shape
    inside = 1 - (1 - gamma) * x
    if shape == 0:
        return np.log(inside) / math.log(gamma)
    return (inside**-shape - 1) / (gamma**-shape - 1)
