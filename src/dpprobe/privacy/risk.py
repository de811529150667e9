"""Budgets as a risk: a limit on the best attack on one unit, instead of an epsilon.

A privacy officer can say what risk is permitted without knowing what epsilon means. A release of
mu-Gaussian differential privacy limits an attack (Dong, Roth and Su 2022, "Gaussian differential
privacy"). At false positive rate a its true positive rate b is at most Phi(Phi^-1(a) + mu), where
Phi is the normal distribution function. So

    advantage h = max over attacks of b - a:   mu = 2 Phi^-1((1 + h) / 2),
    b at a:                                    mu = Phi^-1(b) - Phi^-1(a).

For plans of Gaussian mechanisms on all rows this is exact. A plan that samples has another curve.
There the largest epsilon is searched whose plan keeps to the target by `trade_off.bound_attacks`.

An advantage alone permits rare and certain leaks: publishing one unit in n at random has h = 1 / n.
A delta is therefore always needed beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from decimal import ROUND_FLOOR, Context
from typing import Any

from dpprobe.errors import PrivacyError
from dpprobe.privacy.accountants import gaussian_epsilon, is_gaussian
from dpprobe.privacy.limits import LARGEST_EPSILON, SMALLEST_EPSILON
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.trade_off import Allowed, bound_attacks

# The searched epsilon is below the largest one by this share at most.
_TOLERANCE = 0.005
# Rates are printed with six decimals, rounded up; a target is met where what is printed meets it.
_DECIMALS, _ROUND_OFF, _DIGITS = 6, 1e-11, 6


@dataclass(frozen=True, kw_only=True)
class Risk:
    """A limit on every attack on one unit.

    Attributes:
      advantage: true positive rate minus false positive rate, from 0 to 1; None where the target is
        a rate.
      true_positives: rate at the false positive rate `at`, above it and below 1.
    """

    advantage: float | None = None
    true_positives: float | None = None
    at: float | None = None

    def __post_init__(self) -> None:
        given = {value is not None for value in (self.true_positives, self.at)}
        if given != {self.advantage is None}:
            raise PrivacyError(
                "risk: write advantage, such as {advantage: 0.1}, or true_positives with at, such "
                "as {true_positives: 0.01, at: 0.001}"
            )
        if self.advantage is not None and not 0 < self.advantage < 1:
            raise PrivacyError(f"advantage {self.advantage!r}: write a number between 0 and 1")
        if self.at is not None and not 0 < self.at < float(self.true_positives or 0) < 1:
            raise PrivacyError(
                f"true_positives {self.true_positives!r} at {self.at!r}: write a rate between the "
                "false-positive rate `at` and 1; guessing reaches `at`"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Risk:
        """Reads `{advantage: h}` or `{true_positives: b, at: a}`; raises PrivacyError."""
        unknown = set(values) - {"advantage", "true_positives", "at"}
        if unknown:
            raise PrivacyError(
                f"risk: no key {min(unknown)!r}; write advantage, or true_positives with at"
            )
        try:
            return cls(**{name: float(value) for name, value in values.items()})
        except (TypeError, ValueError):
            raise PrivacyError(f"risk {dict(values)!r}: write numbers between 0 and 1") from None

    def to_dict(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def to_mu(self) -> float:
        """Returns the mu of Gaussian differential privacy whose printed rates attain the target.

        Raises:
          PrivacyError: for a target that six decimals cannot tell from no risk.
        """
        from scipy.special import ndtri  # heavy: planning imports what imports this module

        if self.advantage is not None:
            mu = float(2 * ndtri(_lower_rate((1 + self.advantage) / 2)))
        else:
            mu = float(ndtri(_lower_rate(float(self.true_positives or 0))) - ndtri(self.at))
        if mu <= 0:
            raise PrivacyError(f"{self}: too close to guessing; permit a larger risk")
        return mu

    def to_epsilon(self, delta: float) -> float:
        """Returns the epsilon at delta of that mu, rounded down to six digits.

        Raises:
          PrivacyError: if it is below the smallest that can be calibrated.
        """
        epsilon = _round_down(gaussian_epsilon(self.to_mu(), delta))
        if not epsilon >= SMALLEST_EPSILON:
            raise PrivacyError(
                f"{self}: at delta {delta:g} this risk needs epsilon {epsilon:g}, below the "
                f"smallest possible {SMALLEST_EPSILON:g}; permit a larger risk or write a smaller "
                "delta"
            )
        return min(epsilon, LARGEST_EPSILON)

    def permits(self, plan: Plan) -> bool:
        """Returns True if no attack on the plan's releases can exceed the target."""
        bounds = bound_attacks(
            plan.mechanisms,
            self.rates,
            plan.selection,
            delta=plan.delta,
            epsilon=plan.realised_epsilon,
        )
        return self.measure(bounds) <= self.target

    @property
    def rates(self) -> tuple[float, ...]:
        """The false positive rates whose bounds `measure` needs."""
        return () if self.at is None else (self.at,)

    @property
    def target(self) -> float:
        return float(self.true_positives or 0) if self.advantage is None else self.advantage

    def measure(self, bounds: Allowed) -> float:
        """Returns the best attack by bounds at `rates`, comparable with `target`."""
        return bounds.true_positives[0] if self.advantage is None else bounds.advantage

    def __str__(self) -> str:
        if self.advantage is not None:
            return f"advantage {self.advantage:g}"
        return f"true positive rate {self.true_positives:g} at false positive rate {self.at:g}"


def _lower_rate(rate: float) -> float:
    """Returns a rate whose printed value, rounded up, is at most `rate`."""
    scale = 10**_DECIMALS
    return math.floor(rate * scale + _ROUND_OFF) / scale - _ROUND_OFF


def _round_down(epsilon: float) -> float:
    return float(Context(prec=_DIGITS, rounding=ROUND_FLOOR).create_decimal(repr(epsilon)))


def plan_for_risk(risk: Risk, delta: float, make_plan: Callable[[float], Plan]) -> Plan:
    """Returns the plan with the largest epsilon that stays within a risk, or raises PrivacyError.

    Args:
      make_plan: calibrates the plan of an epsilon at `delta`.
    """
    plan = make_plan(risk.to_epsilon(delta))
    if plan.selection is None and is_gaussian(plan.mechanisms):
        if not risk.permits(plan):
            raise PrivacyError(f"{risk}: the plan with epsilon {plan.epsilon:g} exceeds this risk")
        return plan
    low = high = plan
    while risk.permits(high) and high.epsilon < LARGEST_EPSILON:
        low, high = high, make_plan(min(2 * high.epsilon, LARGEST_EPSILON))
    while not risk.permits(low):
        if low.epsilon <= SMALLEST_EPSILON:
            raise PrivacyError(
                f"{risk}: even the smallest possible epsilon, {SMALLEST_EPSILON:g}, at this delta "
                "exceeds this risk; permit a larger risk or "
                "write a smaller delta"
            )
        low, high = make_plan(max(low.epsilon / 2, SMALLEST_EPSILON)), low
    if risk.permits(high):
        return high
    while high.epsilon / low.epsilon > 1 + _TOLERANCE:
        middle = make_plan(_round_down(math.sqrt(high.epsilon * low.epsilon)))
        low, high = (middle, high) if risk.permits(middle) else (low, middle)
    return low
