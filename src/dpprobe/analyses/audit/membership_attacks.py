"""Membership attacks by a head's scores: was the head trained on a given row?

A higher attack score means "member". Besides the attacked head, an attacker has shadows: heads
trained by the attacked head's method, some with the row and some without. The attacks use the
probability p that a head gives to a row's label:

**Loss** (Yeom et al. 2018, adversary 2): the attack score is log p, without any shadows.

**LiRA** (Carlini et al. 2022, algorithm 1, online): over heads, phi = log(p / (1 - p)) of one row
is nearly normal. LiRA's score is the log ratio of two normal densities at the attacked head's phi,
fitted to shadows with and without the row. LiRA's score is 0 if all shadows, or no shadows, were
trained with the row. With 64 shadows or more, LiRA estimates variances per row. With fewer shadows,
all rows share one variance for "in" and one for "out" (section VI of the paper).

**RMIA** (Zarifzadeh et al. 2024): the ratio of a row is p / P, with the mean P of two means of p:
over shadows with the row, and over shadows without the row. RMIA's score is the share of other
attacked rows whose ratio is not larger, with gamma = 1.

**Intervals.** Scores of one head share the head's noise, and scores of one unit share the unit's
features. So scores are not independent, and intervals for independent scores would be far too
short. The pigeonhole bootstrap (Owen 2007) resamples heads and units independently. A score's count
is the number of draws of its head times the number of draws of its unit. Intervals of the
pigeonhole bootstrap tend to be too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# The fewest shadows with which LiRA estimates the variances of each row separately.
SHADOWS_FOR_VARIANCES = 64
# LiRA's variance of a row is at least this share of the variance over all rows.
_LEAST_VARIANCE = 1e-6
RESAMPLES = 400
# The fewest false positives at a false positive rate that is reported.
LEAST_FALSE_POSITIVES = 10
_TAIL = 0.025
# Rounding may make n times a rate slightly smaller than a whole number.
_ROUND_OFF = 1e-12


class Confidences(NamedTuple):
    """Log p and phi = log(p / (1 - p)) of rows, or their means over a unit's rows."""

    log_probability: Numbers
    scaled: Numbers


def compute_confidences(
    scores: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]
) -> Confidences:
    """Computes log p and phi of each row, [rows] each.

    Scores of every method are treated as logits, because an attack may use any statistic.

    Args:
      scores: [rows, classes].
      labels: [rows], so that p is a softmax; or 0 or 1 [rows, classes], so that p is the product
        of the labels' probabilities.
    """
    logits = scores.astype(np.float64)
    if labels.ndim == 2:
        signed = np.where(labels == 1, logits, -logits)
        log_p = np.minimum(-np.logaddexp(0.0, -signed).sum(axis=1), -1e-300)
        return Confidences(log_p, log_p - np.log(-np.expm1(log_p)))
    at_label = (np.arange(len(labels)), labels)
    right = logits[at_label]
    logits[at_label] = -np.inf
    wrong = np.logaddexp.reduce(logits, axis=1)
    return Confidences(-np.logaddexp(0.0, wrong - right), right - wrong)


def score_lira(scaled: Numbers, members: Flags, targets: int) -> Numbers:
    """Computes LiRA's scores [targets, units] for the first `targets` heads.

    The shadows of a head are all other heads. `scaled` (phi) and `members` are [heads, units].
    """
    scores = np.zeros((targets, scaled.shape[1]))
    for target in range(targets):
        others, inside = _drop_head(scaled, target), _drop_head(members, target)
        seen = scaled[target]
        ratio = _log_density(seen, others, inside) - _log_density(seen, others, ~inside)
        decided = inside.any(axis=0) & ~inside.all(axis=0)
        scores[target, decided] = ratio[decided]
    return scores


def score_rmia(log_probability: Numbers, members: Flags, targets: int) -> Numbers:
    """Computes RMIA's scores from log p; all arrays have shapes as in `score_lira`."""
    scores = np.empty((targets, log_probability.shape[1]))
    for target in range(targets):
        others, inside = _drop_head(log_probability, target), _drop_head(members, target)
        ratios = log_probability[target] - _log_mean_over_sides(others, inside)
        # The count of ratios that are not larger excludes the row's own ratio.
        at_most = np.searchsorted(np.sort(ratios), ratios, side="right") - 1
        scores[target] = at_most / max(1, len(ratios) - 1)
    return scores


