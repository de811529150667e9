"""The plan of a private fit: its mechanisms, noise multipliers, target and epsilon.

Two training splits are neighbours if one is the other with one unit's rows replaced by null rows,
which add nothing to any sum. The number of training units n is equal in neighbouring splits, fixed
and public: sampling rates, divisors and step counts follow from n. A sum over the rows, or over a
Poisson sample of them, changes as if a unit's rows were absent, so epsilons are the same as for
"add or remove one". Under "add or remove one", however, n would change and the divisor would reveal
n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from dpprobe.errors import PrivacyError
from dpprobe.privacy.limits import to_json

# Limits far inside the range of float32, the type of clipped rows and of gradient heads' noise.
SMALLEST_SENSITIVITY, LARGEST_SENSITIVITY = 1e-9, 1e9
SMALLEST_DEVIATION, LARGEST_DEVIATION = 1e-20, 1e20
# Up to this mean, drawing the number of runs and computing epsilon lose no digits.
LARGEST_MEAN_RUNS = 1000


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """`count` releases of one kind, each on a Poisson sample of the training units.

    Each release is a sum over rows with Gaussian noise.

    Attributes:
      name: short and unique within a plan, such as "gradients".
      released: describes the output for people. No file stores the description, and mechanisms that
        differ only in it are equal, so rewording it changes no plan, ledger or release.
      sensitivity: the most that the rows of one unit add to the released sum, in L2 norm.
      noise_multiplier: the noise's standard deviation divided by the sensitivity. Before
        calibration noise multipliers are relative: a plan's calibration finds one common factor.
      sample_rate: the probability that a unit joins a release, independently of others; 1 for all.

    Example:
      >>> gradients = Mechanism(
      ...     name="gradients", sensitivity=2.0, noise_multiplier=1.5, sample_rate=0.01, count=300
      ... )
      >>> gradients.noise_scale
      3.0
      >>> gradients.repeat_count(5).count
      1500
      >>> Mechanism(name="sums", sensitivity=1.0, noise_multiplier=1.0, sample_rate=0.0, count=1)
      Traceback (most recent call last):
          ...
      dpprobe.errors.PrivacyError: mechanism 'sums': sample_rate 0.0 must be a number above 0
      and at most 1
    """

    name: str
    released: str = field(default="", compare=False)
    sensitivity: float
    noise_multiplier: float
    sample_rate: float
    count: int

    def __post_init__(self) -> None:
        if not SMALLEST_SENSITIVITY <= self.sensitivity <= LARGEST_SENSITIVITY:
            raise self._make_error("sensitivity", "a number from 1e-9 to 1e9")
        if not (self.noise_multiplier >= 0 and math.isfinite(self.noise_multiplier)):
            raise self._make_error("noise_multiplier", "a number, zero or more")
        if self.noise_scale and not SMALLEST_DEVIATION <= self.noise_scale <= LARGEST_DEVIATION:
            raise self._make_error(
                "noise_multiplier",
                f"0, or from {SMALLEST_DEVIATION:g} to {LARGEST_DEVIATION:g} after multiplication "
                f"by the sensitivity {self.sensitivity:g}",
            )
        if not 0 < self.sample_rate <= 1:
            raise self._make_error("sample_rate", "a number above 0 and at most 1")
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise self._make_error("count", "a whole number, one or more")

    def _make_error(self, attribute: str, wanted: str) -> PrivacyError:
        value = getattr(self, attribute)
        return PrivacyError(f"mechanism {self.name!r}: {attribute} {value!r} must be {wanted}")

    @property
    def noise_scale(self) -> float:
        """The standard deviation of the noise."""
        return self.noise_multiplier * self.sensitivity

    def scale_noise(self, factor: float) -> Mechanism:
        return replace(self, noise_multiplier=self.noise_multiplier * factor)

    def repeat_count(self, times: int) -> Mechanism:
        return replace(self, count=self.count * times)

    def to_dict(self) -> dict[str, Any]:
        """Returns the facts of a mechanism as a JSON-compatible dictionary."""
        return {key: value for key, value in asdict(self).items() if key != "released"}


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Mechanisms that run together a random number of times; only the best run is released.

    The number of runs is geometric, at least 1, and drawn without the data.

    Attributes:
      mean: the mean of the number of runs.
      repeated: the mechanisms that every run releases again; other mechanisms are released once.

    Example:
      >>> Selection(mean=10, repeated=("gradients",)).to_dict()
      {'mean': 10, 'repeated': ['gradients']}
      >>> Selection(mean=1, repeated=("gradients",))
      Traceback (most recent call last):
          ...
      dpprobe.errors.PrivacyError: selection: the mean number of runs is 1; it must be above 1
      and at most 1000
    """

    DISTRIBUTION: ClassVar[str] = "geometric"

    mean: float
    repeated: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 < self.mean <= LARGEST_MEAN_RUNS:
            raise PrivacyError(
                f"selection: the mean number of runs is {self.mean!r}; it must be above 1 and at "
                f"most {LARGEST_MEAN_RUNS}"
            )
        if not self.repeated:
            raise PrivacyError("selection: no mechanism is repeated; name at least one")

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-compatible dictionary."""
        return {"mean": self.mean, "repeated": list(self.repeated)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Selection:
        return cls(mean=values["mean"], repeated=tuple(values["repeated"]))


@dataclass(frozen=True, kw_only=True)
class Patients:
    """The patients of a dataset whose unit of privacy is one image; each may have several.

    Attributes:
      images: the largest number of a patient's training images, public; None for any number.
      epsilon: the epsilon for a patient with `images` images, at the plan's delta; None if their
        number is unknown or the fit guarantees nothing.
    """

    images: int | None
    epsilon: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All facts that affect the privacy of one fit.

    Attributes:
      mechanisms: the composition, with absolute noise multipliers; empty without privacy.
      n: the number of training units, which is public.
      patients: present if the dataset names patients and the unit is one image.
      epsilon: the target; infinite if the fit guarantees nothing.
      accountant: the accountant that the study names.
      realised_epsilon: the composition's epsilon at `delta`, at most `epsilon`.
      priced_by: the accountant that computed `realised_epsilon`, with library and version.
      checks: the epsilon by other accountants, by name; None if an accountant cannot compute one.
      check_notes: the reason for each accountant that cannot compute an epsilon.
      risk: the permitted risk that determined `epsilon`, as `Risk.to_dict`; None without any.
    """

    # The name of the relation of neighbouring datasets: one unit's rows are replaced by null rows.
    RELATION: ClassVar[str] = "zero_out"
    UNITS: ClassVar[tuple[str, ...]] = ("image", "patient", "row", "group")
    # Units that may have several rows.
    GROUPS: ClassVar[tuple[str, ...]] = ("patient", "group")

    mechanisms: tuple[Mechanism, ...]
    n: int
    unit: str = "image"
    patients: Patients | None = None
    epsilon: float
    delta: float
    accountant: str
    selection: Selection | None = None
    realised_epsilon: float = math.inf
    priced_by: str = "none"
    checks: Mapping[str, float | None] = field(default_factory=dict)
    check_notes: Mapping[str, str] = field(default_factory=dict)
    risk: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.n < 1:
            raise PrivacyError(f"plan: n = {self.n} training units, but at least one is needed")
        if self.unit not in self.UNITS:
            raise PrivacyError(f"plan: unit {self.unit!r}; choose one of {', '.join(self.UNITS)}")
        if self.unit in self.GROUPS and self.patients is not None:
            raise PrivacyError(
                "plan: patients are the unit of privacy, and also have an epsilon of their own; "
                "pass only one of the two"
            )
        if not self.epsilon > 0:
            raise PrivacyError(f"plan: epsilon {self.epsilon!r} must be positive or infinite")
        if not 0 < self.delta < 1:
            raise PrivacyError(f"plan: delta {self.delta!r} must lie between 0 and 1")
        names = [mechanism.name for mechanism in self.mechanisms]
        if len(set(names)) < len(names):
            raise PrivacyError(f"plan: mechanisms must have different names, not {names}")
        for name in self.selection.repeated if self.selection else ():
            self.find_mechanism(name)
        if self.private and not self.mechanisms:
            raise PrivacyError(f"plan: has epsilon {self.epsilon:g} but no mechanism")
        for each in self.mechanisms:
            if not self.private and each.noise_multiplier != 0:
                raise PrivacyError(
                    f"plan: epsilon is infinite, but mechanism {each.name!r} has noise multiplier "
                    f"{each.noise_multiplier:g}; it must be 0"
                )
            if self.private and each.noise_multiplier <= 0:
                raise PrivacyError(
                    f"plan: epsilon is {self.epsilon:g}, but mechanism {each.name!r} adds no "
                    "noise; its noise multiplier must be above 0"
                )
        if self.private and not self.realised_epsilon <= self.epsilon:
            raise PrivacyError(
                f"plan: realised epsilon {self.realised_epsilon:g} exceeds the target "
                f"{self.epsilon:g}; calibrate again"
            )

    @property
    def private(self) -> bool:
        return math.isfinite(self.epsilon)

    @property
    def steps(self) -> int:
        """The number of noisy releases; repeated mechanisms count once."""
        return sum(mechanism.count for mechanism in self.mechanisms)

    def find_mechanism(self, name: str) -> Mechanism:
        known = {mechanism.name: mechanism for mechanism in self.mechanisms}
        if name not in known:
            has = ", ".join(map(repr, known)) or "none"
            raise PrivacyError(
                f"plan: it was made for another method, because it has no mechanism {name!r}; it "
                f"has {has}"
            )
        return known[name]

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-compatible dictionary; an infinite epsilon is "inf"."""
        return {
            "mechanisms": [mechanism.to_dict() for mechanism in self.mechanisms],
            "n": self.n,
            "epsilon": to_json(self.epsilon),
            "delta": self.delta,
            "accountant": self.accountant,
            "selection": self.selection.to_dict() if self.selection else None,
            "relation": self.RELATION,
            "unit": self.unit,
            "patients": None
            if self.patients is None
            else {"images": self.patients.images, "epsilon": to_json(self.patients.epsilon)},
            "realised_epsilon": to_json(self.realised_epsilon),
            "priced_by": self.priced_by,
            "checks": {name: to_json(value) for name, value in self.checks.items()},
            "check_notes": dict(self.check_notes),
            **({"risk": dict(self.risk)} if self.risk else {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Reads the dictionary that `to_dict` returns."""
        from pydantic import TypeAdapter  # heavy: only readers of plans need it

        if (relation := values["relation"]) != cls.RELATION:
            raise PrivacyError(f"plan: relation {relation!r}; only {cls.RELATION!r} is known")
        return TypeAdapter(cls).validate_python(dict(values))


