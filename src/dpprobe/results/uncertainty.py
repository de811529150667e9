"""Means over seeds with intervals: over seeds, over test examples or patients, and over both.

`units` are those of `metrics`: whose each test example is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.special import stdtrit

from dpprobe.results.bootstrap import (
    CONFIDENCE,
    Areas,
    Drawable,
    Recalls,
    Runs,
    Share,
    bootstrap_intervals,
)
from dpprobe.results.cell_record import SCALAR_METRICS
from dpprobe.results.intervals import combine_errors, over_classes, wilson_interval
from dpprobe.results.metrics import (
    SAME,
    Link,
    label_ranks,
    ranked_columns,
    ranked_labels,
    right_predictions,
)
from dpprobe.results.unit_counts import row_weights

SEED_INTERVAL = "t over seeds"
ROW_PROPORTION, ROW_BOOTSTRAP = "Wilson over test rows", "bootstrap over test rows"
UNIT_PROPORTION, UNIT_BOOTSTRAP = "Wilson over test patients", "bootstrap over test patients"
ROW_CLASSES = "Agresti-Coull over each class's test rows"
UNIT_CLASSES = "Agresti-Coull over each class's test patients"
# Shares of the test examples; accuracy only with one label per example.
PROPORTIONS = ("accuracy", "top5_accuracy", "exact_match_accuracy")
# A percentile bootstrap of fewer units, or rows of the rarer of two classes, is too narrow; of two
# it sees three results in all.
FEWEST_DRAWN = 10
_Interval = tuple[float, float, str]


def summarise_records(
    records: Sequence[Mapping[str, Any]],
    *,
    correct: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    scores: np.ndarray | None = None,
    units: np.ndarray | None = None,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Computes mean, standard deviation and 95% intervals of each scalar metric, all in [0, 1].

    Two things are uncertain, and each has its interval, decided for each metric by itself. Over
    seeds, where the metric varies over them: Student's t for the mean, cut at 0 and 1. Over test
    examples, whether or not seeds vary: of `PROPORTIONS` Wilson's interval (1927) at the mean over
    seeds, which has a width also where all rows are right; of macro_accuracy that of
    `intervals.over_classes`; of auc and the accuracy over labels a percentile bootstrap over the
    rows of the first seed, moved to the mean over seeds and cut at 0 and 1. A resample in which a
    label lacks one of its values leaves it out of the mean, as `evaluate` does. A bootstrap that
    reaches 0 or 1, and the auc of two classes of which one has fewer than `FEWEST_DRAWN` rows, give
    way to Wilson's interval, as with units below. The third interval, over both, adds the two
    errors (`intervals.combine_errors`); of one seed it is that over test examples.

    With several rows per unit the second interval is over units. All these metrics, `PROPORTIONS`
    too, have a bootstrap that draws units with all their rows: a unit's rows are no independent
    ones. If it says too little, there is Wilson's interval for as many independent rows as there
    are units: of fewer than `FEWEST_DRAWN` units, and where it reaches 0 or 1, as it does where all
    rows are right, or all but those of three units. That is honest: a unit's mean lies between 0
    and 1, so that its variance is at most that of one row which is right with the same chance;
    further rows of a unit count for nothing. For macro_accuracy and auc see `_counted_units`.

    Args:
      records: one result of `evaluate` a seed; other keys than the metrics are left out.
      correct: `right_predictions` of the first seed.
      labels: [n] or [n, K] labels of those rows; needed for macro_accuracy and auc.
      scores: [n, K] of the first seed; needed for auc, and with units for top5_accuracy.
      units: int64 [n], whose each row is.

    Returns:
      metric -> mean, std (ddof = 1; None for one seed), count; rows_low, rows_high, rows_interval:
      the interval over test examples or units, None without one; low, high, interval: that over
      seeds, or the one over test examples where the metric does not vary over seeds; both_low,
      both_high, both_interval: that over both, None without one over test examples.
    """
    count = len(records)
    if count == 0:
        raise ValueError("records is empty: a cell has at least one seed")
    columns = {
        name: np.array([record[name] for record in records], dtype=np.float64)
        for name in records[0]
        if name in SCALAR_METRICS
    }
    means = {name: _stable_mean(values) for name, values in columns.items()}
    over_rows: dict[str, _Interval] = {}
    if correct is not None:
        first = {name: float(values[0]) for name, values in columns.items()}
        if units is None or row_weights(units) is None:
            names = (
                (ROW_PROPORTION, ROW_BOOTSTRAP, ROW_CLASSES)
                if units is None
                else (UNIT_PROPORTION, UNIT_BOOTSTRAP, UNIT_CLASSES)
            )
            over_rows = _over_rows(means, first, correct, labels, scores, names=names, seed=seed)
        else:
            codes = np.unique(units, return_inverse=True)[1]
            over_rows = _over_units(means, first, correct, labels, scores, codes, seed=seed)
    return {
        name: _make_entry(values, means[name], over_rows.get(name))
        for name, values in columns.items()
    }


