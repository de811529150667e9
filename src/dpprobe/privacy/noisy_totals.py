"""Computes how many units are needed before noisy totals give a result.

A result is stated only if each of its noisy totals clearly exceeds its noise. A noisy total is a
true total plus Gaussian noise, so with a true total at the threshold, the noisy total exceeds the
threshold in only half of the cases. The noise of several totals is independent, so the probability
that all exceed the threshold is a product. For a given sum, the product is largest for equal
totals, because log Phi is concave.
"""

from __future__ import annotations

from statistics import NormalDist

# A noisy total must exceed COUNTED standard deviations of its noise.
COUNTED = 4.0
# The least probability of a result if there are as many units as `units_for_result` asks for.
RESULT_CHANCE = 0.95


def least_total(deviation: float) -> float:
    """Returns the noisy total to exceed, for noise of standard deviation `deviation`.

    Example:
      >>> least_total(5.0), least_total(0.1)
      (20.0, 1.0)
    """
    return max(COUNTED * deviation, 1.0)


def units_for_result(deviation: float, totals: int) -> float:
    """Returns the true total at which `totals` equal totals all pass in 95% of releases.

    If the sum of totals is below `totals` times this number, fewer than 95% of releases have a
    result.
    """
    surely = NormalDist().inv_cdf(RESULT_CHANCE ** (1 / totals))
    return least_total(deviation) + deviation * surely
