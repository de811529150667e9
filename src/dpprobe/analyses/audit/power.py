"""The strongest test that a plan allows, with its noise as planned and with less or more.

A test of "was the canary in?", fixed beforehand, is right about a fair coin with probability
(1 + TV) / 2 at most, TV the total variation between what is released with and without the canary.
A plan gives TV; the same plan with all noise multipliers times f gives TV(f), which falls with f.
Runs that are right more often than TV(f) allows reject a noise of f times the plan's, or more. The
largest f that they do not reject, and the epsilon of the plan with that noise, is a lower bound on
the epsilon of a mechanism that differs from its plan by the noise alone. Nothing is assumed about
the scores of the test.

- **No mechanism samples.** TV = 2 Phi(mu / (2 f)) - 1, exact (Dong, Roth and Su 2022).
- **Some sample their rows.** TV is delta at epsilon 0 of the privacy loss distribution, whose grid
  overestimates it: f is then too large, never too small. The epsilon of that f is
  `accountants.epsilon_below`, which is never above the truth. Both sides are safe.
- **A selection** is priced at one (epsilon, delta), of which no factor of noise is known. Then

      accuracy <= (exp(epsilon) + delta) / (1 + exp(epsilon)),

  the corner of the trade-off curve of (epsilon, delta)-DP, which an epsilon is solved for. The same
  holds for a plan without noise, which promises nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from dpprobe.analyses.audit.bounds import accuracy_lower_bound
from dpprobe.errors import PrivacyError
from dpprobe.privacy import accountants, calibration
from dpprobe.privacy.plan import Mechanism, Plan

# Factors of a sampled plan are searched to this relative width of the separation: few prices.
_TOLERANCE = 1e-3
# With little noise grids outgrow memory: the search goes there in short strides, and no further
# than to an epsilon of about a hundred: 250 by the rough price.
_STRIDE, _FAR = 0.3, 250.0
# Above what round-off may be, up to a total variation of 1 - 1e-9.
_ABOVE = 1 + 1e-9


@dataclass(frozen=True)
class PlanFamily:
    """A plan with all its noise multipliers times a factor.

    Attributes:
      plan: with factor 1.
      group: units that are in or out together, in what a test is allowed; epsilons are of one unit.
    """

    plan: Plan
    group: int = 1

    @cached_property
    def _mechanisms(self) -> tuple[Mechanism, ...]:
        return tuple(replace(item, sensitivity=1.0, released="") for item in self.plan.mechanisms)

    @property
    def has_price(self) -> bool:
        """True if the plan has noise that a factor can scale, and an epsilon for each factor."""
        return self.plan.private and self.plan.selection is None

    @cached_property
    def _gaussian_mu(self) -> float | None:
        """The plan's mu, None if a mechanism samples its rows."""
        if not accountants.is_gaussian(self._mechanisms):
            return None
        return self.group * accountants.gaussian_mu(self._mechanisms)

    @property
    def exact(self) -> bool:
        """True if the total variation is exact, False if it is an upper bound."""
        return self.has_price and self._gaussian_mu is not None

    @property
    def separation(self) -> float:
        """The mu of a Gaussian mechanism that allows as much as the plan."""
        return compute_separation(self.total_variation())

    def total_variation(self, factor: float = 1.0) -> float:
        """Computes the total variation that the plan allows with `factor` times its noise.

        Exact if no mechanism samples, else an upper bound; 1 without noise. For a selection, the
        bound by its one price, and NaN for other factors than 1.
        """
        if not self.plan.private or factor == 0:
            return 1.0
        if self.plan.selection is not None:
            if factor != 1:
                return math.nan
            grown = math.exp(-self.plan.realised_epsilon)
            return (1 - grown + 2 * self.plan.delta * grown) / (1 + grown)
        if self._gaussian_mu is not None:
            return math.erf(self._gaussian_mu / factor / math.sqrt(8))
        return _sampled_variation(self._scale_noise(factor), self.plan.delta, self.group)

    def compute_epsilon(self, factor: float = 1.0) -> float:
        """Bounds epsilon at the plan's delta from below, with `factor` times the plan's noise.

        Infinite without noise, NaN for a selection.
        """
        if not self.plan.private or factor == 0:
            return math.inf
        if self.plan.selection is not None:
            return math.nan
        if math.isinf(factor):
            return 0.0
        return accountants.epsilon_below(self._scale_noise(factor), self.plan.delta)

    def factor_of(self, total_variation: float) -> float:
        """Computes the largest factor with which the plan allows a total variation, from above.

        Exact to nine digits, or to 0.1% if a mechanism samples. A sampled plan has at least the
        factor at an epsilon of about a hundred, even if no factor allows so much. Infinite for 0
        and less; NaN for a selection and for a plan without noise.
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
        """Searches the factor of a sampled plan that has a separation, from above."""
        least = self._least_factor

        def price_factor(factor: float) -> float:
            return compute_separation(self.total_variation(max(factor, least)))

        try:
            factor, _ = calibration.find_factor(
                price_factor, wanted, what="separation", tolerance=_TOLERANCE, stride=_STRIDE
            )
        except PrivacyError:  # more than the least factor allows
            return least
        return max(factor, least)

    @cached_property
    def _least_factor(self) -> float:
        factor = 1.0
        while accountants.rough_epsilon(self._scale_noise(factor / 1.25), self.plan.delta) < _FAR:
            factor /= 1.25
        return factor

    def epsilon_of_accuracy(self, accuracy: float) -> float:
        """Computes the smallest epsilon, at the plan's delta, that allows a test this accuracy.

        By the plan with another noise, or by (epsilon, delta) alone for a selection and for a plan
        without noise. 0 for an accuracy of 1/2 or less.

        Args:
          accuracy: a lower bound on the share of runs, in or out by a fair coin, that a test fixed
            beforehand is right about.
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
    """Computes the factor f > 1 by which noise must be too small for an audit to reject its plan.

    With noise of 1 / f times the plan's, the test rejects the plan at `confidence` with the given
    probability. NaN if so few runs catch no noise, for a selection and for a plan without noise.

    Args:
      strength: the test's separation (mu) over the plan's, taken to be the same with less noise; 1
        is the best test there is.
    """
    from scipy.special import betaincinv

    if not family.has_price or strength <= 0:
        return math.nan
    allowed = (1 + family.total_variation()) / 2
    needed = _fewest_that_reject(allowed, runs, confidence)
    if needed is None:
        return math.nan
    # With this accuracy so many, or more, are right with the given probability.
    accuracy = float(betaincinv(needed, runs - needed + 1, probability))
    wanted = min(math.erf(compute_separation(2 * accuracy - 1) / strength / math.sqrt(8)), 1.0)
    factor = family.factor_of(wanted)
    reached = factor > 0 and family.total_variation(factor) >= wanted * (1 - 2 * _TOLERANCE)
    return 1 / factor if reached and factor < 1 else math.nan


def _fewest_that_reject(accuracy: float, runs: int, confidence: float) -> int | None:
    """Returns the fewest right runs whose lower bound lies above an accuracy; None if none does."""
    needed = bisect_left(
        range(runs + 1), True, key=lambda k: accuracy_lower_bound(k, runs, confidence) > accuracy
    )
    return needed if needed <= runs else None


def compute_separation(total_variation: float) -> float:
    """Computes the mu of two normal distributions of this total variation."""
    from scipy.special import erfinv

    return math.sqrt(8) * float(erfinv(min(total_variation, 1.0)))


@lru_cache
def _sampled_variation(mechanisms: tuple[Mechanism, ...], delta: float, group: int) -> float:
    """Bounds the total variation by the privacy profile at epsilon 0, to a group of units."""
    import numpy as np

    profile = accountants.privacy_profile(mechanisms, delta, size=group)
    return min(1.0, float(np.asarray(profile.deltas(np.zeros(1)))[0]))
