"""Accuracy, area under the ROC curve, calibration, and their uncertainty.

Labels are one class a row, [n] integers, or several, [n, K] of 0 and 1. What turns scores into
probabilities, the `link`, is "softmax" or "sigmoid" for logits, and "none" for scores that are
no logits.

Where it is known whose each test row is, `units` (int64 [rows], a number for each patient), every
patient counts once: a row of a patient with m test rows has weight 1 / m in every metric, and rows
of one patient are drawn together in a bootstrap. Rows of one patient resemble each other, so that
intervals over rows would be too narrow: how far a result on other patients may lie is told by the
number of patients. Without `units`, and where each patient has one row, means are plain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from scipy.special import expit, log_softmax, stdtrit

from dpprobe.errors import DataError
from dpprobe.results.bootstrap import (
    CONFIDENCE,
    Areas,
    Drawable,
    Recalls,
    Runs,
    Share,
    bootstrap,
)
from dpprobe.results.cell_record import SCALAR_METRICS
from dpprobe.results.intervals import over_classes, together, wilson
from dpprobe.results.units import row_weights

Link = Literal["softmax", "sigmoid", "none"]

CALIBRATION_BINS = 15
# Seeds of a method without randomness still differ in the last bits of float32 sums. Metrics this
# close are the same; one test row in a million moves an accuracy as far.
SAME = 1e-6
TOP5_ABOVE = 10  # top-5 accuracy is reported only where there are more classes than this

SEED_INTERVAL = "t over seeds"
ROW_PROPORTION, ROW_BOOTSTRAP = "Wilson over test rows", "bootstrap over test rows"
UNIT_PROPORTION, UNIT_BOOTSTRAP = "Wilson over test patients", "bootstrap over test patients"
ROW_CLASSES = "Agresti-Coull over each class's test rows"
UNIT_CLASSES = "Agresti-Coull over each class's test patients"
# Shares of the test rows; accuracy only with one label a row.
PROPORTIONS = ("accuracy", "top5_accuracy", "exact_match_accuracy")
# A percentile bootstrap of fewer units, or rows of the rarer of two classes, is too narrow; of two
# it sees three results in all.
FEWEST_DRAWN = 10
_Interval = tuple[float, float, str]

# What a label counts as present above. A logit of 0 is the probability 1/2; scores that are no
# logits are fits of the targets 0 and 1, and 1/2 lies halfway.
THRESHOLDS: dict[str, float] = {"sigmoid": 0.0, "none": 0.5}


def evaluate(
    scores: np.ndarray,
    labels: np.ndarray,
    *,
    link: Link = "softmax",
    accepted: Sequence[Sequence[int]] | None = None,
    units: np.ndarray | None = None,
) -> dict[str, Any]:
    """Computes the metrics of one head on one test split, as fractions.

    With `units` every share, mean and rank below is one of weighted rows.

    Args:
      scores: [n, K].
      labels: [n] integers in 0..K-1, or [n, K] of 0 and 1 where a row may have several labels.
      link: the function that makes probabilities of the scores.
      accepted: with one label a row, the labels that count as right for each, where the test split
        has such lists; an empty one leaves its row out.
      units: int64 [n], whose each row is.

    Returns:
      With one label a row: accuracy, macro_accuracy (mean recall of the classes present),
      expected_calibration_error (link softmax), per_class_recall (K values, None for a class with
      no test row), never_predicted (the classes that some test rows have and no row is predicted
      to have), top5_accuracy where K > 10, real_accuracy where there are accepted labels
      (ReaL: Beyer et al. 2020, "Are we done with ImageNet?"), and auc, of the second class
      against the first, where K = 2 and both have test rows. Equal scores rank in the order of
      the classes, so that top-1 is argmax.

      With several: auc and mean_average_precision, means over the labels that some test rows
      have and others have not (absent where there is no such label); accuracy, the share of all
      n K labels that are right; exact_match_accuracy, the share of rows with all of them right;
      expected_calibration_error over all n K probabilities (link sigmoid); and per_label_auc,
      per_label_average_precision and per_label_accuracy, K values each, None for a label that
      does not enter a mean. A label is predicted where its score is above `THRESHOLDS`.

    Raises:
      DataError: when the shapes do not match, a label is out of range or a score is not finite.
    """
    _check(scores, labels, units)
    weights = row_weights(units)
    if labels.ndim == 2:
        return _evaluate_labels(scores, labels != 0, link, units)
    classes = scores.shape[1]
    rank = _ranks(scores, labels)
    correct = rank == 0
    recall = _recall(labels, correct, classes, weights)
    result: dict[str, Any] = {
        "accuracy": _share(correct, weights),
        "macro_accuracy": float(np.nanmean(recall)),
    }
    if link == "softmax":
        result["expected_calibration_error"] = calibration_error(scores, correct, units=units)
    result["per_class_recall"] = [None if np.isnan(value) else float(value) for value in recall]
    result["never_predicted"] = np.setdiff1d(labels, scores.argmax(axis=1)).tolist()
    if classes > TOP5_ABOVE:
        result["top5_accuracy"] = _share(np.less(rank, 5), weights)
    if accepted is not None:
        result["real_accuracy"] = _accepted_accuracy(scores.argmax(axis=1), accepted, weights)
    if classes == 2 and _both(labels == 1):
        result["auc"] = _ranking(_margin(scores), labels == 1, weights)[0]
    return result


def constant_accuracy(labels: np.ndarray, *, units: np.ndarray | None = None) -> float:
    """Computes the accuracy of always giving the most frequent answer; of each label, with several.

    Args:
      labels, units: as of `evaluate`.
    """
    weights = row_weights(units)
    if labels.ndim == 1:
        return float(np.bincount(labels, weights=weights).max() / _total(labels, weights))
    having = np.average(labels != 0, axis=0, weights=weights)
    return float(np.maximum(having, 1 - having).mean())


def _total(labels: np.ndarray, weights: np.ndarray | None) -> float:
    return float(len(labels) if weights is None else weights.sum())


def _share(right: np.ndarray, weights: np.ndarray | None) -> float:
    """Returns the share of booleans [n] or [n, K] that are True, rows weighted."""
    if weights is None:
        return float(right.mean())
    return float(np.average(right.reshape(len(right), -1).mean(axis=1), weights=weights))


def _ranks(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts, for each row, the classes that rank before its label."""
    true = np.take_along_axis(scores, labels[:, None], axis=1)
    before = np.arange(scores.shape[1])[None, :] < labels[:, None]
    return np.asarray(np.sum((scores > true) | ((scores == true) & before), axis=1))


