"""Values of a head's headline metric on halves of the test split.

`HALVINGS` times the test units are split in two at random, each class in equal parts. All cells of
a dataset have the same test rows and are split alike, so that their values on a half can be
compared in pairs. Two things are made from them: the value of the best of several cells on rows
that took no part in choosing it (`held_out.py`), and the variance over test rows of the difference
of two cells (`compare.py`). A cell's record keeps them, for its predictions may be gigabytes.
"""

from __future__ import annotations

import numpy as np

from dpprobe.data.options import Headline
from dpprobe.results.metrics import Link, drawable_of

HALVINGS = 32
_KEY = 20260101  # of the generator that splits; the same for all datasets
_DIGITS = 6


def half_values(
    metric: Headline,
    scores: np.ndarray,
    labels: np.ndarray,
    *,
    link: Link = "softmax",
    units: np.ndarray | None = None,
) -> list[list[float | None]]:
    """Computes a metric on both halves of each split, [HALVINGS, 2].

    Args:
      scores, labels, units: as of `metrics.evaluate`.

    Returns:
      None for a half on which the metric is not defined, and an empty list for one test unit.
    """
    codes = np.arange(len(labels)) if units is None else np.unique(units, return_inverse=True)[1]
    metric_of = drawable_of(metric, scores, labels, link=link, units=codes)
    halves = split_units(labels, codes)
    if metric_of is None or len(halves) == 0:
        return []
    counts = halves.reshape(-1, halves.shape[2]).T.astype(np.float32)
    values = metric_of.drawn(counts).astype(np.float64)
    if metric == "accuracy":  # drawn() divides by all units, and a half has fewer
        values = values * len(counts) / counts.sum(axis=0)
    return [
        [round(float(value), _DIGITS) if np.isfinite(value) else None for value in pair]
        for pair in values.reshape(-1, 2)
    ]


def split_units(labels: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Splits units in halves, bool [HALVINGS, 2, units]; empty for less than two units.

    With one label a row each class is divided evenly, a unit counted by its first row's.

    Args:
      labels: [n] or [n, K].
      codes: int64 [n], a number from 0 without gaps for the unit of each row.
    """
    count = int(codes.max()) + 1
    if count < 2:
        return np.empty((0, 2, count), dtype=bool)
    first = np.unique(codes, return_index=True)[1]
    kinds = labels[first] if labels.ndim == 1 else np.zeros(count, dtype=np.int64)
    generator = np.random.Generator(np.random.Philox(_KEY))
    halves = np.empty((HALVINGS, 2, count), dtype=bool)
    for split in halves:
        order = np.lexsort((generator.random(count), kinds))
        split[0, order] = np.arange(count) % 2 == generator.integers(2)
        split[1] = ~split[0]
    return halves