def plan_identity(values: Mapping[str, Any]) -> dict[str, Any]:
    """Reduces the dictionary of `Plan.to_dict` to the parts that decide training and the guarantee.

    Seeds derive from the identity of a plan. Audits by earlier versions also contain descriptions
    of mechanisms, which are not part of the identity.
    """
    keys = ("n", "unit", "epsilon", "delta", "accountant", "selection")
    mechanisms = [
        {key: value for key, value in item.items() if key != "released"}
        for item in values["mechanisms"]
    ]
    return {"mechanisms": mechanisms} | {key: values[key] for key in keys}


def priced_alike(mechanisms: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """Keeps only the fields that epsilon depends on, so that methods share cached epsilons."""
    # With sensitivity 1, a search can scale the noise over the widest range.
    return tuple(replace(item, sensitivity=1.0) for item in mechanisms)


def full_batch(name: str, released: str, sensitivity: float, count: int = 1) -> Mechanism:
    """Returns a mechanism without sampling, with a relative noise multiplier of 1."""
    return Mechanism(
        name=name,
        released=released,
        sensitivity=sensitivity,
        noise_multiplier=1.0,
        sample_rate=1.0,
        count=count,
    )


def split_budget(parts: Sequence[tuple[float, Sequence[Mechanism]]]) -> tuple[Mechanism, ...]:
    """Scales the noise of groups of mechanisms so that they use given shares of a plan's budget.

    The cost of a group of mechanisms is the sum of count * sample_rate^2 / noise_multiplier^2.
    Without sampling, this cost is exactly the group's part of mu^2. With sampling, it is the limit
    of the part for large noise. Shares only divide the budget; the accountant computes epsilon.

    Args:
      parts: pairs of a share (above 0) and the mechanisms of a group, with relative noise
        multipliers. The last group keeps its multipliers, others are scaled; empty groups get no
        share.

    Example:
      >>> one, nine = full_batch("mean", "a sum", 1.0), full_batch("gradients", "a sum", 1.0, 9)
      >>> mean, gradients = split_budget([(0.01, [one]), (0.99, [nine])])
      >>> round(mean.noise_multiplier, 4)  # sqrt(0.99 / 0.01 / 9): a small share has more noise
      3.3166
    """
    groups = [(share, tuple(group)) for share, group in parts if group]
    last_share, last = groups[-1]
    unit = _relative_cost(last) / last_share
    scaled = []
    for share, group in groups[:-1]:
        factor = math.sqrt(_relative_cost(group) / (unit * share))
        scaled += [mechanism.scale_noise(factor) for mechanism in group]
    return (*scaled, *last)


def _relative_cost(mechanisms: Sequence[Mechanism]) -> float:
    return math.fsum(
        mechanism.count * (mechanism.sample_rate / mechanism.noise_multiplier) ** 2
        for mechanism in mechanisms
    )


def check_mechanisms(plan: Plan, wanted: Sequence[Mechanism]) -> None:
    """Raises PrivacyError unless a plan is private with the `wanted` mechanisms (up to scale)."""
    first = plan.mechanisms[0].noise_multiplier / wanted[0].noise_multiplier
    same = len(plan.mechanisms) == len(wanted) and all(
        replace(planned, noise_multiplier=1.0) == replace(item, noise_multiplier=1.0)
        and math.isclose(planned.noise_multiplier, first * item.noise_multiplier, rel_tol=1e-9)
        for planned, item in zip(plan.mechanisms, wanted, strict=True)
    )
    if not (same and plan.private and plan.selection is None):
        names = ", ".join(item.name for item in wanted)
        raise PrivacyError(
            f"the plan of the test units is not private, or not for {names}; calibrate a plan"
        )


def state_together(plan: Plan, together: Plan | None) -> float | None:
    """Returns a test unit's epsilon for all parts together; None if there is only one part."""
    alone = together is None or together.mechanisms == plan.mechanisms
    return None if alone or together is None else together.realised_epsilon
