"""Membership attacks on real training examples, compared with the best attack under the plan.

The attacks are not differentially private: scores and rates describe private rows, and must be
protected like private rows. Published heads are not attacked: the attacked heads are trained only
for the attack, by the cell's method and plan on the cell's rows. Each head is attacked once, with
all other heads as shadow models.

For each head and each attacked unit, a fair coin decides between in and out. A unit that is out has
weight 0, like a null row. A unit of weight 0 adds nothing to any sum, and n, rates, divisors and
noise do not change. Units that are not attacked are in the training data of every head. Coins are
independent, so knowing all other coins does not help to guess one coin.

Results are given for three groups of units. **all**: attacked units with real labels.
**mislabelled**: a few units whose labels were changed before any training, which heads remember
most.
**rarest_classes**: units with a row of a rare class. Rare classes are the smallest classes, with
together at most a tenth of all rows, and each with at most half the mean rows per class.

The plan's trade-off curve bounds every guess of one coin (`privacy.trade_off`), whatever the other
units are. The trade-off curve is concave in the false-positive rate, so it also bounds a
threshold's mean rates over units and heads. If a measured rate is above the curve but its interval
reaches the curve, the excess may be chance. If the whole interval is above the curve, the guarantee
is broken. A measured rate far below the curve only shows that the attack is weak.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.analyses.audit import membership_attacks
from dpprobe.analyses.audit.membership_attacks import (
    Confidences,
    Flags,
    Numbers,
    Roc,
    compute_confidences,
    measure_roc,
)
from dpprobe.errors import DataError
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import derived_seed, open_stream
from dpprobe.privacy.trade_off import Allowed, allow_everything, bound_attacks
from dpprobe.progress import Progress

logger = logging.getLogger("dpprobe")

Index = npt.NDArray[np.int64]

# All rare classes together have at most the share `_RARE_ROWS` of all rows. Each rare class has at
# most `_RARE_CLASS` times the mean number of rows per class.
_RARE_ROWS, _RARE_CLASS = 0.1, 0.5

RATES = (0.001, 0.01)
ATTACKS = ("loss", "lira", "rmia")
INTERVAL = "95%, over heads and units (pigeonhole bootstrap)"
LEAST_UNITS = 20
# False positive rates at which curves are computed; the report shows only the rates of `RATES`.
_CURVE = np.append(np.logspace(-4, 0, 81), RATES)


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
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trains heads with and without units, and attacks them; defaults as in `MembershipOptions`.

    Args:
      seed: the seed of all random numbers, at most 128 bits.
      targets: number of heads that are attacked; None attacks all. The attack on one head uses all
        other heads as shadows.

    Returns:
      The part `membership` of the audit's record, JSON-compatible, and the table of scores. The
      table has columns attack, member and score, and one row for each head and unit.

    Raises:
      ConfigError: if the head's engine takes no weights of rows.
      DataError: if the data has too few units or classes to attack.
      PrivacyError: if the plan was made for another method or other data.
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
    results, curves = _measure_attacks(scores, members[:targets], groups, seed=seed)
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
    return record, _long_table(scores, members[:targets], groups)


def _measure_attacks(
    scores: Mapping[str, Numbers], members: Flags, groups: Mapping[str, Flags], *, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the results and the ROC curves of each attack on each group of units."""
    results, curves = [], []
    for group, chosen in groups.items():
        for name in ATTACKS:
            roc = measure_roc(
                scores[name][:, chosen],
                members[:, chosen],
                _CURVE.tolist(),
                seed=derived_seed(seed, "intervals"),
            )
            if roc is not None:
                place = {"rows": group, "attack": name}
                results.append({**place, "units": int(chosen.sum()), **_describe_roc(roc)})
                ends = {"tpr": roc.tpr, "low": roc.low, "high": roc.high}
                curves.append({**place, **{key: _round_curve(ends[key]) for key in ends}})
    return results, curves


def _check_request(data: TrainingSet) -> None:
    if data.n < LEAST_UNITS:
        raise DataError(
            f"membership: {data.n} units of privacy to attack, but at least {LEAST_UNITS} are "
            "needed; remove `membership`, or use a larger dataset"
        )
    if data.num_classes == 1 and not data.multi_label:
        raise DataError(
            "membership: the attacked data has only one class, so every head predicts it; use "
            "data with two or more classes"
        )


