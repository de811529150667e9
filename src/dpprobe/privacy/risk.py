"""Privacy budgets stated as a risk: a limit on the best attack on one unit, instead of epsilon.

A privacy officer can choose a permitted risk without knowing what epsilon means. mu-Gaussian
differential privacy limits every attack (Dong, Roth and Su 2022, "Gaussian differential privacy").
At false positive rate a, an attack's true positive rate b is at most Phi(Phi^-1(a) + mu), where Phi
is the normal distribution function. So

    advantage h = max over attacks of b - a:   mu = 2 Phi^-1((1 + h) / 2),
    b at a:                                    mu = Phi^-1(b) - Phi^-1(a).

For plans of Gaussian mechanisms on all rows, both formulas for mu are exact. A plan that samples
gets the largest epsilon at which `trade_off.bound_attacks` meets the target.

A limit on the advantage alone permits leaks that are rare but certain: publishing one unit in n at
random has h = 1 / n. So an advantage always needs a delta too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from dpprobe.errors import PrivacyError
from dpprobe.privacy.accountants import gaussian_epsilon, gaussian_mu, is_gaussian
from dpprobe.privacy.limits import (
    LARGEST_EPSILON,
    SMALLEST_EPSILON,
    epsilon_token,
    epsilon_value,
    round_down,
    round_up,
    rounded_up,
)
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.trade_off import Allowed, bound_attacks, per_hundred

_FEW = 0.001  # the false-positive rate reported with an advantage
# The delta at which risks are converted to epsilons for sorting, whatever the study's delta.
_ORDER_DELTA = 1e-5
_TOKEN = re.compile(r"advantage-(?P<advantage>.+)|tpr-(?P<true_positives>.+)-at-(?P<at>.+)")
# Rates are printed with six decimals, rounded up. A plan meets a target if its printed rates do.
_DECIMALS, _ROUND_OFF = 6, 1e-11


@dataclass(frozen=True, kw_only=True)
class Risk:
    """A limit on every attack on one unit.

    Attributes:
      advantage: true minus false positive rate, from 0 to 1; None if the target is a rate.
      true_positives: the limit, in (`at`, 1), on the true positive rate at false positive rate
        `at`.

    Example:
      >>> risk = Risk(advantage=0.1)
      >>> round(risk.to_mu(), 3), round(risk.to_epsilon(1e-5), 2)
      (0.251, 0.93)
      >>> Risk(true_positives=0.01, at=0.001).token
      'tpr-0.01-at-0.001'
      >>> Risk(true_positives=0.001, at=0.01)
      Traceback (most recent call last):
          ...
      dpprobe.errors.PrivacyError: true_positives 0.001 at 0.01: must be between the
      false-positive rate `at` and 1; guessing reaches `at`
    """

    advantage: float | None = None
    true_positives: float | None = None
    at: float | None = None

    def __post_init__(self) -> None:
        given = {value is not None for value in (self.true_positives, self.at)}
        if given != {self.advantage is None}:
            raise PrivacyError(
                "risk: set advantage, such as {advantage: 0.1}, or true_positives with at, such "
                "as {true_positives: 0.01, at: 0.001}"
            )
        if self.advantage is not None and not 0 < self.advantage < 1:
            raise PrivacyError(f"advantage {self.advantage!r}: must be a number between 0 and 1")
        if self.at is not None and not 0 < self.at < float(self.true_positives or 0) < 1:
            raise PrivacyError(
                f"true_positives {self.true_positives!r} at {self.at!r}: must be between the "
                "false-positive rate `at` and 1; guessing reaches `at`"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Risk:
        """Reads `{advantage: h}` or `{true_positives: b, at: a}`; raises PrivacyError."""
        unknown = set(values) - {"advantage", "true_positives", "at"}
        if unknown:
            raise PrivacyError(
                f"risk: no key {min(unknown)!r}; set advantage, or true_positives with at"
            )
        try:
            return cls(**{name: float(value) for name, value in values.items()})
        except (TypeError, ValueError):
            raise PrivacyError(f"risk {dict(values)!r}: must be numbers between 0 and 1") from None

    @classmethod
    def from_token(cls, token: str) -> Risk:
        """Reads `token`; raises PrivacyError."""
        match = _TOKEN.fullmatch(token)
        return cls.from_dict({k: v for k, v in match.groupdict().items() if v} if match else {})

    def to_dict(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def token(self) -> str:
        """The one spelling of the risk in paths, such as "advantage-0.1" or "tpr-0.01-at-0.001"."""
        if self.advantage is not None:
            return f"advantage-{self.advantage:.12g}"
        return f"tpr-{self.true_positives:.12g}-at-{self.at:.12g}"

    def to_mu(self) -> float:
        """Returns the largest mu of Gaussian DP whose printed rates meet the target.

        Raises PrivacyError for a target that rounds to no risk at six decimals.
        """
        from scipy.special import ndtri  # heavy: planning imports this module indirectly

        if self.advantage is not None:
            mu = float(2 * ndtri(_lower_rate((1 + self.advantage) / 2)))
        else:
            mu = float(ndtri(_lower_rate(float(self.true_positives or 0))) - ndtri(self.at))
        if mu <= 0:
            raise PrivacyError(f"{self}: too close to guessing; permit a larger risk")
        return mu

    def to_epsilon(self, delta: float) -> float:
        """Returns the epsilon at delta of the risk's mu, rounded down to six digits.

        Raises PrivacyError if the epsilon is below the smallest that can be calibrated.
        """
        epsilon = round_down(gaussian_epsilon(self.to_mu(), delta))
        if not epsilon >= SMALLEST_EPSILON:
            raise PrivacyError(
                f"{self}: at delta {delta:g} this risk needs epsilon {epsilon:g}, below the "
                f"smallest possible {SMALLEST_EPSILON:g}; permit a larger risk or set a smaller "
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
        """The false positive rates at which `measure` needs bounds."""
        return () if self.at is None else (self.at,)

    @property
    def target(self) -> float:
        return float(self.true_positives or 0) if self.advantage is None else self.advantage

    def measure(self, bounds: Allowed) -> float:
        """Returns the bound to compare with `target`, from the bounds at `rates`."""
        return bounds.true_positives[0] if self.advantage is None else bounds.advantage

    @property
    def short(self) -> str:
        """A short text of the risk, for a table's cell or a legend."""
        if self.advantage is not None:
            return str(self)
        return f"TPR {self.true_positives:g} at FPR {self.at:g}"

    def __str__(self) -> str:
        if self.advantage is not None:
            return f"advantage {self.advantage:g}"
        return f"true positive rate {self.true_positives:g} at false positive rate {self.at:g}"


