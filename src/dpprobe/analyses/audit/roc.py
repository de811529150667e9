"""Receiver operating curves of attacks on several heads, with intervals.

The scores of one head share its noise, and the scores of one unit, such as a row, share the unit:
they are not independent, and an interval that took them so would be far too short. So heads and
units are both drawn again, independently, and a score counts as often as its head times as often
as its unit (the pigeonhole bootstrap, Owen 2007), which errs on the long side.
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
# A rate is measured where so many false positives, at least, make it.
LEAST_FALSE_POSITIVES = 10
_TAIL = 0.025
# n times a rate that is a whole number may be rounded below it.
_ROUND_OFF = 1e-12


class Curve(NamedTuple):
    """False and true positive rates at all thresholds, from none called a member to all."""

    false_positives: Numbers
    true_positives: Numbers

    @property
    def area(self) -> float:
        """The chance that a member's score is higher than a non-member's; equal ones count half."""
        return float(np.trapezoid(self.true_positives, self.false_positives))

    def rates_at(self, rates: Numbers) -> Numbers:
        """Returns the largest true positive rate whose false positive rate is at most each rate."""
        last = np.searchsorted(self.false_positives, rates * (1 + _ROUND_OFF), side="right") - 1
        return self.true_positives[last]


class Ranked:
    """Scores in falling order, which are ranked once and weighted often."""

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
      tpr, low, high: at each rate; NaN if non-members are too few for it.
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
    """Measures an attack on heads [heads, units]; None if all are members, or none is.

    A rate needs `LEAST_FALSE_POSITIVES` / rate non-members: 10,000 for 0.1%, 1,000 for 1%. With
    fewer, the threshold depends on a single row, and no resampling shows how much.
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
