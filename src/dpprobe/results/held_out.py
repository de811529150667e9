"""The result of the best of several cells, on seeds and test examples that did not choose it.

The best of M cells has the highest mean by merit and by luck; if all are equally good, its mean is
the largest of M noisy numbers, and too high (selection bias). So the choice is repeated on a part
of the stored results. For each split of the test examples in two (`halves.py`), and of the seeds in
two, a half of the rows and a half of the seeds choose a cell, and the others measure it. Heads of
other seeds have other noise, and rows of the other half are other images. So the measured value
does not depend on the choice, and its mean is the value of a cell so chosen, without bias. The mean
is over both directions of all splits.

The reported estimate is the best cell's mean over everything, plus the mean difference between the
chosen cells and that cell on the same halves. If one cell wins everywhere, the estimate is that
cell's mean; else it is, up to rounding of rows in halves, the mean value of the chosen cells. A
choice by half of the data is a little worse than one by all: where cells differ the number is
rather too low. One seed has no other half: rows alone are divided, and the luck of its noise stays
in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_KEY = 20260102  # of the generator that divides seeds


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The result of the best of several cells without selection bias, in the unit of their means.

    Attributes:
      seeds: True if the seeds that measured it did not select it, either.
    """

    value: float
    seeds: bool


def held_out(
    means: Sequence[float], halves: Sequence[np.ndarray | None], best: int
) -> HeldOut | None:
    """Computes the held-out estimate for the best cell.

    Args:
      means: of each cell, over all seeds and test examples.
      halves: of each cell [seeds, splits, 2], NaN if the metric is not defined.
      best: the index of the cell that is shown.

    Returns:
      None for one cell, and if cells have no halves or the metric is defined on too few of them.
    """
    known = [values for values in halves if values is not None]
    if len(known) < 2 or len(known) < len(halves):
        return None
    seeds = min(len(values) for values in known)
    splits = min(values.shape[1] for values in known)
    values = np.stack([each[:seeds, :splits] for each in known])  # [cells, seeds, splits, 2]
    usable = np.flatnonzero(np.isfinite(values).all(axis=(0, 1, 3)))
    if not len(usable):
        return None
    generator = np.random.Generator(np.random.Philox(_KEY))
    gained = []
    for split in usable:
        order = generator.permutation(seeds)
        parts = (order[: (seeds + 1) // 2], order[(seeds + 1) // 2 :])
        pairs = ((0, 1), (1, 0)) if seeds > 1 else ((0, 0),)
        for choosing, reading in pairs:
            for half in (0, 1):
                by = values[:, parts[choosing], split, half].mean(axis=1)
                told = values[:, parts[reading], split, 1 - half].mean(axis=1)
                gained.append(told[by.argmax()] - told[best])
    return HeldOut(value=float(means[best] + np.mean(gained)), seeds=seeds > 1)