def _over_rows(
    means: Mapping[str, float],
    first: Mapping[str, float],
    correct: np.ndarray,
    labels: np.ndarray | None,
    scores: np.ndarray | None,
    *,
    names: tuple[str, str, str],
    seed: int,
) -> dict[str, _Interval]:
    """Computes the intervals over independent rows, by the names of the three kinds.

    Args:
      means, first: each metric's mean over seeds and its value for the first, as in the next one.
    """
    rows = np.arange(len(correct))
    drawable = _make_drawable(correct, labels, scores)
    resampled = bootstrap_intervals(drawable, len(correct), seed=seed) if drawable else {}
    over_rows: dict[str, _Interval] = {}
    for name, mean in means.items():
        if name in PROPORTIONS and not (name == "accuracy" and correct.ndim == 2):
            over_rows[name] = (*wilson_interval(mean, len(correct)), names[0])
        elif name == "macro_accuracy" and labels is not None:
            over_rows[name] = (*over_classes(mean, correct, labels), names[2])
        elif name in drawable:
            counted = _counted_units(name, labels, scores, rows)
            ends = resampled.get(name, (0.0, 1.0))
            # a mean over many labels is no worse for one that few rows have
            if _lies_inside(ends) and (correct.ndim == 2 or counted >= FEWEST_DRAWN):
                over_rows[name] = (*_move_ends(ends, mean, first[name]), names[1])
            else:
                over_rows[name] = (*wilson_interval(mean, counted), names[0])
    return over_rows


def _lies_inside(ends: tuple[float, float]) -> bool:
    """True if a bootstrap's ends differ, and lie within 0 and 1 and not on them."""
    low, high = ends
    return SAME < low < high - SAME < 1 - 2 * SAME


def _over_units(
    means: Mapping[str, float],
    first: Mapping[str, float],
    correct: np.ndarray,
    labels: np.ndarray | None,
    scores: np.ndarray | None,
    units: np.ndarray,
    *,
    seed: int,
) -> dict[str, _Interval]:
    """Computes the intervals over units of several rows, numbered from 0 without gaps."""
    drawable = _make_drawable(correct, labels, scores, units)
    resampled = bootstrap_intervals(drawable, int(units.max()) + 1, seed=seed)
    over_units: dict[str, _Interval] = {}
    for name in means.keys() & drawable.keys():
        counted = _counted_units(name, labels, scores, units)
        ends = resampled.get(name, (0.0, 1.0))
        drawn = counted if name == "auc" and correct.ndim == 1 else units.max() + 1
        if drawn >= FEWEST_DRAWN and _lies_inside(ends):
            over_units[name] = (*_move_ends(ends, means[name], first[name]), UNIT_BOOTSTRAP)
        else:
            over_units[name] = (*wilson_interval(means[name], counted), UNIT_PROPORTION)
    return over_units


def _move_ends(ends: tuple[float, float], mean: float, first: float) -> tuple[float, float]:
    """Returns the first seed's ends about the mean over seeds, cut at 0 and 1."""
    low, high = (min(max(mean + end - first, 0.0), 1.0) for end in ends)
    return low, high