def _accepted_accuracy(
    predicted: np.ndarray, accepted: Sequence[Sequence[int]], weights: np.ndarray | None
) -> float:
    judged = np.array([bool(labels) for labels in accepted])
    if not judged.any():
        raise DataError("no test row has an accepted label; give some rows theirs")
    right = np.array(
        [label in labels for label, labels in zip(predicted.tolist(), accepted, strict=True)]
    )
    return _share(right[judged], None if weights is None else weights[judged])


def _evaluate_labels(
    scores: np.ndarray, labels: np.ndarray, link: Link, units: np.ndarray | None
) -> dict[str, Any]:
    """Computes what `evaluate` returns for [n, K] booleans."""
    weights = row_weights(units)
    right = hits(scores, labels, link=link)
    areas: list[float | None] = [None] * labels.shape[1]
    precisions = areas.copy()
    ranked = ranked_labels(labels, labels.shape[1])
    for label in ranked:
        areas[label], precisions[label] = _ranking(scores[:, label], labels[:, label], weights)
    result: dict[str, Any] = {}
    if ranked:
        result["auc"] = float(np.mean([areas[label] for label in ranked]))
        result["mean_average_precision"] = float(np.mean([precisions[label] for label in ranked]))
    result["accuracy"] = _share(right, weights)
    result["exact_match_accuracy"] = _share(np.asarray(right.all(axis=1)), weights)
    if link == "sigmoid":
        result["expected_calibration_error"] = label_calibration_error(scores, labels, units=units)
    return result | {
        "per_label_auc": areas,
        "per_label_average_precision": precisions,
        "per_label_accuracy": np.average(right, axis=0, weights=weights).tolist(),
    }


def hits(scores: np.ndarray, labels: np.ndarray, *, link: Link = "softmax") -> np.ndarray:
    """Returns True for each right prediction: [n] with one label a row, [n, K] with several.

    Raises:
      DataError: for several labels a row and the link softmax, which is for one.
    """
    if labels.ndim == 1:
        return np.asarray(scores.argmax(axis=1) == labels)
    if link not in THRESHOLDS:
        raise DataError(
            f"link {link}: its probabilities are of one label a row, these rows have several; "
            "train with a sigmoid loss"
        )
    return np.asarray((scores > THRESHOLDS[link]) == (labels != 0))


