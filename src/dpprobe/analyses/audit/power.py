"""The strongest test that a plan allows, with the planned noise and with less or more noise.

A fair coin decides whether the canary is in. A test chosen before the runs guesses the coin with a
probability of at most (1 + TV) / 2. TV is the total variation between the releases with and without
the canary. If a plan's noise multipliers are multiplied by f, its total variation TV(f) falls with
f. A test that is right more often than TV(f) allows rejects noise of at least f times the plan's.
The epsilon of the plan with the largest f that is not rejected is a lower bound on the mechanism's
epsilon, if only the noise differs from the plan. The bound assumes nothing about scores.

- **No mechanism samples its rows.** TV = 2 Phi(mu / (2 f)) - 1, exact (Dong, Roth and Su 2022).
- **Some mechanisms sample their rows.** TV is the delta at epsilon 0 of the privacy loss
  distribution, whose grid overestimates TV and the largest f. For each f,
  `accountants.epsilon_below` computes an epsilon that is never above the truth, so the lower bound
  on epsilon stays valid.
- **A selection among trials** has one (epsilon, delta), and no known epsilon for other noise. The
  lower bound is the smallest epsilon that satisfies the inequality at the trade-off curve's corner,

      accuracy <= (exp(epsilon) + delta) / (1 + exp(epsilon)).

  A plan without noise, which has no guarantee, is treated like a selection.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from dpprobe.analyses.audit.bounds import accuracy_lower_bound
from dpprobe.errors import PrivacyError
from dpprobe.privacy import accountants, noise_calibration
from dpprobe.privacy.plan import Mechanism, Plan

# The relative precision of the search for a factor of noise; each step of the search is slow.
_TOLERANCE = 1e-3
# With little noise, the grid of a privacy loss distribution would outgrow memory. So the search
# reduces noise in short steps, and stops at a true epsilon of about 100 (a rough estimate of 250).
_STRIDE, _FAR = 0.3, 250.0
# A margin that exceeds the rounding error of a factor, for a total variation up to 1 - 1e-9.
_ABOVE = 1 + 1e-9


@dataclass(frozen=True)
class PlanFamily:
    """A plan whose noise multipliers are all multiplied by a factor.

    Attributes:
      group: number of units that are in or out together; epsilons are for one of the units.
    """

    plan: Plan
    group: int = 1

    @cached_property
    def _mechanisms(self) -> tuple[Mechanism, ...]:
        return tuple(replace(item, sensitivity=1.0, released="") for item in self.plan.mechanisms)

    @property
    def has_price(self) -> bool:
        """True if the plan has noise, and an epsilon can be computed for any factor of noise."""
        return self.plan.private and self.plan.selection is None

    @cached_property
    def _gaussian_mu(self) -> float | None:
        """The plan's Gaussian-DP parameter mu; None if a mechanism samples its rows."""
        if not accountants.is_gaussian(self._mechanisms):
            return None
        return self.group * accountants.gaussian_mu(self._mechanisms)

    @property
    def exact(self) -> bool:
        """True if the total variation is exact, False if it is an upper bound."""
        return self.has_price and self._gaussian_mu is not None

    @property
    def separation(self) -> float:
        """The mu of the Gaussian mechanism with the same total variation as the plan."""
        return compute_separation(self.total_variation())

    def total_variation(self, factor: float = 1.0) -> float:
        """Returns the total variation that the plan allows if its noise is multiplied by `factor`.

        The result is exact if no mechanism samples its rows, else an upper bound; 1 without noise.
        For a selection among trials, the bound holds only for factor 1.
        """
        if not self.plan.private or factor == 0:
            return 1.0
        if self.plan.selection is not None:
            grown = math.exp(-self.plan.realised_epsilon)
            return (1 - grown + 2 * self.plan.delta * grown) / (1 + grown)
        if self._gaussian_mu is not None:
            return math.erf(self._gaussian_mu / factor / math.sqrt(8))
        return _sampled_variation(self._scale_noise(factor), self.plan.delta, self.group)

    def compute_epsilon(self, factor: float = 1.0) -> float:
        """Returns a lower bound on epsilon at the plan's delta, with noise multiplied by `factor`.

        The bound is infinite for factor 0. The plan must have a price (`has_price`).
        """
        if factor == 0:
            return math.inf
        return accountants.epsilon_below(self._scale_noise(factor), self.plan.delta)

    def factor_of(self, total_variation: float) -> float:
        """Bounds from above the largest factor of noise at which a total variation is possible.

        The bound is exact to nine digits, or to 0.1% if a mechanism samples its rows. With sampling
        the bound is at least the factor where epsilon is about 100. The result is infinite for a
        total variation of at most 0, and NaN for a selection among trials or without noise.
        """
        if not self.has_price:
            return math.nan
        if total_variation <= 0:
            return math.inf
        wanted = compute_separation(total_variation)
        if self._gaussian_mu is not None:
            return self._gaussian_mu / wanted * _ABOVE
        return self._search_factor(wanted)

    def _search_factor(self, wanted: float) -> float:
        """Searches for the factor of noise at which a plan with sampling has mu `wanted`."""
        least = self._least_factor

        def price_factor(factor: float) -> float:
            return compute_separation(self.total_variation(max(factor, least)))

        try:
            factor, _ = noise_calibration.find_factor(
                price_factor, wanted, what="separation", tolerance=_TOLERANCE, stride=_STRIDE
            )
        except PrivacyError:  # even the least factor has less separation than `wanted`
            return least
        return max(factor, least)

    @cached_property
    def _least_factor(self) -> float:
        factor = 1.0
        while accountants.rough_epsilon(self._scale_noise(factor / 1.25), self.plan.delta) < _FAR:
            factor /= 1.25
        return factor

    def epsilon_of_accuracy(self, accuracy: float) -> float:
        """Computes the smallest epsilon, at the plan's delta, that allows a test of this accuracy.

        The plan's noise is rescaled, or only (epsilon, delta) is used for a selection among trials
        and for a plan without noise. Returns 0 for an accuracy of 1/2 or less.

        Args:
          accuracy: a lower bound on the probability that a test, chosen before the runs, guesses a
            fair coin that decides between in and out.
        """
        if accuracy <= 0.5:
            return 0.0
        if self.has_price:
            return self.compute_epsilon(self.factor_of(2 * accuracy - 1))
        if accuracy == 1:
            return math.inf
        return max(0.0, math.log(max(accuracy - self.plan.delta, 0.5) / (1 - accuracy)))

    def _scale_noise(self, factor: float) -> tuple[Mechanism, ...]:
        return tuple(item.scale_noise(factor) for item in self._mechanisms)


