"""Intervals of a metric: shares of rows, means over classes, seeds and rows together.

**Seeds and rows.** A cell's mean over seeds differs from what to expect of new noise and new images
by two errors, one of the seeds that were drawn and one of the test examples. Each has an interval
with its own lower and upper side; where both are independent the sides of the sum are the roots of
the sums of squares (MOVER: Zou and Donner 2008). The interval over test examples is that of a
single seed's rows, and so holds also what rows and seeds have in common, which the spread of the
seeds holds again: together they are rather too wide than too narrow.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from dpprobe.results.bootstrap import CONFIDENCE

Ends = tuple[float, float]


def wilson_interval(share: float, rows: float, confidence: float = CONFIDENCE) -> Ends:
    """Computes Wilson's score interval of a share of `rows` independent rows."""
    z = float(ndtri((1 + confidence) / 2))
    shrunk = 1 + z**2 / rows
    centre = (share + z**2 / (2 * rows)) / shrunk
    half = z / shrunk * math.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    # At the ends rounding would leave the share outside.
    return max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))


def over_classes(mean: float, correct: np.ndarray, labels: np.ndarray) -> Ends:
    """Computes the interval of the mean recall of the classes that rows have, by the classes.

    Each class's share of right rows is independent of the others' and has the variance
    p (1 - p) / m, m its rows. p is moved to a half by as much as two right and two wrong rows do
    (Agresti and Coull 1998), so that a class with few rows that are all right has a width too.

    Args:
      mean: the middle of the interval, such as the mean over seeds.
      correct: [n] booleans. labels: [n].
    """
    z = float(ndtri((1 + CONFIDENCE) / 2))
    rows = np.bincount(labels)
    right = np.bincount(labels, weights=correct)[rows > 0]
    rows = rows[rows > 0]
    moved = (right + z**2 / 2) / (rows + z**2)
    half = z * math.sqrt(np.sum(moved * (1 - moved) / rows)) / len(rows)
    return max(0.0, mean - half), min(1.0, mean + half)


def combine_errors(mean: float, *parts: Ends) -> Ends:
    """Returns the interval of a mean with several independent errors, each with its own ends."""
    low = math.sqrt(math.fsum((mean - low) ** 2 for low, _ in parts))
    high = math.sqrt(math.fsum((high - mean) ** 2 for _, high in parts))
    return max(0.0, mean - low), min(1.0, mean + high)
