"""The difference between two cells' results on the same test rows, with its interval.

Both cells were tested on the same images, so that what is hard is hard for both: their difference
is surer than their intervals say. Its variance over test rows comes from the halves that the
records keep: where rows are split in two at random, the difference on one half less that on the
other has four times the variance of the difference on all rows, so that a quarter of the mean
square over splits estimates it (balanced half-samples: McCarthy 1969), for any metric. The
variances over seeds are added, heads of two cells having independent noise. Where halves say
nothing (few test rows, or two cells that are alike on each) the two intervals over seeds and rows
are taken as independent, which is conservative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from dpprobe.results.bootstrap import CONFIDENCE
from dpprobe.results.summary import Entry

# Splits of fewer test rows give too few different halves.
FEWEST_ROWS = 20
PAIRED = "paired over test rows"
INDEPENDENT = "as if tested on other rows"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A cell's mean minus another's, in percentage points, and the ends of its interval.

    Attributes:
      low, high: None where no interval is known.
      way: PAIRED or INDEPENDENT; None without an interval.
    """

    difference: float
    low: float | None
    high: float | None
    way: str | None

    @property
    def apart(self) -> bool:
        """True if the interval leaves out 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def moved(self, points: float) -> Comparison:
        """Returns the same comparison of a first cell that is this much better."""
        return replace(
            self,
            difference=self.difference + points,
            low=None if self.low is None else self.low + points,
            high=None if self.high is None else self.high + points,
        )


def compare(first: Entry, second: Entry, *, confidence: float = CONFIDENCE) -> Comparison:
    """Compares two cells of a dataset by their headline: the first's mean minus the second's."""
    difference = first.mean - second.mean
    paired = _paired_half(first, second, confidence)
    if paired is not None:
        return Comparison(
            difference=difference, low=difference - paired, high=difference + paired, way=PAIRED
        )
    ends = (first.both_low, first.both_high, second.both_low, second.both_high)
    if any(end is None for end in ends):
        return Comparison(difference=difference, low=None, high=None, way=None)
    low, high, other_low, other_high = (float(end) for end in ends if end is not None)
    return Comparison(
        difference=difference,
        low=difference - math.hypot(first.mean - low, other_high - second.mean),
        high=difference + math.hypot(high - first.mean, second.mean - other_low),
        way=INDEPENDENT,
    )


def _paired_half(first: Entry, second: Entry, confidence: float) -> float | None:
    """Returns half of the paired interval; None where the halves say nothing."""
    if first.halves is None or second.halves is None or first.test_units < FEWEST_ROWS:
        return None
    if first.halves.shape[1:] != second.halves.shape[1:]:
        return None
    apart = first.halves.mean(axis=0) - second.halves.mean(axis=0)  # [splits, 2]
    apart = apart[np.isfinite(apart).all(axis=1)]
    if len(apart) < 2:
        return None
    parts = [(float(np.mean((apart[:, 0] - apart[:, 1]) ** 2) / 4), len(apart))]
    if parts[0][0] <= 0:
        return None
    for entry in (first, second):
        if len(entry.values) > 1:
            variance = float(np.var(entry.values, ddof=1)) / len(entry.values)
            parts.append((variance, len(entry.values) - 1))
    total = math.fsum(variance for variance, _ in parts)
    freedom = total**2 / math.fsum(variance**2 / degrees for variance, degrees in parts)
    return float(stdtrit(freedom, (1 + confidence) / 2)) * math.sqrt(total)
