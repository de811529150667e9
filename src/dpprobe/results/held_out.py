"""The result of the best of several cells, on seeds and test examples that did not select the cell.

The best of M cells has the highest mean by merit and by luck; if all are equally good, its mean is
the largest of M noisy numbers, and too high (selection bias). So the choice is repeated on parts of
the stored results. The test examples are split in two (`halves.py`), and so are the seeds. One half
of the rows and one half of the seeds choose a cell, and the other halves measure it. Heads of the
other seeds have independent noise, and the other half has different images. So the measured value
has no bias from the choice, and its mean is the expected value of a cell that is chosen in this
way. The mean is over all splits, with each half choosing once.

The reported estimate is the best cell's mean over everything, plus the mean difference between the
chosen cells and the best cell on the same halves. If one cell wins on all halves, the estimate is
that cell's mean. Otherwise the estimate is the mean value of the chosen cells, up to differences in
the sizes of halves. Half of the data chooses a little worse than all data, so the estimate tends to
be too low if cells differ. One seed cannot be split: then only rows are split, and the luck of this
seed's noise stays in the estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_KEY = 20260102  # seed of the generator that splits the seeds


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The result of the best of several cells without selection bias, in the unit of cell means.

    Attributes:
      seeds: True if seeds were split too, so that other seeds measured the cell than selected it.
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
      best: the index of the cell with the highest mean, whose result is corrected.

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
