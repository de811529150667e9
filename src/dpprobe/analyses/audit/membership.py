"""Attacks on the membership of real training examples, beside what the plan allows any attack.

Nothing here is private: scores and rates describe real rows, and stay with them. Nothing published
is touched: the attacked heads are trained for this (`audit.shadows`), and each is in turn the
target, the others being its shadows.

Three groups of units are looked at apart. **all**: those with their real labels. **mislabelled**:
a few whose labels were changed before any training, which heads remember most. **rarest_classes**:
units with a row of a class that has at most half as many rows as a mean class, the smallest classes
that hold at most a tenth of all rows together.

The plan bounds every attack on a unit (`privacy.trade_off`): it holds for each unit whatever the
others are, and its curve is concave, so it also bounds a threshold's mean rates over units and
heads. A measured rate above it is chance, which its interval tells, or a broken promise. A rate far
below it says how good this attack is, and nothing more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpprobe.analyses.audit import membership_attacks
from dpprobe.analyses.audit.membership_attacks import Flags, Numbers
from dpprobe.analyses.audit.roc import Roc, measure_roc
from dpprobe.analyses.audit.shadows import Attacked, draw_units, toss_coins, train_and_look
from dpprobe.errors import DataError
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import derived_seed
from dpprobe.privacy.trade_off import Allowed, allow_everything, bound_attacks

RATES = (0.001, 0.01)
GROUPS = ("all", "mislabelled", "rarest_classes")
ATTACKS = ("loss", "lira", "rmia")
INTERVAL = "95%, heads and units both drawn again (pigeonhole bootstrap)"
LEAST_UNITS = 20
# False positive rates of the curves, which end with the two that are reported.
_CURVE = np.append(np.logspace(-4, 0, 81), RATES)


@dataclass(frozen=True)
class Measured:
    """An attack on a group of units."""

    group: str
    attack: str
    units: int
    roc: Roc


@dataclass(frozen=True, kw_only=True)
class MembershipResult:
    """The attacks on the heads of one cell's method and plan.

    Attributes:
      heads: trained; each one's shadows are all others.
      units: attacked.
      n: of the plan.
      measured: one for each attack and group of units.
      not_applicable: the reason for each group that is missing.
      allowed: by the plan, at the false positive rates of the curves.
      scores: columns attack, member and score, one line for each head and unit.
      seconds: of all, and of training the heads.
    """

    heads: int
    targets: int
    units: int
    n: int
    measured: Sequence[Measured]
    not_applicable: Mapping[str, str]
    allowed: Allowed
    scores: Mapping[str, Any]
    seconds: float
    training_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Returns the record, JSON-compatible."""
        bounds = np.asarray(self.allowed.true_positives)
        return {
            "shadows": self.heads - 1,
            "targets": self.targets,
            "units": self.units,
            "n": self.n,
            "rows": [_describe_result(one) for one in self.measured],
            "not_applicable": [
                {"rows": group, "reason": reason} for group, reason in self.not_applicable.items()
            ],
            "interval": INTERVAL,
            "roc": {
                "fpr": _round_values(_CURVE[: -len(RATES)]),
                "allowed": _round_values(bounds[: -len(RATES)]),
                "curves": [_curve_record(one) for one in self.measured],
            },
            "allowed": {
                "balanced_accuracy": self.allowed.balanced_accuracy,
                "tpr_at_fpr": _by_rate(bounds),
            },
            "seconds": round(self.seconds, 3),
            "shadows_per_second": round(self.heads / self.training_seconds, 3),
        }


def attack_membership(
    method: MethodOptions,
    plan: Plan,
    data: TrainingSet,
    *,
    seed: int,
    shadows: int = 128,
    targets: int | None = None,
    rows: int = 2000,
    mislabelled: float = 0.02,
    progress_label: str = "membership",
) -> MembershipResult:
    """Trains heads with and without units, and attacks them; numbers as `MembershipOptions` has.

    Args:
      seed: of all that is drawn, at most 128 bits.
      shadows: heads that are trained.
      targets: of these, how many are attacked; all where None. Each one's shadows are all others.
      rows: units that are attacked at most; all others are in every head.
      mislabelled: the share of attacked units whose labels are changed.

    Raises:
      ConfigError: for a head whose engine takes no weights.
      DataError: for data with nothing to attack.
      PrivacyError: when the plan is not one for this method on this data.
    """
    _check_request(data)
    started = time.monotonic()
    targets = shadows if targets is None else targets
    attacked = draw_units(data, rows=rows, mislabelled=mislabelled, seed=seed)
    members = toss_coins(attacked, shadows, seed=seed)
    seen = train_and_look(
        method, plan, data, attacked, members, seed=seed, label=f"{progress_label}: train"
    )
    trained = time.monotonic()
    scores = {
        "loss": seen.log_probability[:targets],
        "lira": membership_attacks.score_lira(seen.scaled, members, targets),
        "rmia": membership_attacks.score_rmia(seen.log_probability, members, targets),
    }
    groups, missing = _group_units(attacked)
    measured = [
        Measured(group, name, int(chosen.sum()), curve)
        for group, chosen in groups.items()
        for name in ATTACKS
        if (curve := _measure_roc(scores[name], members[:targets], chosen, seed)) is not None
    ]
    return MembershipResult(
        heads=shadows,
        targets=targets,
        units=len(attacked.units),
        n=plan.n,
        measured=measured,
        not_applicable=missing,
        allowed=allowed_by(plan),
        scores=_long_table(scores, members[:targets], groups),
        seconds=time.monotonic() - started,
        training_seconds=max(trained - started, 1e-9),
    )