def training_metrics(
    scores: np.ndarray,
    labels: np.ndarray,
    *,
    link: Link = "softmax",
    units: np.ndarray | None = None,
) -> dict[str, float]:
    """Computes what is cheap enough to follow in training: test_accuracy, and test_auc.

    test_auc is the auc of `evaluate`, absent where that is; scores that are not finite give NaN.
    """
    weights = row_weights(units)
    result = {"test_accuracy": _share(hits(scores, labels, link=link), weights)}
    if ranked_labels(labels, scores.shape[1]):
        areas = [math.nan]
        if np.isfinite(scores).all():
            areas = [_ranking(*column, weights)[0] for column in _columns(scores, labels)]
        result["test_auc"] = float(np.mean(areas))
    return result


def ranked_labels(labels: np.ndarray, num_classes: int) -> list[int]:
    """Returns the labels that enter an AUC: those that some test rows have and others have not.

    Args:
      labels: [n] integers or [n, K] of 0 and 1.

    Returns:
      Indices of labels; with one label a row [1] where K = 2 and both have rows, else [].
    """
    if labels.ndim == 1:
        return [1] if num_classes == 2 and _both(labels == 1) else []
    return [label for label in range(labels.shape[1]) if _both(labels[:, label] != 0)]


def _columns(scores: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields scores [n] and presence [n] of each label that enters an AUC."""
    for label in ranked_labels(labels, scores.shape[1]):
        if labels.ndim == 1:
            yield _margin(scores), labels == 1
        else:
            yield scores[:, label], labels[:, label] != 0


def _margin(scores: np.ndarray) -> np.ndarray:
    """Returns the second score minus the first, which ranks the rows of two classes."""
    return np.asarray(scores[:, 1].astype(np.float64) - scores[:, 0])


def _both(positive: np.ndarray) -> bool:
    return bool(positive.any()) and not bool(positive.all())


def _ranking(
    scores: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None
) -> tuple[float, float]:
    """Computes the area under the ROC curve and the average precision of one label.

    The area is the Mann-Whitney statistic, the chance that a row with the label scores above one
    without it, ties for a half. Average precision is the sum over thresholds of the recall gained
    there times the precision there; equal scores are one threshold. One sort
    serves both: scikit-learn's functions agree to the last bit or two and take 18 times as long.

    Args:
      scores: [n] finite.
      positive: [n] booleans, of both values.
      weights: [n], the chances with which rows are picked, up to a factor; None for the same.
    """
    order = np.argsort(scores)
    ranked = scores[order]
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    present = positive[order]
    if weights is None:
        hits_below = np.cumsum(present)[ends]  # with the label and at most this score
        misses_below = ends + 1 - hits_below
    else:
        heavy = weights[order]
        hits_below = np.cumsum(heavy * present)[ends]
        misses_below = np.cumsum(heavy * ~present)[ends]
    hits_at, misses_at = np.diff(hits_below, prepend=0), np.diff(misses_below, prepend=0)
    wins = np.sum(hits_at * (misses_below - misses_at / 2))
    above = hits_below[-1] - hits_below + hits_at  # with the label and at least this score
    precision = above / (above + misses_below[-1] - misses_below + misses_at)
    area = wins / (float(hits_below[-1]) * float(misses_below[-1]))
    average = np.sum(hits_at * precision) / hits_below[-1]
    return min(float(area), 1.0), min(float(average), 1.0)  # sums of weights are rounded


def calibration_error(
    scores: np.ndarray,
    correct: np.ndarray,
    *,
    bins: int = CALIBRATION_BINS,
    units: np.ndarray | None = None,
) -> float:
    """Computes the expected calibration error of the top softmax probability.

    Over bins of equal width: Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural
    networks", 2017, eq. 3.

    Args:
      scores: [n, K] logits.
      correct: [n] booleans, True where the top class is the label.
    """
    confidence = np.exp(log_softmax(scores.astype(np.float64), axis=1).max(axis=1))
    weights = row_weights(units)
    total = len(confidence) if weights is None else weights.sum()
    return float(np.abs(_gaps(confidence, correct, bins, weights)).sum() / total)


def label_calibration_error(
    scores: np.ndarray,
    labels: np.ndarray,
    *,
    bins: int = CALIBRATION_BINS,
    units: np.ndarray | None = None,
) -> float:
    """Computes the expected calibration error of all n K sigmoid probabilities, over equal bins.

    Args:
      scores: [n, K] logits.
      labels: [n, K] of 0 and 1.
    """
    weights = row_weights(units)
    gaps = np.zeros(bins)
    for label in range(labels.shape[1]):
        probability = expit(scores[:, label].astype(np.float64))
        gaps += _gaps(probability, labels[:, label] != 0, bins, weights)
    total = labels.size if weights is None else weights.sum() * labels.shape[1]
    return float(np.abs(gaps).sum() / total)


def _gaps(
    probability: np.ndarray, outcome: np.ndarray, bins: int, weights: np.ndarray | None
) -> np.ndarray:
    """Sums probability minus outcome over the rows of each bin, the bins of equal width."""
    edges = np.linspace(0.0, 1.0, bins + 1)[1:-1]
    index = np.digitize(probability, edges, right=True)
    gaps = probability - outcome
    return np.bincount(index, weights=gaps if weights is None else weights * gaps, minlength=bins)


def summarise(
    records: Sequence[Mapping[str, Any]],
    *,
    correct: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    scores: np.ndarray | None = None,
    units: np.ndarray | None = None,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Computes mean, standard deviation and 95 % intervals of each scalar metric, all in [0, 1].

    Two things are uncertain, and each has its interval, decided for each metric by itself. Over
    seeds, where the metric varies over them: Student's t for the mean, cut at 0 and 1. Over test
    rows, whether or not seeds vary: of `PROPORTIONS` Wilson's interval (1927) at the mean over
    seeds, which has a width also where all rows are right; of macro_accuracy that of
    `intervals.over_classes`; of auc and the accuracy over labels a percentile bootstrap over the
    rows of the first seed, moved to the mean over seeds and cut at 0 and 1. A resample in which a
    label lacks one of its values leaves it out of the mean, as `evaluate` does. A bootstrap that
    reaches 0 or 1, and the auc of two classes of which one has fewer than `FEWEST_DRAWN` rows,
    give way to Wilson's interval, as with units below. The third interval, over both, adds the two
    errors (`intervals.together`); of one seed it is that over test rows.

    With several rows a unit the second interval is over units. All these metrics, `PROPORTIONS`
    too, have a bootstrap that draws units with all their rows: a unit's rows are no independent
    ones. Where it says too little there is Wilson's interval for as many independent rows as there
    are units: of fewer than `FEWEST_DRAWN` units, and where it reaches 0 or 1, as it does where all
    rows are right, or all but those of three units. That is honest: a unit's mean lies between 0
    and 1, so that its variance is at most that of one row which is right with the same chance;
    further rows of a unit count for nothing. For macro_accuracy and auc see `_counted_units`.

    Args:
      records: one result of `evaluate` a seed; other keys than the metrics are left out.
      correct: `hits` of the first seed.
      labels: [n] or [n, K] labels of those rows; needed for macro_accuracy and auc.
      scores: [n, K] of the first seed; needed for auc, and with units for top5_accuracy.
      units: int64 [n], whose each row is.
      seed: of the bootstrap.

    Returns:
      metric -> mean, std (ddof = 1; None for one seed), count; rows_low, rows_high, rows_interval:
      the interval over test rows or units, None without one; low, high, interval: that over seeds,
      or the one over test rows where the metric does not vary over seeds; both_low, both_high,
      both_interval: that over both, None without one over test rows.
    """
    count = len(records)
    if count == 0:
        raise ValueError("records is empty: a cell has at least one seed")
    columns = {
        name: np.array([record[name] for record in records], dtype=np.float64)
        for name in records[0]
        if name in SCALAR_METRICS
    }
    means = {name: _mean(values) for name, values in columns.items()}
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
        name: _entry(values, means[name], over_rows.get(name)) for name, values in columns.items()
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
    drawable = _drawable(correct, labels, scores)
    resampled = bootstrap(drawable, len(correct), seed=seed) if drawable else {}
    over_rows: dict[str, _Interval] = {}
    for name, mean in means.items():
        if name in PROPORTIONS and not (name == "accuracy" and correct.ndim == 2):
            over_rows[name] = (*wilson(mean, len(correct)), names[0])
        elif name == "macro_accuracy" and labels is not None:
            over_rows[name] = (*over_classes(mean, correct, labels), names[2])
        elif name in drawable:
            counted = _counted_units(name, labels, scores, rows)
            ends = resampled.get(name, (0.0, 1.0))
            # a mean over many labels is no worse for one that few rows have
            if _inside(ends) and (correct.ndim == 2 or counted >= FEWEST_DRAWN):
                over_rows[name] = (*_moved(ends, mean, first[name]), names[1])
            else:
                over_rows[name] = (*wilson(mean, counted), names[0])
    return over_rows


def _inside(ends: tuple[float, float]) -> bool:
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
    drawable = _drawable(correct, labels, scores, units)
    resampled = bootstrap(drawable, int(units.max()) + 1, seed=seed)
    over_units: dict[str, _Interval] = {}
    for name in means.keys() & drawable.keys():
        counted = _counted_units(name, labels, scores, units)
        ends = resampled.get(name, (0.0, 1.0))
        drawn = counted if name == "auc" and correct.ndim == 1 else units.max() + 1
        if drawn >= FEWEST_DRAWN and _inside(ends):
            over_units[name] = (*_moved(ends, means[name], first[name]), UNIT_BOOTSTRAP)
        else:
            over_units[name] = (*wilson(means[name], counted), UNIT_PROPORTION)
    return over_units


def _moved(ends: tuple[float, float], mean: float, first: float) -> tuple[float, float]:
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
                for _, positive in _columns(scores, labels)
            ]
        )
    else:
        return everyone
    return float(np.mean(having**-0.5) ** -2)


