"""Means over seeds with intervals: over seeds, over test examples or patients, and over both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from dpprobe.results.intervals import combine_errors, over_classes, wilson_interval
from dpprobe.results.metrics import SAME, SCALAR_METRICS, Evaluation

SEED_INTERVAL = "t over seeds"
ROW_PROPORTION, ROW_BOOTSTRAP = "Wilson over test rows", "bootstrap over test rows"
UNIT_PROPORTION, UNIT_BOOTSTRAP = "Wilson over test patients", "bootstrap over test patients"
ROW_CLASSES = "Agresti-Coull over each class's test rows"
UNIT_CLASSES = "Agresti-Coull over each class's test patients"
# Metrics that are shares of test examples; with several labels, accuracy is a share of labels.
PROPORTIONS = ("accuracy", "top5_accuracy", "exact_match_accuracy")
# With fewer units, or fewer rows of the rarer of two classes, percentile bootstraps are too narrow.
# For example, two units have only three different resamples.
FEWEST_DRAWN = 10
_Interval = tuple[float, float, str]


def summarise_records(
    records: Sequence[Mapping[str, Any]], first: Evaluation, *, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Computes mean, standard deviation and 95% intervals of each scalar metric.

    Metrics are fractions. The interval over seeds is Student's t for the mean, cut at 0 and 1;
    there is none if all seeds have the same value.

    Each metric also has an interval over test examples. `PROPORTIONS` have Wilson's interval (1927)
    at the mean over seeds, whose width is positive even if all rows are right. macro_accuracy has
    the interval of `intervals.over_classes`. auc and the accuracy over labels have a percentile
    bootstrap over the rows of the first seed, moved to the mean over seeds and cut at 0 and 1. A
    resample's mean leaves out labels that all or none of its rows have. Wilson's interval replaces
    a bootstrap that reaches 0 or 1, and the bootstrap of an AUC of two classes with fewer than
    `FEWEST_DRAWN` rows of one class.

    If units have several rows, the interval is over units. A bootstrap of units draws each unit
    with all its rows, which are not independent. For fewer than `FEWEST_DRAWN` units,
    Wilson's interval replaces the bootstrap, with as many independent rows as units. A bootstrap
    reaches 0 or 1, for example, if at most three units have wrong rows. Wilson's interval is valid
    for units: a unit's mean in [0, 1] has at most the variance of a single row with an equal
    probability of being right. `_counted_units` counts units for macro_accuracy and auc.

    The interval over seeds and test examples combines both errors (`intervals.combine_errors`).
    With one seed, the combined interval equals the interval over test examples.

    Args:
      records: the metrics of each seed; keys other than scalar metrics are ignored.
      first: the evaluation of the first seed.

    Returns:
      metric -> the fields of `cell_record.MetricSummary`.
    """
    columns = {
        name: np.array([record[name] for record in records], dtype=np.float64)
        for name in records[0]
        if name in SCALAR_METRICS
    }
    means = {name: _stable_mean(values) for name, values in columns.items()}
    values_of_first = {name: float(values[0]) for name, values in columns.items()}
    over_tests = _over_tests(means, values_of_first, first, seed=seed)
    return {
        name: summarise_values(values, means[name], over_tests.get(name))
        for name, values in columns.items()
    }


