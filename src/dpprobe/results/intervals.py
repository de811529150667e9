"""Confidence intervals: of shares of rows, of means over classes, and over seeds and rows.

**Seeds and rows.** A cell's mean over seeds differs from its expectation over new noise and new
images by an error from the seeds and an error from the test examples. Each error has an interval
with a lower and an upper side. If the errors are independent, each side of the combined interval is
the root of the sum of squares of both errors' sides (MOVER: Zou and Donner 2008). The interval over
test examples and the interval over seeds both include the interaction of examples and seeds. The
combined interval over seeds and examples is therefore too wide rather than too narrow.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from dpprobe.results.bootstrap import CONFIDENCE

Ends = tuple[float, float]


def wilson_interval(share: float, rows: float, confidence: float = CONFIDENCE) -> Ends:
    """Computes Wilson's score interval for a share of `rows` independent rows."""
    z = float(ndtri((1 + confidence) / 2))
    shrunk = 1 + z**2 / rows
    centre = (share + z**2 / (2 * rows)) / shrunk
    half = z / shrunk * math.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    # Rounding could leave a share of 0 or 1 outside its interval.
    return max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))


def over_classes(mean: float, correct: np.ndarray, labels: np.ndarray) -> Ends:
    """Computes the interval of the mean recall over classes, from the variance of each class.

    The recalls of classes are independent; a recall p of m rows has the variance p (1 - p) / m.
    About two right and two wrong rows are added to each class (Agresti and Coull 1998), because the
    estimated variance of a class would be 0 if all its rows were right. `mean` is the middle of the
    interval.
    """
    z = float(ndtri((1 + CONFIDENCE) / 2))
    rows = np.bincount(labels)
    right = np.bincount(labels, weights=correct)[rows > 0]
    rows = rows[rows > 0]
    moved = (right + z**2 / 2) / (rows + z**2)
    half = z * math.sqrt(np.sum(moved * (1 - moved) / rows)) / len(rows)
    return max(0.0, mean - half), min(1.0, mean + half)


def combine_errors(mean: float, *parts: Ends) -> Ends:
    """Combines intervals of a mean for independent errors into one interval."""
    low = math.sqrt(math.fsum((mean - low) ** 2 for low, _ in parts))
    high = math.sqrt(math.fsum((high - mean) ** 2 for _, high in parts))
    return max(0.0, mean - low), min(1.0, mean + high)