def _mean(values: np.ndarray) -> float:
    """Returns the mean over seeds; of values that differ in last bits at most, the first."""
    return float(values[0] if np.ptp(values) <= SAME else values.mean())


def _entry(values: np.ndarray, mean: float, over_rows: _Interval | None) -> dict[str, Any]:
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
        ends = together(mean, (low, high), over_rows[:2])
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
    makers = _makers(hits(scores, labels, link=link), labels, scores, units)
    return makers[metric]() if metric in makers else None


def _drawable(
    correct: np.ndarray,
    labels: np.ndarray | None,
    scores: np.ndarray | None,
    units: np.ndarray | None = None,
) -> dict[str, Drawable]:
    """Returns the metrics that a bootstrap draws anew; without `units` it draws rows.

    Without units they are auc, and with several labels a row accuracy: the others have intervals
    of their own.
    """
    return {name: make() for name, make in _makers(correct, labels, scores, units).items()}


def _makers(
    correct: np.ndarray,
    labels: np.ndarray | None,
    scores: np.ndarray | None,
    units: np.ndarray | None,
) -> dict[str, Callable[[], Drawable]]:
    """Returns what makes each metric of `_drawable`: ranks and sorted scores are costly."""
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
        makers["auc"] = partial(_areas, scores, labels, units, weights)
    return makers


