"""mu of the Gaussian mechanism at (epsilon, delta), in pure Python.

Only predictions and warnings use this module; `accountants` computes guarantees, with SciPy.
"""

from __future__ import annotations

import math
from functools import lru_cache

_ROOT = math.sqrt(2)


@lru_cache(maxsize=4096)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Solves delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu) for mu.

    Follows Balle and Wang 2018, theorem 8, to 1e-9 relative.

    Example:
      >>> [round(gaussian_mu(epsilon, 1e-5), 3) for epsilon in (0.5, 1, 8)]
      [0.142, 0.268, 1.666]
    """
    low, high = 1e-9, 1.0
    while _compute_delta(high, epsilon) < delta:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if _compute_delta(middle, epsilon) < delta:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _compute_delta(mu: float, epsilon: float) -> float:
    upper, lower = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    tail = math.erfc(lower / _ROOT)
    # exp(epsilon) may overflow float64, but not its product with the tail
    scaled = math.exp(epsilon + math.log(tail)) if tail > 0 else 0.0
    return 0.5 * (math.erfc(upper / _ROOT) - scaled)
