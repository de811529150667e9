"""Bounds the accuracy of the best membership inference attack on a plan's releases.

An attacker who knows everything except one unit's rows looks at what was released, and decides
whether the unit is in the training set. The attack has a false positive rate alpha on units outside
the training set, and a true positive rate beta on units in it. The largest possible beta follows
from the plan, without data (Wasserman and Zhou 2010; Dong, Roth and Su 2022).

**Gaussians on all rows.** Distinguishing neighbours by a composition without sampling is exactly as
hard as testing N(mu, 1) against N(0, 1). By Neyman and Pearson the best test is a threshold, so

    beta = Phi(Phi^-1(alpha) + mu).

If a unit is in or out with probability 1/2, a test is right with probability (beta + 1 - alpha) /
2, its balanced accuracy. The threshold mu / 2 attains the largest, Phi(mu / 2).

**Poisson samples.** Let delta(e) be the privacy profile, the larger of both directions, and e >= 0.
An event of probability alpha without the unit has probability at most exp(e) alpha + delta(e) with
the unit. The event's complement has probability 1 - beta with the unit, and at most exp(e) (1 -
beta) + delta(e) without the unit:

    beta <= min over e of  exp(e) alpha + delta(e)   and   1 - exp(-e) (1 - alpha - delta(e)).

With a = alpha and b = 1 - beta the bounds on beta are b >= 1 - delta(e) - exp(e) a and a >= 1 -
delta(e) - exp(e) b. The sum of both bounds is a + b >= 2 (1 - delta(e)) / (1 + exp(e)), so

    (beta + 1 - alpha) / 2 <= (exp(e) + delta(e)) / (1 + exp(e)),

At e = 0 the bound on balanced accuracy is (1 + total variation) / 2, and is attained. Every e gives
a bound, so a minimum over a grid of e is a bound too. Overestimated deltas give larger bounds.

**A selection** has an epsilon at one delta only, so its bounds use this single point.

**A group** of k units, such as a patient's images, changes sums by up to k sensitivities, so mu is
k times as large. `accountants.group_epsilon` describes groups in Poisson samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from dpprobe.errors import PrivacyError
from dpprobe.privacy import accountants
from dpprobe.privacy.plan import Mechanism, Selection, priced_alike

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Points = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # epsilons and their deltas

# The number of epsilons in a profile, the smallest delta, and the largest epsilon (exp is finite).
_POINTS, _NEGLIGIBLE, _LARGEST_EPSILON = 4000, 1e-9, 600.0
# A profile's grid is coarser than a price's by the factor _COARSER, for a quarter of the time.
# Coarseness adds at most 0.002 to balanced accuracy, at 31,250 steps, batch 32 of 50,000, epsilon
# 8.
_COARSER = 4
# Results are rounded up to _DECIMALS decimals, after adding a bound on round-off.
_DECIMALS, _ROUND_OFF = 6, 1e-12


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """Bounds on every attack that tests whether a unit is in the training set.

    Attributes:
      balanced_accuracy: the probability that the attack is right if in and out are equally likely.
      true_positives: the largest true positive rates, at the requested false positive rates.
      exact: True if some attack on all noisy releases attains these bounds, apart from rounding up.
    """

    balanced_accuracy: float
    true_positives: tuple[float, ...]
    exact: bool

    @property
    def advantage(self) -> float:
        """The largest difference between true positive rate and false positive rate."""
        # rounded, because the accuracy has six decimals
        return round(2 * self.balanced_accuracy - 1, _DECIMALS)


def allow_everything(false_positive_rates: Sequence[float]) -> Allowed:
    """Returns the bounds without a guarantee: an attack may be right about every unit."""
    return Allowed(
        balanced_accuracy=1.0, true_positives=tuple(1.0 for _ in false_positive_rates), exact=False
    )


def bound_attacks(
    mechanisms: Sequence[Mechanism],
    false_positive_rates: Sequence[float],
    selection: Selection | None = None,
    *,
    delta: float,
    epsilon: float,
    size: int = 1,
) -> Allowed:
    """Bounds every membership inference attack, at false-positive rates from 0 to 1.

    Args:
      mechanisms: mechanisms with absolute noise multipliers.
      selection: names the mechanisms that are repeated, with only the best run released.
      delta: the plan's delta, at which a selection has an epsilon.
      epsilon: epsilon at `delta`, for the group if there is one; used for a selection only.
      size: the size of a group of units that are in or out together.

    Returns:
      Rates, rounded up to six decimals; exact for Gaussians without sampling or selection.

    Example:
      >>> from dpprobe.privacy.plan import full_batch
      >>> plan = [full_batch("sums", "a sum", 1.0).scale_noise(4)]  # mu = 1 / 4
      >>> bounds = bound_attacks(plan, [0.01], delta=1e-5, epsilon=1.0)
      >>> bounds.balanced_accuracy, bounds.advantage, bounds.true_positives, bounds.exact
      (0.549739, 0.099478, (0.018931,), True)
      >>> bound_attacks(plan, [0.01], delta=1e-5, epsilon=1.0, size=10).balanced_accuracy
      0.894351
    """
    import numpy as np

    for rate in false_positive_rates:
        if not 0 <= rate <= 1:
            raise PrivacyError(f"false-positive rate {rate!r}: must lie between 0 and 1")
    if any(mechanism.noise_multiplier == 0 for mechanism in mechanisms):
        return allow_everything(false_positive_rates)
    if selection is None and accountants.is_gaussian(mechanisms):
        mu = size * accountants.gaussian_mu(mechanisms)
        return Allowed(
            balanced_accuracy=_rounded_up(_gaussian_rate(0.5, mu / 2)),
            true_positives=tuple(_rounded_up(_gaussian_rate(r, mu)) for r in false_positive_rates),
            exact=True,
        )
    points: Points | None = None
    if selection is None:
        points = _cached_profile(priced_alike(mechanisms), delta, size)
    elif epsilon <= _LARGEST_EPSILON:
        points = np.asarray([epsilon]), np.asarray([delta])
    if points is None:
        return allow_everything(false_positive_rates)
    epsilons, deltas = points
    grown, shrunk = np.exp(epsilons), np.exp(-epsilons)
    accuracies = (1 + deltas * shrunk) / (1 + shrunk)
    bounds = [
        np.minimum(grown * rate + deltas, 1 - shrunk * (1 - rate - deltas))
        for rate in false_positive_rates
    ]
    return Allowed(
        balanced_accuracy=_rounded_up(float(accuracies.min())),
        true_positives=tuple(_rounded_up(float(each.min())) for each in bounds),
        exact=False,
    )


def per_hundred(rate: float) -> str:
    """Formats a rate in percent, rounded up: one decimal, two below 1%.

    Example:
      >>> per_hundred(0.5501), per_hundred(0.00234)
      ('55.1', '0.24')
    """
    scale = 10 if rate >= 0.01 else 100
    # Rates have six exact decimals; 1e-6 only absorbs the round-off of the product.
    return f"{math.ceil(100 * rate * scale - 1e-6) / scale:g}"


def _gaussian_rate(rate: float, mu: float) -> float:
    """Computes Phi(Phi^-1(rate) + mu)."""
    from scipy.special import ndtr, ndtri  # heavy: planning imports what imports this module

    return float(ndtr(ndtri(rate) + mu))


@lru_cache
def _cached_profile(mechanisms: tuple[Mechanism, ...], delta: float, size: int) -> Points | None:
    """Computes points of a sampled composition's profile; None if epsilon is too large."""
    import numpy as np

    if size > accountants.LARGEST_SAMPLED_GROUP:
        return None
    if size * accountants.rough_epsilon(mechanisms, delta) > _LARGEST_EPSILON:
        return None
    profile = accountants.privacy_profile(mechanisms, delta, size=size, coarser=_COARSER)
    last = profile.epsilon(_NEGLIGIBLE)
    if not math.isfinite(last):
        last = profile.epsilon(delta)
    epsilons = np.linspace(0.0, min(last, _LARGEST_EPSILON), _POINTS)
    return epsilons, np.asarray(profile.deltas(epsilons))


def _rounded_up(rate: float) -> float:
    scale = 10**_DECIMALS
    return min(1.0, math.ceil((rate + _ROUND_OFF) * scale) / scale)
