"""Rank correlation of a few points, with an interval that has a width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST = 4  # points of a correlation: of three any order is likely by chance


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's correlation of some points.

    Attributes:
      value: None below four points, and where a variable is the same at all of them.
      low, high: of a 95 % interval; None with the value.
    """

    points: int
    value: float | None
    low: float | None = None
    high: float | None = None


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> RankCorrelation:
    """Computes Spearman's correlation and its interval.

    The interval is that of Fisher's transformation with the variance of Bonett and Wright (2000),
    for points that are independent of each other. Where all ranks agree it is taken at the middle
    between 1 and the largest value below it, which is of two neighbours exchanged: at 1 itself it
    would have no width.
    """
    from scipy.stats import spearmanr  # heavy, for a start of Snakemake

    points = len(first)
    if points < FEWEST or len(set(first)) == 1 or len(set(second)) == 1:
        return RankCorrelation(points, None)
    value = float(spearmanr(first, second).statistic)
    largest = 1 - 6 / (points * (points**2 - 1))
    inner = float(np.clip(value, -largest, largest))
    reach = 1.959964 * math.sqrt((1 + inner**2 / 2) / (points - 3))
    middle = math.atanh(inner)
    low, high = math.tanh(middle - reach), math.tanh(middle + reach)
    return RankCorrelation(points, value, min(low, value), max(high, value))