def _among_five(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.less(_ranks(scores, labels), 5)


def _share_of(right: Callable[[], np.ndarray], units: np.ndarray, weights: np.ndarray) -> Drawable:
    return Share(right(), units, weights)


def _areas(
    scores: np.ndarray, labels: np.ndarray, units: np.ndarray, weights: np.ndarray
) -> Drawable:
    return Areas([Runs(*column, units, weights) for column in _columns(scores, labels)])


def _recall(
    labels: np.ndarray, correct: np.ndarray, classes: int, weights: np.ndarray | None
) -> np.ndarray:
    total = np.bincount(labels, weights=weights, minlength=classes)
    weighted = correct if weights is None else weights * correct
    right = np.bincount(labels, weights=weighted, minlength=classes)
    return np.divide(right, total, out=np.full(classes, np.nan), where=total > 0)


def _check(scores: np.ndarray, labels: np.ndarray, units: np.ndarray | None) -> None:
    fitting = (scores.shape[:1], scores.shape)
    if scores.ndim != 2 or labels.shape not in fitting or len(labels) == 0:
        raise DataError(
            f"scores {scores.shape} and labels {labels.shape} do not match; "
            "give [n, K] scores and [n] or [n, K] labels with n >= 1"
        )
    if units is not None and units.shape != labels.shape[:1]:
        raise DataError(f"units {units.shape} and labels {labels.shape} do not match; give [n]")
    if labels.ndim == 2 and not np.isin(labels, (0, 1)).all():
        raise DataError("labels [n, K] hold other values than 0 and 1; correct them")
    if labels.ndim == 1 and (labels.min() < 0 or labels.max() >= scores.shape[1]):
        raise DataError(
            f"labels reach from {labels.min()} to {labels.max()}, but there are "
            f"{scores.shape[1]} scores a row; train the head on every class of the test split"
        )
    bad = ~np.isfinite(scores).all(axis=1)
    if bad.any():
        raise DataError(
            f"scores of test row {int(bad.argmax())} are not finite: the head diverged; "
            "lower its learning rate"
        )