def _over_tests(
    means: Mapping[str, float],
    first: Mapping[str, float],
    evaluation: Evaluation,
    *,
    seed: int,
) -> dict[str, _Interval]:
    """Computes intervals over test examples; `first` are the metrics of `evaluation`."""
    correct, units = evaluation.right, evaluation.units
    proportion, resampling, by_class = (
        (ROW_PROPORTION, ROW_BOOTSTRAP, ROW_CLASSES)
        if units is None
        else (UNIT_PROPORTION, UNIT_BOOTSTRAP, UNIT_CLASSES)
    )
    intervals: dict[str, _Interval] = {}
    independent = evaluation.weights is None
    if units is None or independent:
        codes = np.arange(len(correct))
        weights: np.ndarray = np.ones(len(correct), dtype=np.float32)
        for name, mean in means.items():
            if name in PROPORTIONS and not (name == "accuracy" and correct.ndim == 2):
                intervals[name] = (*wilson_interval(mean, len(correct)), proportion)
            elif name == "macro_accuracy":
                intervals[name] = (*over_classes(mean, correct, evaluation.labels), by_class)
    else:
        codes = np.unique(units, return_inverse=True)[1]
        weights = 1 / np.bincount(codes)[codes]
    drawable = {
        name: metric
        for name in means.keys() - intervals.keys()
        if (metric := make_drawable(name, evaluation, codes, weights)) is not None
    }
    everyone = int(codes.max()) + 1
    resampled = bootstrap_intervals(drawable, everyone, seed=seed) if drawable else {}
    for name in drawable:
        counted = _counted_units(name, evaluation, codes)
        drawn = counted if name == "auc" and correct.ndim == 1 else everyone
        # in a mean over many labels, one label with few rows matters little
        enough = drawn >= FEWEST_DRAWN or (independent and correct.ndim == 2)
        ends = resampled.get(name, (0.0, 1.0))
        if enough and _lies_inside(ends):
            intervals[name] = (*_move_ends(ends, means[name], first[name]), resampling)
        else:
            intervals[name] = (*wilson_interval(means[name], counted), proportion)
    return intervals


def _lies_inside(ends: tuple[float, float]) -> bool:
    """Returns True if a bootstrap interval has positive width and does not reach 0 or 1."""
    low, high = ends
    return SAME < low < high - SAME < 1 - 2 * SAME


def _move_ends(ends: tuple[float, float], mean: float, first: float) -> tuple[float, float]:
    """Shifts the first seed's interval to the mean over seeds, and cuts it at 0 and 1."""
    low, high = (min(max(mean + end - first, 0.0), 1.0) for end in ends)
    return low, high


def _counted_units(name: str, evaluation: Evaluation, units: np.ndarray) -> float:
    """Returns the sample size for Wilson's interval of a metric.

    A recall p has a variance of at most p (1 - p) / n, where n units have the class. An AUC of p
    has a variance of at most p (1 - p) / n too, where n units have the label or n units lack the
    label, whichever is fewer (Birnbaum and Klose 1957). The standard deviation of a mean is at most
    the mean of the standard deviations, even of dependent values. So 1 / sqrt(returned number) is
    the mean of 1 / sqrt(n) over classes or labels.
    """
    everyone = int(units.max()) + 1
    if name == "macro_accuracy":
        pairs = np.unique(evaluation.labels * everyone + units)
        having = np.bincount(pairs // everyone)
        having = having[having > 0]
    elif name == "auc":
        having = np.array(
            [
                min(len(np.unique(units[positive])), len(np.unique(units[~positive])))
                for _, positive in evaluation.list_columns()
            ]
        )
    else:
        return everyone
    return float(np.mean(having**-0.5) ** -2)


def _stable_mean(values: np.ndarray) -> float:
    """Returns the mean over seeds; the first value if the seeds differ only in the last bits."""
    return float(values[0] if np.ptp(values) <= SAME else values.mean())


def summarise_values(
    values: np.ndarray, mean: float, over_rows: _Interval | None
) -> dict[str, Any]:
    """Computes a metric's entry in `summarise_records` from its values and test interval."""
    count = len(values)
    # Values that differ only by rounding count as equal.
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
        "mean": mean,
        "std": std,
        "low": low,
        "high": high,
        "count": count,
        "interval": interval,
        "rows_low": rows_low,
        "rows_high": rows_high,
        "rows_interval": rows_interval,
        "both_low": both[0],
        "both_high": both[1],
        "both_interval": both[2],
    }


def make_drawable(
    name: str, evaluation: Evaluation, units: np.ndarray, weights: np.ndarray
) -> Drawable | None:
    """Returns metric `name` as a `Drawable`; None if the metric has no bootstrap.

    Args:
      units: int64 [n], the index of each row's unit, from 0 without gaps.
      weights: the weight of each row.
    """
    if name == "accuracy":
        return Share(evaluation.right, units, weights)
    if name == "exact_match_accuracy":
        return Share(np.asarray(evaluation.right.all(axis=1)), units, weights)
    if name == "top5_accuracy":
        return Share(np.less(evaluation.rank, 5), units, weights)
    if name == "macro_accuracy":
        return Recalls(evaluation.labels, evaluation.right, units, weights)
    if name == "auc" and (columns := [*evaluation.list_columns()]):
        return Areas([Runs(*column, units, weights) for column in columns])
    return None