def caught_factor(
    family: PlanFamily,
    runs: int,
    confidence: float = 0.95,
    probability: float = 0.95,
    *,
    strength: float = 1.0,
) -> float:
    """Returns the f > 1 such that an audit rejects the plan if noise is too small by the factor f.

    If the noise is 1 / f times the plan's, the test rejects the plan at `confidence` with the given
    probability. The result is NaN for too few runs, a selection among trials, or no noise at all.

    Args:
      strength: the test's separation (mu) divided by the plan's separation; 1 for the best possible
        test. The quotient is assumed not to change with less noise.
    """
    from scipy.special import betaincinv

    if not family.has_price or strength <= 0:
        return math.nan
    allowed = (1 + family.total_variation()) / 2
    needed = _fewest_that_reject(allowed, runs, confidence)
    if needed is None:
        return math.nan
    # With `accuracy`, at least `needed` runs are right with the given probability.
    accuracy = float(betaincinv(needed, runs - needed + 1, probability))
    wanted = min(math.erf(compute_separation(2 * accuracy - 1) / strength / math.sqrt(8)), 1.0)
    factor = family.factor_of(wanted)
    reached = factor > 0 and family.total_variation(factor) >= wanted * (1 - 2 * _TOLERANCE)
    return 1 / factor if reached and factor < 1 else math.nan


def _fewest_that_reject(accuracy: float, runs: int, confidence: float) -> int | None:
    """Returns the fewest correct runs that prove a larger accuracy; None if all are too few."""
    needed = bisect_left(
        range(runs + 1), True, key=lambda k: accuracy_lower_bound(k, runs, confidence) > accuracy
    )
    return needed if needed <= runs else None


def compute_separation(total_variation: float) -> float:
    """Computes the distance mu of two standard normal distributions from their total variation."""
    from scipy.special import erfinv

    return math.sqrt(8) * float(erfinv(min(total_variation, 1.0)))


@lru_cache
def _sampled_variation(mechanisms: tuple[Mechanism, ...], delta: float, group: int) -> float:
    """Bounds the total variation for a group of units by the privacy profile at epsilon 0."""
    import numpy as np

    profile = accountants.privacy_profile(mechanisms, delta, size=group)
    return min(1.0, float(np.asarray(profile.deltas(np.zeros(1)))[0]))