def allowed_by(plan: Plan) -> Allowed:
    """Computes the best rates that an attack can have under a plan; all 1 without a guarantee."""
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
    """Makes the columns of the table of scores; units of rare classes are in the group "all"."""
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
    """Returns a curve's values at the false positive rates of `RATES`, by rate."""
    return {
        f"{rate:g}": v for rate, v in zip(RATES, _round_values(values[-len(RATES) :]), strict=True)
    }


def _round_curve(values: Numbers) -> list[float | None]:
    """Returns a curve's rounded values, except at the false positive rates of `RATES`."""
    return _round_values(values[: -len(RATES)])


def _round_values(values: Numbers) -> list[float | None]:
    return [None if math.isnan(value) else round(value, 6) for value in values.tolist()]


@dataclass(frozen=True)
class Attacked:
    """The units that a membership attack attacks.

    Attributes:
      units: int64 [u], the units' numbers in the training set.
      rows: int64 [r], all rows of the attacked units.
      unit_of: int64 [r], for each row in `rows` the index of its unit in `units`.
      mislabelled: [u], True if the labels of the unit's rows were changed.
      labels: the labels of all rows of the training set, including changed labels.
      rare: [u], True for units with a row of a rare class; None if no class is rare.
    """

    units: Index
    rows: Index
    unit_of: Index
    mislabelled: Flags
    labels: torch.Tensor
    rare: Flags | None

    @cached_property
    def sizes(self) -> Index:
        return np.bincount(self.unit_of, minlength=len(self.units))


def draw_units(data: TrainingSet, *, rows: int, mislabelled: float, seed: int) -> Attacked:
    """Samples at most `rows` units with a usable row, and the units whose labels are changed."""
    members = units_of(data)
    present = np.unique(members.unit_of_rows()[data.lengths.isfinite().cpu().numpy()])
    drawn = open_stream(seed, "attacked units").permutation(present)[:rows]
    units = np.sort(drawn)
    indices, sizes = members.rows_of(units, np.ones(len(units), dtype=np.int64))
    unit_of = np.repeat(np.arange(len(units)), sizes)
    changes = open_stream(seed, "changed labels")
    changed = np.zeros(len(units), dtype=bool)
    changed[changes.permutation(len(units))[: round(mislabelled * len(units))]] = True
    labels = data.labels.cpu().numpy().copy()
    rare_rows = _find_rare_rows(labels, data.num_classes)
    picked = indices[changed[unit_of]]
    if data.multi_label:
        labels[picked] = 1 - labels[picked]
    elif len(picked):
        shifts = changes.integers(1, data.num_classes, size=len(picked))
        labels[picked] = (labels[picked] + shifts) % data.num_classes
    rare = None
    if rare_rows is not None:
        rare = np.bincount(unit_of, weights=rare_rows[indices], minlength=len(units)) > 0
    return Attacked(units, indices, unit_of, changed, torch.from_numpy(labels), rare)


def units_of(data: TrainingSet) -> Units:
    """Returns the units of a training set; if it has no units, each row is a unit."""
    if data.units is not None:
        return data.units
    return Units(
        members=np.arange(data.rows),
        starts=np.arange(data.rows + 1),
        weights=np.ones(data.rows, dtype=np.float32),
    )


def _find_rare_rows(labels: npt.NDArray[np.integer], num_classes: int) -> Flags | None:
    """Returns True for rows of rare classes, [rows]; None if there is no rare class."""
    multi_label = labels.ndim == 2
    counts = labels.sum(axis=0) if multi_label else np.bincount(labels, minlength=num_classes)
    present = np.flatnonzero(counts)
    rising = present[np.argsort(counts[present], kind="stable")]
    together = np.cumsum(counts[rising]) <= _RARE_ROWS * len(labels)
    small = counts[rising] <= _RARE_CLASS * counts[present].mean()
    rare = rising[together & small]
    if not len(rare):
        return None
    return np.asarray(labels[:, rare].any(axis=1) if multi_label else np.isin(labels, rare))


