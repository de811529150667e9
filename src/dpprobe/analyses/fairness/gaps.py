"""Gaps between the best and the worst group, and intervals that are valid even if groups are equal.

The largest of several estimates minus the smallest is too large by chance, even more in resamples.
So a percentile interval of the gap almost never contains a true gap of 0. Intervals are therefore
computed from differences of two groups in resamples, for which the bootstrap is valid.

The gap is phi = max over (g, h) of v_g - v_h, where v_g is the true metric of group g. If a metric
has several rates or labels, it has one column for each, phi is the largest gap of any column, and
"pairs of groups" below means the pairs within each column. With the estimates v', and the
resamples' deviations e from their mean, the interval [low, high] of phi is:

- low: the largest of v'_g - v'_h - c s_gh over pairs of groups. The standard deviation of e_g - e_h
  is s_gh, and c is the quantile, at the confidence, of the largest (e_g - e_h) / s_gh. All pairs'
  bounds hold together with the confidence as probability (one-sided simultaneous intervals of Tukey
  and Kramer). The true gap phi is at least every true difference of two groups, so low is a lower
  bound on phi. If all groups are equal, low is above 0 with 5% chance.
- high: the largest of v'_g - v'_h + z s_gh over pairs of groups, with the normal quantile z. High
  is at least the bound of the pair with the largest true difference, which fails with 2.5% chance.

The interval from low to high covers the true gap with at least the stated confidence. The
interval's coverage equals the confidence for two groups, or if all groups are equal.

The gaps phi_a and phi_b of two cells are compared on the same resamples. The lower end of phi_a -
phi_b is the largest of (v'_g - v'_h) - phi'_b - c s over pairs of groups of cell a. Both c and s
use the deviations e_g - e_h minus the deviations between the best and the worst group of cell b,
with c at the quantile 97.5%. The upper end is minus the lower end for cells b and a exchanged.

If a cell has several heads, each bound on the heads' mean gap is the mean of the heads' bounds.

Resamples do not vary if all predictions are right. A group's standard deviation is therefore raised
to at least Wilson's (1927) for a share of 0 or 1, or that of random groups of equal size. Otherwise
the best of many small groups would also vary least by chance, and gaps would be called "beyond
chance" far too often. A smaller group has a larger calibration error by chance, so bounds use
values minus the excess by chance: random groups' mean value minus the value over all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from dpprobe.analyses.fairness.groupings import Values

CHANCE = 0.95  # the quantile of gaps between random groups


@dataclass(frozen=True, kw_only=True)
class Groups:
    """One head's metric in each group, with the deviations in resamples.

    Attributes:
      values: [columns, groups], the metric on the test examples.
      corrected: [columns, groups], `values` minus the excess by chance.
      deviations: [columns, groups, resamples], from the resamples' mean; NaN if a group's value is
        undefined in a resample.
      errors: [columns, groups, groups], the standard deviation of the difference of two groups.
    """

    values: Values
    corrected: Values
    deviations: npt.NDArray[np.float32]
    errors: Values

    @classmethod
    def prepare_groups(
        cls, values: Values, drawn: npt.NDArray[np.floating], *, least: Values, excess: Values
    ) -> Groups:
        """Prepares the groups of one head.

        Args:
          values, drawn: the metric on test examples, [columns, groups], and in resamples,
            [columns, groups, resamples].
          least: [columns, groups], a lower limit of each value's standard deviation.
          excess: [columns, groups], the part of each value that is due to chance.
        """
        there = np.isfinite(drawn)
        counts = np.maximum(there.sum(axis=-1), 1)
        means = np.where(there, drawn, 0.0).sum(axis=-1, dtype=np.float64) / counts
        deviations = np.ascontiguousarray(drawn - means[..., None], dtype=np.float32)
        variance = _compute_variances(deviations)
        return cls(
            values=values,
            corrected=values - excess,
            deviations=deviations,
            errors=np.sqrt(np.maximum(variance, _subtract_pairs(least**2, -(least**2)))),
        )

    @property
    def gap(self) -> float:
        return float(np.ptp(self.values, axis=1).max())

    @property
    def extremes(self) -> tuple[int, int, int]:
        """The column with the largest gap, and its best and worst group."""
        column = int(np.ptp(self.values, axis=1).argmax())
        values = self.values[column]
        return column, int(values.argmax()), int(values.argmin())

    def gap_interval(self, confidence: float) -> tuple[float, float]:
        """Returns the interval [low, high] of the gap; low may be negative."""
        still = np.zeros(self.deviations.shape[-1])
        low = self.lower_bound(0.0, still, confidence)
        z = float(ndtri((1 + confidence) / 2))
        high = float((_subtract_pairs(self.corrected, self.corrected) + z * self.errors).max())
        return low, high

    @property
    def gap_spread(self) -> tuple[float, Values]:
        """The gap minus the excess by chance, and the gap's deviations in resamples."""
        column, best, worst = self.extremes
        corrected, deviations = self.corrected[column], self.deviations[column]
        distance = float(corrected[best] - corrected[worst])
        return distance, deviations[best].astype(np.float64) - deviations[worst]

    def lower_bound(self, shift: float, moved: Values, level: float) -> float:
        """Returns a lower bound, at confidence `level`, on the gap minus another gap.

        Args:
          shift: the other gap, or 0.
          moved: [resamples], the deviations of the other gap in resamples.
        """
        errors = self._errors_with(moved) if moved.any() else self.errors
        scale = np.divide(1.0, errors, out=np.zeros_like(errors), where=errors > 0)
        largest = np.full(self.deviations.shape[-1], -np.inf)
        shift_drawn = np.nan_to_num(moved)
        for column, group in np.ndindex(*self.values.shape):
            deviations = self.deviations[column]
            scaled = (deviations[group] - deviations - shift_drawn) * scale[column, group, :, None]
            scaled[group] = -np.inf
            # A group that is missing in a resample has NaN, which `fmax` ignores.
            largest = np.fmax(largest, np.fmax.reduce(scaled, axis=0))
        seen = largest[np.isfinite(largest)]
        quantile = float(np.quantile(seen, level)) if len(seen) else np.inf
        factor = max(quantile, float(ndtri((1 + level) / 2)))
        bounds = _subtract_pairs(self.corrected, self.corrected) - shift - factor * errors
        same = np.arange(bounds.shape[-1])
        bounds[:, same, same] = -np.inf
        return float(bounds.max())

    def _errors_with(self, moved: Values) -> Values:
        """Returns the standard deviations of differences of two groups minus another gap."""
        there = np.isfinite(moved)
        shift = np.where(there, moved, 0.0)
        numbers = np.nan_to_num(self.deviations)
        together = numbers @ shift / max(int(there.sum()), 1)
        variance = self.errors**2 + shift.var() - 2 * _subtract_pairs(together, together)
        # Rounding, and the lower limits of variances, may make `variance` negative.
        return np.sqrt(np.maximum(variance, 1e-6 * self.errors**2))


