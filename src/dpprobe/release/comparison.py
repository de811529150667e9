"""Compares the accuracy of two heads on private units by one noisy count.

**Mechanism.** The sum over units of `heads.accuracy_difference`, of sensitivity 1, is released with
noise. It is a whole number of steps of a public grid, so the epsilon is exact (`privacy.releases`).

**Interval.** The estimate is the noisy sum divided by the public n. Its variance is the noise's
variance plus a sampling variance. A difference d of a unit has E d^2 of at most the share q of
units on which the heads disagree, so the sampling variance is at most q / n. The share q is not
released: it is 1, or a public assumption. The 95% interval is the estimate plus or minus 1.96
standard deviations at that bound.

**Power.** A difference is found if its interval leaves out 0, a two-sided test at 5%. At a true
share q' of disagreement, the estimate's variance is at most q' / n plus the noise's. A true
difference of 1.96 standard deviations at q and 0.84 standard deviations at q' is therefore found
with a probability of at least 80%. All numbers of a plan are public.

The functions take any units: a release compares on test units.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri

from dpprobe.heads.accuracy_difference import sum_differences
from dpprobe.privacy.entropy import Entropy
from dpprobe.privacy.plan import Mechanism, Plan, full_batch
from dpprobe.privacy.releases import Releases
from dpprobe.release.counted_units import check_mechanisms, weigh_rows
from dpprobe.results.bootstrap import CONFIDENCE

Floats = npt.NDArray[np.float64]

DIFFERENCE = "difference"
POWER = 0.8  # the probability with which a difference of `least_difference` is found
_Z = float(ndtri((1 + CONFIDENCE) / 2))
_Z_POWER = float(ndtri(POWER))


class Difference(NamedTuple):
    """Accuracy of the second head minus the first head's; its 95% CI covers sampling and noise."""

    value: float
    low: float
    high: float

    @property
    def better(self) -> int | None:
        """The head that is better: 0 or 1; None if no difference was found."""
        if self.low > 0:
            return 1
        return 0 if self.high < 0 else None


def comparison_mechanisms() -> tuple[Mechanism, ...]:
    """Returns the mechanism of a comparison, of noise multiplier 1."""
    released = "sum over the units, of each the second head's accuracy minus the first head's"
    return (full_batch(DIFFERENCE, released, 1.0),)


def release_difference(
    first: Floats,
    second: Floats,
    units: npt.NDArray[np.int64] | None,
    plan: Plan,
    entropy: Entropy,
) -> float:
    """Releases the noisy sum of the differences of two heads, once.

    Args:
      first, second: [rows], each head's share of right labels of a row; NaN in null rows.
      units: [rows], a number for each row's unit; None if each row is a unit.
      plan: has the noise of `comparison_mechanisms` on n units.

    Raises PrivacyError for another plan, another number of units, or shares outside [0, 1].
    """
    check_mechanisms(plan, comparison_mechanisms())
    total = sum_differences(first, second, weigh_rows(units, len(first), plan), plan.n)
    releases = Releases(plan, [0], torch.device("cpu"), entropy=entropy)
    noisy = float(releases.release_gaussian(DIFFERENCE, total)[0, 0])
    releases.check_counts()
    return noisy


def estimate_difference(
    released: float, n: int, deviation: float, *, disagreement: float = 1.0
) -> Difference:
    """Returns the difference of accuracy, with its interval, from a noisy sum over n units.

    Args:
      deviation: the standard deviation of the noise, in units.
      disagreement: the largest share of units on which the heads disagree, a public assumption.
    """
    value, half = released / n, _Z * _spread(n, deviation, disagreement)
    ends = (min(max(end, -1.0), 1.0) for end in (value, value - half, value + half))
    return Difference(*ends)


def least_difference(
    n: int, deviation: float, *, disagreement: float, assumed: float = 1.0
) -> float:
    """Returns the smallest true difference that is found with probability `POWER`.

    Args:
      disagreement: the share of units on which the heads disagree in truth.
      assumed: the share that the interval assumes, at least `disagreement`.
    """
    found = _Z * _spread(n, deviation, assumed)
    return found + _Z_POWER * _spread(n, deviation, disagreement)


def _spread(n: int, deviation: float, disagreement: float) -> float:
    """Bounds the standard deviation of a noisy difference."""
    return math.sqrt(disagreement / n + (deviation / n) ** 2)