def toss_coins(attacked: Attacked, heads: int, *, seed: int) -> Flags:
    """Tosses a fair coin for each head and attacked unit: [heads, units], True for "in"."""
    return open_stream(seed, "coins").random((heads, len(attacked.units))) < 0.5


def leave_units_out(data: TrainingSet, attacked: Attacked, members: Flags) -> TrainingSet:
    """Returns a head's training set: attacked units that are not `members` [u] have weight 0."""
    units = units_of(data)
    weights = units.weights.copy()
    weights[attacked.rows[~members[attacked.unit_of]]] = 0.0
    return data.replace_labels(attacked.labels, Units(units.members, units.starts, weights))


def train_and_look(
    method: MethodOptions,
    plan: Plan,
    data: TrainingSet,
    attacked: Attacked,
    members: Flags,
    *,
    seed: int,
    label: str,
) -> Confidences:
    """Trains one head per row of `members`, and computes its confidences on all attacked units.

    Returns:
      Confidences as arrays [heads, u]; the value of a unit is the mean over its rows.
    """
    method = settle_choice(
        method, plan, data.replace_labels(attacked.labels, units_of(data)), seed=seed
    )
    features = copy_rows(data, attacked.rows)
    labels = attacked.labels.numpy()[attacked.rows].astype(np.int64)
    seen = Confidences(*(np.empty(members.shape) for _ in Confidences._fields))

    def train_one(index: int) -> Confidences:
        rows = leave_units_out(data, attacked, members[index])
        heads = fit_heads(method, rows, plan, [derived_seed(seed, f"head {index}")])
        return compute_confidences(score_rows(heads, features)[0], labels)

    with (
        Progress(len(members), label=label, unit="shadow heads") as progress,
        _side_by_side(data) as each,
    ):
        for index, by_row in enumerate(each(train_one, range(len(members)))):
            for kept, values in zip(seen, by_row, strict=True):
                total = np.bincount(attacked.unit_of, values, minlength=len(attacked.units))
                kept[index] = total / attacked.sizes
            progress.advance_by(1)
    return seen


def settle_choice(
    method: MethodOptions, plan: Plan, data: TrainingSet, *, seed: int
) -> MethodOptions:
    """Returns the method with the regularisation penalty chosen by cross-validation on all units.

    A cross-validation for each head would take as long as ten fits of the head, and its choice
    would hardly depend on a single unit.
    """
    if len(getattr(method, "penalties", ())) < 2:
        return method
    # `fit_heads` returns the history, which has the chosen penalty, only if `record` is given.
    heads = fit_heads(method, data, plan, [derived_seed(seed, "choice")], record=lambda *_: None)
    return method.model_copy(update={"penalties": (heads.history[0]["penalty"],)})


@contextmanager
def _side_by_side(data: TrainingSet) -> Iterator[Callable[..., Iterator[Confidences]]]:
    """Yields a parallel `map`: one fit for each PyTorch thread on the CPU, else one fit at a time.

    Each fit uses one thread, because short fits gain nothing from more. Fits log only warnings.
    """
    caller = threading.get_ident()
    workers = torch.get_num_threads() if data.device.type == "cpu" else 1

    def keep_record(record: logging.LogRecord) -> bool:
        return record.thread == caller or record.levelno >= logging.WARNING

    # Parallel fits set and restore PyTorch's global precision, which is harmless if all fits find
    # their precision already set.
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    logger.addFilter(keep_record)
    try:
        with ThreadPoolExecutor(workers, initializer=lambda: torch.set_num_threads(1)) as pool:
            yield pool.map
    finally:
        logger.removeFilter(keep_record)
        torch.set_float32_matmul_precision(precision)


def copy_rows(data: TrainingSet, rows: Index) -> torch.Tensor:
    """Copies some rows of a training set (in memory or on disk) into one tensor."""
    out = torch.empty((len(rows), data.dimension), device=data.device)
    for start, block in data.read_blocks():
        here = np.flatnonzero((rows >= start) & (rows < start + len(block)))
        out[torch.from_numpy(here)] = block[torch.from_numpy(rows[here] - start)]
    return out
