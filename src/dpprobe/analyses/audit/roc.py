"""Receiver operating curves of attacks on several heads, with intervals.

Scores of the same head share the head's noise, and scores of the same unit share the unit. So
scores are not independent, and intervals for independent scores would be far too short. The
pigeonhole bootstrap (Owen 2007) resamples heads and units independently. A score's count is the
number of draws of its head times the number of draws of its unit. Its intervals tend to be too
long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

RESAMPLES = 400
# A false positive rate is reported only if it consists of at least so many false positives.
LEAST_FALSE_POSITIVES = 10
_TAIL = 0.025
# Rounding may make n times a rate slightly smaller than a whole number.
_ROUND_OFF = 1e-12


class Curve(NamedTuple):
    """False and true positive rates at all thresholds, from no score called member to all."""

    false_positives: Numbers
    true_positives: Numbers

    @property
    def area(self) -> float:
        """The chance that a member scores higher than a non-member; equal scores count half."""
        return float(np.trapezoid(self.true_positives, self.false_positives))

    def rates_at(self, rates: Numbers) -> Numbers:
        """Returns the largest true positive rate up to each false positive rate of `rates`."""
        last = np.searchsorted(self.false_positives, rates * (1 + _ROUND_OFF), side="right") - 1
        return self.true_positives[last]


class Ranked:
    """Scores in falling order, sorted once and then used with many weights."""

    def __init__(self, scores: Numbers, members: Flags) -> None:
        self._order = np.argsort(-scores, kind="stable")
        self._members = members[self._order]
        ranked = scores[self._order]
        self._ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # of ties

    def make_curve(self, weights: Numbers | None = None) -> Curve | None:
        """Returns the curve of weighted scores; None without a member or without a non-member."""
        weighted = np.ones(len(self._order)) if weights is None else weights[self._order]
        gained = np.where(self._members, weighted, 0.0)
        hits = np.cumsum(gained)[self._ends]
        alarms = np.cumsum(weighted - gained)[self._ends]
        if not (hits[-1] > 0 and alarms[-1] > 0):
            return None
        return Curve(*(np.append(0.0, rising / rising[-1]) for rising in (alarms, hits)))


@dataclass(frozen=True, kw_only=True)
class Roc:
    """The curve of an attack at some false-positive rates, with 95% intervals.

    Attributes:
      tpr, low, high: at each false-positive rate; NaN with too few non-members for the rate.
    """

    members: int
    non_members: int
    auc: float
    auc_interval: tuple[float, float]
    rates: Numbers
    tpr: Numbers
    low: Numbers
    high: Numbers


def measure_roc(
    scores: Numbers, members: Flags, rates: Sequence[float], *, seed: int
) -> Roc | None:
    """Measures an attack from scores [heads, units]; None if all units, or no units, are members.

    A rate needs `LEAST_FALSE_POSITIVES` / rate non-members: 10,000 for 0.1%, 1,000 for 1%. With
    fewer non-members, a single row decides the threshold, and resampling cannot show how much.
    """
    at = np.asarray(rates)
    ranked = Ranked(scores.ravel(), members.ravel())
    curve = ranked.make_curve()
    if curve is None:
        return None
    count = int(members.sum())
    areas, rows = [], []
    generator = np.random.Generator(np.random.Philox(seed))
    for _ in range(RESAMPLES):
        times = [np.bincount(generator.integers(k, size=k), minlength=k) for k in scores.shape]
        resampled = ranked.make_curve(np.outer(*times).ravel().astype(np.float64))
        if resampled is not None:
            areas.append(resampled.area)
            rows.append(resampled.rates_at(at))
    low, high = np.quantile(areas or [curve.area], [_TAIL, 1 - _TAIL])
    ends = np.quantile(rows or [curve.rates_at(at)], [_TAIL, 1 - _TAIL], axis=0)
    unresolved = (members.size - count) * at * (1 + _ROUND_OFF) < LEAST_FALSE_POSITIVES
    tpr, lows, highs = (np.where(unresolved, np.nan, v) for v in (curve.rates_at(at), *ends))
    return Roc(
        members=count,
        non_members=members.size - count,
        auc=curve.area,
        auc_interval=(float(low), float(high)),
        rates=at,
        tpr=tpr,
        low=lows,
        high=highs,
    )
