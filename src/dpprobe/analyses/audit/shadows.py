"""Heads trained with and without each of some units of privacy, for attacks on membership.

Each head is trained by the cell's method and plan on the cell's rows. For each head and each
attacked unit, a fair coin decides between in and out. A unit that is out has weight 0, like a null
row: the unit adds nothing to any sum, and n, rates, divisors and noise do not change. Units that
  are not attacked are in the training data of every head.

Coins are independent, so knowing all other coins does not help an attacker to guess one coin: a
plan's trade-off curve bounds exactly this game (privacy.trade_off). The results describe real rows,
so they are not private.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.analyses.audit.membership_attacks import Confidences, Flags, compute_confidences
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import derived_seed, open_stream
from dpprobe.progress import Progress

logger = logging.getLogger("dpprobe")

Index = npt.NDArray[np.int64]

# Rare classes have together at most this share of rows, each this share of the mean per class.
_RARE_ROWS, _RARE_CLASS = 0.1, 0.5


@dataclass(frozen=True)
class Attacked:
    """The units that a membership attack attacks.

    Attributes:
      units: int64 [u], the units' numbers in the training set.
      rows: int64 [r], all rows of the attacked units.
      unit_of: int64 [r], for each row in `rows` the index of its unit in `units`.
      mislabelled: [u], True if the labels of the unit's rows were changed.
      labels: the labels of all rows of the training set, after labels were changed.
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
    """Samples at most `rows` units, and chooses the units whose labels are changed."""
    members = units_of(data)
    drawn = open_stream(seed, "attacked units").permutation(members.count)[:rows]
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
    """Tosses a fair coin for each head and attacked unit: [heads, u], True for "in"."""
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
    """Trains a head for each line of `members`, and computes its confidences on all attacked units.

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
    """Returns the method with the penalty that one cross-validation on all units chose.

    Choosing a penalty for each head would take as long as ten fits, and the choice would hardly
    depend on any one unit.
    """
    if len(getattr(method, "penalties", ())) < 2:
        return method
    # A fit keeps its history only if `record` is given.
    heads = fit_heads(method, data, plan, [derived_seed(seed, "choice")], record=lambda *_: None)
    return method.model_copy(update={"penalties": (heads.history[0]["penalty"],)})


@contextmanager
def _side_by_side(data: TrainingSet) -> Iterator[Callable[..., Iterator[Confidences]]]:
    """Yields a `map` of fits; on the CPU one fit per thread of PyTorch runs at a time.

    Short fits (milliseconds) gain nothing from threads. Fits log only warnings.
    """
    caller = threading.get_ident()
    workers = torch.get_num_threads() if data.device.type == "cpu" else 1

    def keep_record(record: logging.LogRecord) -> bool:
        return record.thread == caller or record.levelno >= logging.WARNING

    # Each fit sets and restores PyTorch's precision, which must not happen while another fit runs.
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
    """Returns copies of some rows of a training set, which may be streamed from disk."""
    out = torch.empty((len(rows), data.dimension), device=data.device)
    for start, block in data.read_blocks():
        here = np.flatnonzero((rows >= start) & (rows < start + len(block)))
        out[torch.from_numpy(here)] = block[torch.from_numpy(rows[here] - start)]
    return out