def _lower_rate(rate: float) -> float:
    """Rounds a rate down, so that its printed value (rounded up) is at most `rate`."""
    scale = 10**_DECIMALS
    return math.floor(rate * scale + _ROUND_OFF) / scale - _ROUND_OFF


class RiskEpsilon(float):
    """An epsilon at `delta` that follows from a permitted risk, with the risk's token.

    Tables and figures sort, place and group cells by epsilon; a `RiskEpsilon` also names its risk.
    """

    token: str
    delta: float | None

    def __new__(cls, value: float, token: str = "", delta: float | None = None) -> Self:
        number = super().__new__(cls, value)
        number.token, number.delta = token, delta
        return number


def find_risk(token: str) -> Risk | None:
    """Returns the risk that a budget's token names; None for an epsilon."""
    return Risk.from_token(token) if _TOKEN.fullmatch(token) else None


def budget_token(value: Any) -> str:
    """Returns the one spelling in paths of a budget (epsilon or risk); raises ValueError."""
    if isinstance(value, RiskEpsilon):
        return value.token
    try:
        risk = Risk.from_dict(value) if isinstance(value, Mapping) else find_risk(str(value))
    except PrivacyError as error:
        raise ValueError(str(error)) from None
    return epsilon_token(value) if risk is None else risk.token


def to_tokens(value: Any) -> Any:
    return list(map(budget_token, value)) if isinstance(value, list | tuple) else value


def read_budget(token: str) -> float | Risk:
    """Returns the epsilon or the risk that a token names."""
    return find_risk(token) or epsilon_value(token)


def nominal_epsilon(token: str, delta: float) -> float:
    """Returns a budget's epsilon before calibration; for a risk, of a Gaussian mechanism."""
    risk = find_risk(token)
    return epsilon_value(token) if risk is None else risk.to_epsilon(delta)


def budget_order(token: str) -> float:
    """Returns a key to sort budgets by; for a risk, the key is not the epsilon of any cell."""
    risk = find_risk(token)
    return epsilon_value(token) if risk is None else gaussian_epsilon(risk.to_mu(), _ORDER_DELTA)


