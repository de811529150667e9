"""Values of a head's headline metric on halves of the test split.

The test units are split into halves at random, `HALVINGS` times. All cells of a dataset use the
same halves, so that two cells can be compared on each half. Values on halves give the variance,
over test examples, of the difference of two cells (`paired_difference.py`). Records store the
values on halves, because predictions may be gigabytes.

Halves must vary as much as new test sets would. An accuracy depends on the class frequencies, which
vary between test sets, so all units are shuffled together. The expectation of a macro accuracy or
AUC does not depend on class frequencies. So each class is split evenly, and both halves contain
rare classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpprobe.data.options import Headline
from dpprobe.results.metrics import Evaluation
from dpprobe.results.uncertainty import make_drawable

HALVINGS = 32
_KEY = 20260101  # the seed of the splits, for all datasets
_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class Halves:
    """Random splits of test units into halves, shared by all heads with these test units.

    Attributes:
      codes: int64 [rows], the index of each row's unit, from 0 without gaps.
      members: bool [HALVINGS, 2, units], True for the units in each half; empty for one unit.
    """

    codes: np.ndarray
    members: np.ndarray


def split_rows(metric: Headline, labels: np.ndarray, *, units: np.ndarray | None = None) -> Halves:
    """Splits test units into halves, each class evenly unless the metric is an accuracy."""
    codes = np.arange(len(labels)) if units is None else np.unique(units, return_inverse=True)[1]
    apart = metric != "accuracy" and labels.ndim == 1
    return Halves(codes=codes, members=split_units(labels if apart else None, codes))


def half_values(
    metric: Headline, evaluation: Evaluation, *, halves: Halves | None = None
) -> list[list[float | None]]:
    """Computes a metric on both halves of each split, [HALVINGS, 2].

    Args:
      halves: the result of `split_rows` for this metric and evaluation; None to compute it.

    Returns:
      The metric on each half, None where the metric is undefined; empty for one test unit.
    """
    if halves is None:
        halves = split_rows(metric, evaluation.labels, units=evaluation.units)
    weights = 1 / np.bincount(halves.codes)[halves.codes]
    drawable = make_drawable(metric, evaluation, halves.codes, weights)
    if drawable is None or len(halves.members) == 0:
        return []
    counts = halves.members.reshape(-1, halves.members.shape[2]).T.astype(np.float32)
    values = drawable.draw_metric(counts).astype(np.float64)
    if metric == "accuracy":  # `Share` divides by all units, not by a half
        values = values * len(counts) / counts.sum(axis=0)
    return [
        [round(float(value), _DIGITS) if np.isfinite(value) else None for value in pair]
        for pair in values.reshape(-1, 2)
    ]


def split_units(labels: np.ndarray | None, codes: np.ndarray) -> np.ndarray:
    """Splits units into halves, bool [HALVINGS, 2, units]; empty for fewer than two units.

    Args:
      labels: int64 [n], to divide each class evenly (a unit has the class of its first row); None
        to shuffle all units together.
      codes: int64 [n], the index of each row's unit, from 0 without gaps.
    """
    count = int(codes.max()) + 1
    if count < 2:
        return np.empty((0, 2, count), dtype=bool)
    kinds = None
    if labels is not None:
        kinds = labels[np.unique(codes, return_index=True)[1]]
        kinds = kinds.astype(np.min_scalar_type(int(kinds.max())))  # small types sort by radix
    generator = np.random.Generator(np.random.Philox(_KEY))
    halves = np.empty((HALVINGS, 2, count), dtype=bool)
    odd = np.arange(count) % 2
    for split in halves:
        order = np.argsort(generator.random(count))
        if kinds is not None:
            order = order[np.argsort(kinds[order], kind="stable")]
        split[0, order] = odd == generator.integers(2)
        split[1] = ~split[0]
    return halves