def _counted_units(
    name: str, labels: np.ndarray | None, scores: np.ndarray | None, units: np.ndarray
) -> float:
    """Returns the number of units that Wilson's interval of a metric may count.

    A recall has a variance of at most p (1 - p) / n, n the units that have its class; an AUC too,
    n those of its rarer kind (Birnbaum and Klose 1957). A mean's deviation is at most the mean of
    the deviations, however they depend on each other: n is the number whose inverse root is the
    mean of theirs. A class that one unit has weighs in as it should.
    """
    everyone = int(units.max()) + 1
    if name == "macro_accuracy" and labels is not None:
        pairs = np.unique(labels * everyone + units)
        having = np.bincount(pairs // everyone)
        having = having[having > 0]
    elif name == "auc" and labels is not None and scores is not None:
        having = np.array(
            [
                min(len(np.unique(units[positive])), len(np.unique(units[~positive])))
                for _, positive in ranked_columns(scores, labels)
            ]
        )
    else:
        return everyone
    return float(np.mean(having**-0.5) ** -2)


def _stable_mean(values: np.ndarray) -> float:
    """Returns the mean over seeds; of values that differ in last bits at most, the first."""
    return float(values[0] if np.ptp(values) <= SAME else values.mean())


def _make_entry(values: np.ndarray, mean: float, over_rows: _Interval | None) -> dict[str, Any]:
    count = len(values)
    # Values that are the same have no spread: neither last bits nor a rounded mean make one.
    equal = np.ptp(values) <= SAME
    std = None if count == 1 else 0.0 if equal else float(values.std(ddof=1))
    rows_low, rows_high, rows_interval = over_rows or (None, None, None)
    low, high, interval = rows_low, rows_high, rows_interval
    if std:
        half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * std / count**0.5
        low, high, interval = max(0.0, mean - half), min(1.0, mean + half), SEED_INTERVAL
    both: tuple[float | None, float | None, str | None] = rows_low, rows_high, rows_interval
    if std and over_rows and low is not None and high is not None:
        ends = combine_errors(mean, (low, high), over_rows[:2])
        both = (*ends, f"{SEED_INTERVAL}, {rows_interval}")
    return {
        "mean": mean, "std": std, "low": low, "high": high, "count": count, "interval": interval,
        "rows_low": rows_low, "rows_high": rows_high, "rows_interval": rows_interval,
        "both_low": both[0], "both_high": both[1], "both_interval": both[2],
    }  # fmt: skip


def drawable_of(
    metric: str, scores: np.ndarray, labels: np.ndarray, *, link: Link, units: np.ndarray
) -> Drawable | None:
    """Returns a metric of drawn units, numbered from 0 without gaps; None where it has no value."""
    makers = _drawable_makers(right_predictions(scores, labels, link=link), labels, scores, units)
    return makers[metric]() if metric in makers else None


def _make_drawable(
    correct: np.ndarray,
    labels: np.ndarray | None,
    scores: np.ndarray | None,
    units: np.ndarray | None = None,
) -> dict[str, Drawable]:
    """Returns the metrics that a bootstrap draws again; without `units` it draws rows.

    Without units they are auc, and with several labels per example accuracy: the others have
    intervals of their own.
    """
    return {name: make() for name, make in _drawable_makers(correct, labels, scores, units).items()}


def _drawable_makers(
    correct: np.ndarray,
    labels: np.ndarray | None,
    scores: np.ndarray | None,
    units: np.ndarray | None,
) -> dict[str, Callable[[], Drawable]]:
    """Returns what makes each metric of `_make_drawable`: ranks and sorted scores are costly."""
    if units is None:
        units, weights = np.arange(len(correct)), np.ones(len(correct), dtype=np.float32)
        shares = {"accuracy": lambda: correct} if correct.ndim == 2 else {}
        classes = None
    else:
        weights = 1 / np.bincount(units)[units]
        shares = {"accuracy": lambda: correct}
        if correct.ndim == 2:
            shares["exact_match_accuracy"] = lambda: np.asarray(correct.all(axis=1))
        elif labels is not None and scores is not None:
            shares["top5_accuracy"] = partial(_among_five, scores, labels)
        classes = labels if correct.ndim == 1 else None
    makers: dict[str, Callable[[], Drawable]] = {
        name: partial(_share_of, right, units, weights) for name, right in shares.items()
    }
    if classes is not None:
        makers["macro_accuracy"] = partial(Recalls, classes, correct, units, weights)
    if labels is not None and scores is not None and ranked_labels(labels, scores.shape[1]):
        makers["auc"] = partial(_make_areas, scores, labels, units, weights)
    return makers


def _among_five(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.less(label_ranks(scores, labels), 5)


def _share_of(right: Callable[[], np.ndarray], units: np.ndarray, weights: np.ndarray) -> Drawable:
    return Share(right(), units, weights)


def _make_areas(
    scores: np.ndarray, labels: np.ndarray, units: np.ndarray, weights: np.ndarray
) -> Drawable:
    return Areas([Runs(*column, units, weights) for column in ranked_columns(scores, labels)])