def budget_words(budget: float | str) -> str:
    """Formats an epsilon with the risk that determined it, or a token: "0.93 (advantage 0.1)".

    Example:
      >>> budget_words("advantage-0.1"), budget_words("0.5")
      ('advantage 0.1', '0.5')
    """
    if isinstance(budget, str):
        return risk.short if (risk := find_risk(budget)) else budget
    risk = find_risk(budget.token) if isinstance(budget, RiskEpsilon) else None
    return epsilon_token(budget) if risk is None else f"{budget:g} ({risk.short})"


def list_risk_faults(plan: Plan) -> list[str]:
    """Returns an error if a plan's mechanisms allow more than the risk that the plan states."""
    if plan.risk is None or (risk := Risk.from_dict(plan.risk)).permits(plan):
        return []
    return [f"says {risk}, but its mechanisms allow stronger attacks"]


def plan_budget(plan: Plan) -> float | Risk:
    """Returns the epsilon or risk that a plan was calibrated to."""
    return plan.epsilon if plan.risk is None else Risk.from_dict(plan.risk)


def row_words(epsilon: float, before: str = "") -> str:
    """Formats the budget of a table row with several heads: "0.5", "advantage 0.1 (ε ≤ 1.2)"."""
    if isinstance(epsilon, RiskEpsilon):
        return f"{budget_words(epsilon.token)} (ε ≤ {epsilon:g})"
    return f"{before}{budget_words(epsilon)}"


def budget_title(token: str, before: str = "ε = ") -> str:
    """Formats a token for a heading: "ε = 0.5", or "advantage 0.1"."""
    return f"{'' if find_risk(token) else before}{budget_words(token)}"


def budget_in_full(epsilon: float) -> str:
    """Formats an epsilon, the risk that determined it, and what an advantage allows at 0.1% FPR."""
    if not isinstance(epsilon, RiskEpsilon) or Risk.from_token(epsilon.token).advantage is None:
        return budget_words(epsilon)
    rate = per_hundred(_limit_rate(epsilon))
    return f"{budget_words(epsilon)[:-1]}, TPR at most {rate}% at 0.1% FPR)"


def explain_risks(epsilons: Iterable[float]) -> str:
    """Formats one clause per permitted risk: its epsilons, and the risk that an advantage allows.

    An advantage permits leaks that are rare but certain, so the risk at 0.1% FPR is added.
    """
    by_token: dict[str, list[RiskEpsilon]] = {}
    for epsilon in epsilons:
        if isinstance(epsilon, RiskEpsilon):
            by_token.setdefault(epsilon.token, []).append(epsilon)
    return "; ".join(_explain_risk(token, group) for token, group in by_token.items())


def _explain_risk(token: str, epsilons: Sequence[RiskEpsilon]) -> str:
    risk = Risk.from_token(token)
    ends = dict.fromkeys(f"{end:g}" for end in (min(epsilons), max(epsilons)))
    words = f"{risk.short} is ε {' to '.join(ends)}"
    if risk.advantage is None:
        return words
    return f"{words} (TPR at most {per_hundred(max(map(_limit_rate, epsilons)))}% at 0.1% FPR)"


def _limit_rate(epsilon: RiskEpsilon) -> float:
    """Bounds the true-positive rate at 0.1% FPR of any attack under an epsilon and an advantage."""
    rate = _FEW + (Risk.from_token(epsilon.token).advantage or 1.0)
    if epsilon.delta is not None:
        rate = min(rate, math.exp(epsilon) * _FEW + epsilon.delta)
    return min(rate, 1.0)


def describe_target(plan: Plan) -> dict[str, Any]:
    """Returns a plan's risk target, with mu if the plan is Gaussian; empty without a target."""
    if plan.risk is None:
        return {}
    exact = plan.selection is None and is_gaussian(plan.mechanisms)
    mu = {"mu": round_up(gaussian_mu(plan.mechanisms))} if exact else {}
    return {"risk_target": dict(plan.risk), **mu}


def target_words(statement: Mapping[str, Any]) -> str:
    """Formats a statement's risk target, as ", advantage 0.1 (mu 0.25)"; empty without a target."""
    if "risk_target" not in statement:
        return ""
    mu = f" (mu {rounded_up(statement['mu']):g})" if "mu" in statement else ""
    return f", {Risk.from_dict(statement['risk_target']).short}{mu}"
