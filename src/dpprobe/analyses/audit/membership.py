"""Membership attacks on real training examples, compared with the best attack under the plan.

The attacks are not differentially private: scores and rates describe real rows, and must be
protected like these rows. Published heads are not attacked: the attacked heads are trained only for
the attack (`audit.shadows`). Each head is the target once, with all other heads as its shadows.

Results are given for three groups of units. **all**: units with their real labels. **mislabelled**:
a few units whose labels were changed before any training, which heads remember most.
**rarest_classes**: units with a row of a rare class. Rare classes are the smallest ones, with
  together at most a tenth of all rows, and each with at most half the mean rows per class.

The plan bounds every attack on a unit (`privacy.trade_off`). The bound holds for each unit,
whatever the other units are, and its curve is concave, so it also bounds a threshold's mean rates
over units and heads. A measured rate above the plan's bound is chance if its interval reaches the
bound, else a broken guarantee. A measured rate far below the bound only shows that the attack is
weak.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
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
ATTACKS = ("loss", "lira", "rmia")
INTERVAL = "95%, over heads and units (pigeonhole bootstrap)"
LEAST_UNITS = 20
# False positive rates of the curves; the last two are the rates that the report shows.
_CURVE = np.append(np.logspace(-4, 0, 81), RATES)


@dataclass(frozen=True)
class MembershipResult:
    """The attacks on the heads of one cell's method and plan.

    Attributes:
      record: the part `membership` of the audit's record, JSON-compatible.
      scores: columns attack, member and score, with one row for each head and unit.
    """

    record: Mapping[str, Any]
    scores: Mapping[str, Any]


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
    """Trains heads with and without units, and attacks these heads; defaults: `MembershipOptions`.

    Args:
      seed: the seed of all random numbers, at most 128 bits.
      shadows: number of heads that are trained.
      targets: number of heads that are attacked; None attacks all. The attack on one head uses all
        other heads as shadows.
      rows: maximum number of attacked units; all other units are in every head's training data.
      mislabelled: the share of attacked units whose labels are changed.

    Raises:
      ConfigError: if the head's engine takes no weights of rows.
      DataError: if the data has too few units or classes to attack.
      PrivacyError: if the plan is not for this method on this data.
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
    results, curves = [], []
    for group, chosen in groups.items():
        for name in ATTACKS:
            roc = measure_roc(
                scores[name][:, chosen],
                members[:targets, chosen],
                _CURVE.tolist(),
                seed=derived_seed(seed, "intervals"),
            )
            if roc is not None:
                place = {"rows": group, "attack": name}
                results.append({**place, "units": int(chosen.sum()), **_describe_roc(roc)})
                ends = {"tpr": roc.tpr, "low": roc.low, "high": roc.high}
                curves.append({**place, **{key: _round_curve(ends[key]) for key in ends}})
    allowed = allowed_by(plan)
    bounds = np.asarray(allowed.true_positives)
    record = {
        "shadows": shadows - 1,
        "targets": targets,
        "units": len(attacked.units),
        "n": plan.n,
        "rows": results,
        "not_applicable": [{"rows": group, "reason": missing[group]} for group in missing],
        "interval": INTERVAL,
        "roc": {"fpr": _round_curve(_CURVE), "allowed": _round_curve(bounds), "curves": curves},
        "allowed": {"balanced_accuracy": allowed.balanced_accuracy, "tpr_at_fpr": _by_rate(bounds)},
        "seconds": round(time.monotonic() - started, 3),
        "shadows_per_second": round(shadows / max(trained - started, 1e-9), 3),
    }
    return MembershipResult(record, _long_table(scores, members[:targets], groups))


def _check_request(data: TrainingSet) -> None:
    if data.n < LEAST_UNITS:
        raise DataError(
            f"membership: {data.n} units of privacy to attack, but at least {LEAST_UNITS} are "
            "needed"
        )
    if data.num_classes == 1 and not data.multi_label:
        raise DataError(
            "membership: the attacked data has only one class, so every head predicts it; use "
            "data with two or more classes"
        )


def allowed_by(plan: Plan) -> Allowed:
    """Computes the best attack's rates under a plan (perfect rates without a guarantee)."""
    rates = np.minimum(_CURVE, 1.0).tolist()
    if not plan.private:
        return allow_everything(rates)
    return bound_attacks(
        plan.mechanisms, rates, plan.selection, delta=plan.delta, epsilon=plan.realised_epsilon
    )


def _group_units(attacked: Attacked) -> tuple[dict[str, Flags], dict[str, str]]:
    """Returns the units of each group, and the reason for each group without units."""
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


def _long_table(
    scores: Mapping[str, Numbers], members: Flags, groups: Mapping[str, Flags]
) -> dict[str, Any]:
    """Returns the scores of all units as columns; group "all" includes units of rare classes."""
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


def _describe_roc(roc: Roc) -> dict[str, Any]:
    ends = np.stack([roc.low, roc.high], axis=1)[-len(RATES) :]
    return {
        "members": roc.members,
        "non_members": roc.non_members,
        "auc": round(roc.auc, 6),
        "auc_interval": _round_values(np.array(roc.auc_interval)),
        "tpr_at_fpr": _by_rate(roc.tpr),
        "intervals": {
            f"{rate:g}": None if np.isnan(pair).any() else _round_values(pair)
            for rate, pair in zip(RATES, ends, strict=True)
        },
    }


def _by_rate(values: Numbers) -> dict[str, float | None]:
    """Returns a curve's last values, at the false positive rates that the report shows, by rate."""
    return {
        f"{rate:g}": v for rate, v in zip(RATES, _round_values(values[-len(RATES) :]), strict=True)
    }


def _round_curve(values: Numbers) -> list[float | None]:
    """Returns the values of a curve without the last values, which are at the reported rates."""
    return _round_values(values[: -len(RATES)])


def _round_values(values: Numbers) -> list[float | None]:
    """Returns numbers rounded to six decimals; None for NaN."""
    return [None if math.isnan(value) else round(value, 6) for value in values.tolist()]
