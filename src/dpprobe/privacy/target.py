"""The target of a plan: the epsilon or risk that its noise must meet, and the number of units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from dpprobe.errors import PrivacyError
from dpprobe.privacy.limits import delta_fault
from dpprobe.privacy.plan import Patients, Plan
from dpprobe.privacy.risk import Risk, plan_budget, read_budget


@dataclass(frozen=True, kw_only=True)
class Target:
    """The target of the noise calibration: an epsilon or a permitted risk, for n units.

    Attributes:
      n: the number of training units, public.
      unit: the unit of privacy, a key of `Plan.UNITS`.
      epsilon: the epsilon (infinite without privacy), or the permitted risk that determines it.
      accountant: the accountant that the study names.
      patients: given if the dataset names patients and the unit of privacy is one image.
      above: True to permit a delta above 1 / n, as no release does. If not permitted, False if an
        option of the study could permit it, else None.

    Raises PrivacyError for a delta above 1 / n that is not permitted.

    Example:
      >>> str(Target(n=2000, unit="patient", epsilon=1.0, delta=1e-5))
      'epsilon 1 at delta 1e-05'
      >>> Target(n=2000, unit="patient", epsilon=1.0, delta=1e-3)
      Traceback (most recent call last):
          ...
      dpprobe.errors.PrivacyError: delta 0.001 is above 1/n = 0.0005 (n = 2000 training
      patients); set a smaller delta
    """

    n: int
    unit: str = "image"
    epsilon: float | Risk
    delta: float
    accountant: str = "pld"
    patients: Patients | None = None
    above: bool | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if fault := delta_fault(self.delta, self.n, unit=self.unit, allowed=self.above):
            raise PrivacyError(fault)

    @classmethod
    def of_plan(cls, plan: Plan) -> Self:
        """Returns the target that a plan was calibrated to, without checking its delta again."""
        return cls(
            n=plan.n,
            unit=plan.unit,
            epsilon=plan_budget(plan),
            delta=plan.delta,
            accountant=plan.accountant,
            patients=plan.patients and replace(plan.patients, epsilon=None),
            above=True,
        )

    @property
    def nominal_epsilon(self) -> float:
        """The epsilon before calibration; for a risk, the epsilon of Gaussian mechanisms."""
        if isinstance(self.epsilon, Risk):
            return self.epsilon.to_epsilon(self.delta)
        return self.epsilon

    def __str__(self) -> str:
        budget = self.epsilon if isinstance(self.epsilon, Risk) else f"epsilon {self.epsilon:g}"
        return f"{budget} at delta {self.delta:g}"

    def make_plan(self, **values: Any) -> Plan:
        """Returns a plan for this target, which must be an epsilon."""
        return Plan(
            n=self.n,
            unit=self.unit,
            epsilon=self.nominal_epsilon,
            delta=self.delta,
            accountant=self.accountant,
            **values,
        )


@dataclass(frozen=True, kw_only=True)
class Terms:
    """A target without the number of units, which is not known yet; see `Target`."""

    unit: str = "image"
    epsilon: float | Risk
    delta: float
    accountant: str = "pld"
    patients: Patients | None = None

    @classmethod
    def of_params(cls, epsilon: str, privacy: Mapping[str, Any]) -> Self:
        """Reads the terms from a rule's param `privacy`, and an epsilon as a study writes it."""
        return cls(
            unit=privacy["unit"],
            epsilon=read_budget(epsilon),
            delta=privacy["delta"],
            accountant=privacy["accountant"],
            patients=Patients(**privacy["patients"]) if privacy["patients"] else None,
        )

    def make_target(self, n: int, *, above: bool = True) -> Target:
        """Returns the target for n units; by default any delta, as calibration has checked it."""
        return Target(n=n, above=above, **vars(self))
