"""The difference between two cells' results on the same test examples, with its interval.

Hard images are hard for both cells, so the difference is more precise than the two cells' intervals
suggest. The variance of the difference over test examples is estimated from random halves of the
test split (balanced half-samples: McCarthy 1969; see `halves.py`). The difference on one half minus
the difference on the other half has four times the variance of the difference on all rows. So the
estimate is a quarter of the mean square of this value over the splits.

The variances of both cells over seeds are added, because the noise of their heads is independent.
With one seed the variance over seeds is unknown, which `Comparison.one_seed` records. Halves give
no estimate if there are few test examples, or if both cells are equal on each half. Then the cells'
intervals over seeds and rows are combined as if independent, which is conservative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from dpprobe.results.bootstrap import CONFIDENCE
from dpprobe.results.summary import Entry

# With fewer effective test examples (`resting_rows`), halves underestimate the variance. In
# simulations with 10 rows, only 90% of the 95% intervals contained the truth.
FEWEST_ROWS = 20
PAIRED = "paired over test rows"
INDEPENDENT = "as if tested on other rows"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One cell's mean minus another's, in percentage points, and the ends of its interval.

    Attributes:
      way: PAIRED or INDEPENDENT, how the interval was computed; None without an interval.
      one_seed: True if a private cell has one seed, so that the interval ignores training noise,
        which may explain the whole difference.
    """

    difference: float
    low: float | None
    high: float | None
    way: str | None
    one_seed: bool = False

    @property
    def apart(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def units_to_tell(self, units: int, *, least: float) -> int:
        """Estimates how many test units would distinguish the difference from 0, at least.

        The estimate is too low: it assumes that the whole interval shrinks with the root of the
        number of units, but the part over seeds does not. Differences below `least` are replaced by
        `least`.
        """
        assert self.low is not None
        assert self.high is not None
        up, down = self.high - self.difference, self.difference - self.low
        reach = up if self.difference < 0 else down
        return math.ceil(units * (reach / max(abs(self.difference), least)) ** 2)


def compare_entries(first: Entry, second: Entry) -> Comparison:
    """Computes the first cell's mean headline metric minus the second cell's, with its interval."""
    difference = first.mean - second.mean
    one_seed = any(entry.private and entry.seeds < 2 for entry in (first, second))
    paired = _paired_half(first, second)
    sides, way = (paired, paired), PAIRED
    if paired is None:
        sides, way = _independent_sides(first, second), INDEPENDENT
    below, above = sides
    if below is None or above is None:
        return Comparison(difference=difference, low=None, high=None, way=None, one_seed=one_seed)
    low, high = difference - below, difference + above
    return Comparison(difference=difference, low=low, high=high, way=way, one_seed=one_seed)


def _independent_sides(first: Entry, second: Entry) -> tuple[float | None, float | None]:
    sides: list[tuple[float, float]] = []
    for entry in (first, second):
        if entry.both_low is None or entry.both_high is None:
            return None, None
        sides.append((entry.mean - entry.both_low, entry.both_high - entry.mean))
    (low, high), (other_low, other_high) = sides
    return math.hypot(low, other_high), math.hypot(high, other_low)


def _paired_half(first: Entry, second: Entry) -> float | None:
    """Returns half the width of the paired interval; None if the halves give no estimate."""
    if first.halves is None or second.halves is None:
        return None
    if (first.test_units if first.resting is None else first.resting) < FEWEST_ROWS:
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
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(total)