def mean_gap_interval(heads: Sequence[Groups], confidence: float) -> tuple[float, float]:
    """Returns the interval [low, high] of the mean of the heads' gaps, with low at least 0.

    Negative bounds of heads are set to 0 only after averaging. If each bound were set to 0, a
    single head with a bound above 0 by chance would raise low above 0.
    """
    low, high = np.mean([head.gap_interval(confidence) for head in heads], axis=0)
    gap = float(np.mean([head.gap for head in heads]))
    return float(np.clip(low, 0.0, gap)), float(max(high, gap))


def gap_difference(
    heads: Sequence[Groups], others: Sequence[Groups], confidence: float
) -> tuple[float, float, float]:
    between = float(np.mean([head.gap for head in heads]) - np.mean([head.gap for head in others]))
    level = (1 + confidence) / 2
    low, high = _mean_bound(heads, others, level), -_mean_bound(others, heads, level)
    return between, min(low, between), max(high, between)


def _mean_bound(heads: Sequence[Groups], others: Sequence[Groups], level: float) -> float:
    """Returns a lower bound on the mean gap of heads minus the mean gap of other heads."""
    shifts, moves = zip(*(other.gap_spread for other in others), strict=True)
    shift, moved = float(np.mean(shifts)), np.mean(moves, axis=0)
    return float(np.mean([head.lower_bound(shift, moved, level) for head in heads]))


def _compute_variances(deviations: npt.NDArray[np.floating]) -> Values:
    """Returns the variance of the difference of each two groups, over resamples with both groups.

    Args:
      deviations: [columns, groups, resamples].

    Returns:
      Variances [columns, groups, groups].
    """
    there = np.isfinite(deviations).astype(np.float64)
    numbers = np.where(there > 0, deviations, 0.0).astype(np.float64)
    both = np.maximum(there @ there.mT, 1)
    squares = numbers**2 @ there.mT / both
    return np.maximum(squares + squares.mT - 2 * (numbers @ numbers.mT) / both, 0.0)


def _subtract_pairs(first: Values, second: Values) -> Values:
    """Returns first_g - second_h for each pair of groups (g, h), [columns, groups, groups]."""
    return first[..., :, None] - second[..., None, :]


def smallest_deviation(units: npt.NDArray[np.floating], confidence: float) -> Values:
    """Returns a share's least standard deviation: half of Wilson's interval at 0, divided by z."""
    z = float(ndtri((1 + confidence) / 2))
    return np.asarray(z / (2 * (units + z**2)), dtype=np.float64)


def count_units(units: npt.NDArray[np.floating]) -> Values:
    """Returns the effective number of units [groups] of a mean over labels.

    A mean's standard deviation is at most the mean of the standard deviations. So the mean of 1 /
    sqrt(units) over labels is 1 / sqrt(effective number).

    Args:
      units: [groups, labels], the number of units of each label, above 0.
    """
    return np.asarray(np.mean(np.maximum(units, 1) ** -0.5, axis=1) ** -2.0, dtype=np.float64)