def _check_request(data: TrainingSet) -> None:
    """Checks what `attack_membership` is asked for before anything is trained; see there."""
    if data.n < LEAST_UNITS:
        raise DataError(
            f"membership: {data.n} units of privacy to attack; {LEAST_UNITS} are needed"
        )
    if data.num_classes == 1 and not data.multi_label:
        raise DataError(
            "membership: there is only one class, which every head predicts; two are needed"
        )


def allowed_by(plan: Plan) -> Allowed:
    """Computes what a plan allows any attack; everything where it promises nothing."""
    rates = np.minimum(_CURVE, 1.0).tolist()
    if not plan.private:
        return allow_everything(rates)
    return bound_attacks(
        plan.mechanisms, rates, plan.selection, delta=plan.delta, epsilon=plan.realised_epsilon
    )


def _group_units(attacked: Attacked) -> tuple[dict[str, Flags], dict[str, str]]:
    """Returns the units of each group, and the reason for each group that has none."""
    groups = {"all": ~attacked.mislabelled, "mislabelled": attacked.mislabelled}
    missing = {}
    if not attacked.mislabelled.any():
        missing["mislabelled"] = "no label was changed: the share of the attacked units is too low"
    if attacked.rare is None:
        missing["rarest_classes"] = (
            "no class has at most half the rows of a mean class and a tenth of all rows"
        )
    else:
        groups["rarest_classes"] = attacked.rare & ~attacked.mislabelled
        if not groups["rarest_classes"].any():
            missing["rarest_classes"] = "no attacked unit has a row of a rare class"
    return {name: chosen for name, chosen in groups.items() if name not in missing}, missing


def _measure_roc(scores: Numbers, members: Flags, chosen: Flags, seed: int) -> Roc | None:
    resampling = derived_seed(seed, "intervals")
    return measure_roc(scores[:, chosen], members[:, chosen], _CURVE.tolist(), seed=resampling)


def _long_table(
    scores: Mapping[str, Numbers], members: Flags, groups: Mapping[str, Flags]
) -> dict[str, Any]:
    """Returns the scores of all units as columns; those of rare classes are among "all"."""
    parts = [
        (name if group == "all" else f"{name} {group}", values[:, chosen], members[:, chosen])
        for group, chosen in groups.items()
        if group != "rarest_classes"
        for name, values in scores.items()
    ]
    return {
        "attack": [each for name, values, _ in parts for each in [name] * values.size],
        "member": np.concatenate([inside.ravel() for _, _, inside in parts]),
        "score": np.concatenate([values.ravel() for _, values, _ in parts]),
    }


def _describe_result(one: Measured) -> dict[str, Any]:
    ends = np.stack([one.roc.low, one.roc.high], axis=1)
    return {
        "rows": one.group,
        "attack": one.attack,
        "units": one.units,
        "members": one.roc.members,
        "non_members": one.roc.non_members,
        "auc": round(one.roc.auc, 6),
        "auc_interval": _round_values(np.array(one.roc.auc_interval)),
        "tpr_at_fpr": _by_rate(one.roc.tpr),
        "intervals": {
            f"{rate:g}": None if np.isnan(pair).any() else _round_values(pair)
            for rate, pair in zip(RATES, ends[-len(RATES) :], strict=True)
        },
    }


def _curve_record(one: Measured) -> dict[str, Any]:
    last = -len(RATES)
    return {
        "rows": one.group,
        "attack": one.attack,
        "tpr": _round_values(one.roc.tpr[:last]),
        "low": _round_values(one.roc.low[:last]),
        "high": _round_values(one.roc.high[:last]),
    }


def _by_rate(values: Numbers) -> dict[str, float | None]:
    """Returns the last values of a curve, by the false positive rates that are reported."""
    return {
        f"{rate:g}": v for rate, v in zip(RATES, _round_values(values[-len(RATES) :]), strict=True)
    }


def _round_values(values: Numbers) -> list[float | None]:
    """Returns numbers of six decimals; None for NaN."""
    return [None if math.isnan(value) else round(value, 6) for value in values.tolist()]