def _drop_head(values: npt.NDArray, head: int) -> npt.NDArray:  # type: ignore[type-arg]
    return np.delete(values, head, axis=0)


def _log_density(seen: Numbers, others: Numbers, chosen: Flags) -> Numbers:
    """Fits a normal to each unit's chosen heads; returns log densities up to a constant."""
    count = chosen.sum(axis=0)
    mean = np.where(chosen, others, 0.0).sum(axis=0) / np.maximum(count, 1)
    squares = np.where(chosen, np.square(others - mean), 0.0).sum(axis=0)
    freedom = np.maximum(count - 1, 0)
    pooled = squares.sum() / max(1, freedom.sum())
    variance = np.full(len(seen), pooled)
    if len(others) >= SHADOWS_FOR_VARIANCES:
        variance = np.where(freedom > 0, squares / np.maximum(freedom, 1), pooled)
    variance = np.maximum(variance, max(_LEAST_VARIANCE * pooled, 1e-30))
    return -np.log(variance) / 2 - np.square(seen - mean) / (2 * variance)


def _log_mean_over_sides(others: Numbers, inside: Flags) -> Numbers:
    """Computes the log of the mean of two means of p: over heads with, and heads without the row.

    If heads of one kind are missing, the result is the log of the other mean.
    """
    sides = [_log_mean(others, inside), _log_mean(others, ~inside)]
    present = np.isfinite(sides).sum(axis=0)
    return np.asarray(np.logaddexp(*sides) - np.log(present))


def _log_mean(others: Numbers, chosen: Flags) -> Numbers:
    count = chosen.sum(axis=0)
    total = np.logaddexp.reduce(np.where(chosen, others, -np.inf), axis=0)
    return np.asarray(total - np.log(np.maximum(count, 1)))


@dataclass(frozen=True, kw_only=True)
class Roc:
    """The ROC curve of an attack at some false-positive rates, with 95% intervals.

    Attributes:
      tpr: true-positive rates, one for each of `rates`; NaN with too few non-members for the rate.
      low, high: the ends of the true-positive rates' intervals.
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

    A true-positive rate at false-positive rate r needs `LEAST_FALSE_POSITIVES` / r non-members:
    10,000 for r = 0.1%. With fewer non-members, resamples do not show how uncertain the rate is.
    """
    at = np.asarray(rates)
    order = np.argsort(-scores, axis=None, kind="stable")
    ranked, inside = scores.ravel()[order], members.ravel()[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # the last of equal scores

    def measure_curve(weights: Numbers) -> tuple[float, Numbers] | None:
        """Returns the area under the curve, and the true positive rates at the given rates."""
        counts = weights.ravel()[order]
        hits, alarms = (np.cumsum(np.where(side, counts, 0.0))[ends] for side in (inside, ~inside))
        if not (hits[-1] > 0 and alarms[-1] > 0):
            return None
        fpr, tpr = (np.append(0.0, rising / rising[-1]) for rising in (alarms, hits))
        last = np.searchsorted(fpr, at * (1 + _ROUND_OFF), side="right") - 1
        return float(np.trapezoid(tpr, fpr)), tpr[last]

    measured = measure_curve(np.ones(scores.shape))
    if measured is None:
        return None
    area, reached = measured
    count = int(members.sum())
    resampled = []
    generator = np.random.Generator(np.random.Philox(seed))
    for _ in range(RESAMPLES):
        times = [np.bincount(generator.integers(k, size=k), minlength=k) for k in scores.shape]
        if again := measure_curve(np.outer(*times).astype(np.float64)):
            resampled.append(again)
    areas, rows = zip(*(resampled or [measured]), strict=True)
    low, high = np.quantile(areas, [_TAIL, 1 - _TAIL])
    ends = np.quantile(rows, [_TAIL, 1 - _TAIL], axis=0)
    unresolved = (members.size - count) * at * (1 + _ROUND_OFF) < LEAST_FALSE_POSITIVES
    tpr, lows, highs = (np.where(unresolved, np.nan, v) for v in (reached, *ends))
    return Roc(
        members=count,
        non_members=members.size - count,
        auc=area,
        auc_interval=(float(low), float(high)),
        rates=at,
        tpr=tpr,
        low=lows,
        high=highs,
    )
