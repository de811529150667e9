"""Accuracy, area under the ROC curve, calibration, and their uncertainty.

Labels are one class a row, [n] integers, or several, [n, K] of 0 and 1. What turns scores into
probabilities, the `link`, is "softmax" or "sigmoid" for logits, and "none" for scores that are
no logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit, log_softmax, ndtri, stdtrit

from dpprobe.errors import DataError
from dpprobe.results.cell_record import SCALAR_METRICS

Link = Literal["softmax", "sigmoid", "none"]

CALIBRATION_BINS = 15
# Seeds of a method without randomness still differ in the last bits of float32 sums. Metrics this
# close are the same; one test row in a million moves an accuracy as far.
SAME = 1e-6
CONFIDENCE = 0.95
RESAMPLES = 2000
TOP5_ABOVE = 10  # top-5 accuracy is reported only where there are more classes than this

SEED_INTERVAL = "t over seeds"
ROW_PROPORTION, ROW_BOOTSTRAP = "Wilson over test rows", "bootstrap over test rows"
# Shares of the test rows; accuracy only with one label a row.
PROPORTIONS = ("accuracy", "top5_accuracy", "exact_match_accuracy")
_Interval = tuple[float, float, str]

# What a label counts as present above. A logit of 0 is the probability 1/2; scores that are no
# logits are fits of the targets 0 and 1, and 1/2 lies halfway.
THRESHOLDS: dict[str, float] = {"sigmoid": 0.0, "none": 0.5}
_BLOCK_BYTES = 8 * 2**20  # of resamples at a time: what a cache holds is quickest


def evaluate(
    scores: np.ndarray,
    labels: np.ndarray,
    *,
    link: Link = "softmax",
    accepted: Sequence[Sequence[int]] | None = None,
) -> dict[str, Any]:
    """Computes the metrics of one head on one test split, as fractions.

    Args:
      scores: [n, K].
      labels: [n] integers in 0..K-1, or [n, K] of 0 and 1 where a row may have several labels.
      link: the function that makes probabilities of the scores.
      accepted: with one label a row, the labels that count as right for each, where the test split
        has such lists; an empty one leaves its row out.

    Returns:
      With one label a row: accuracy, macro_accuracy (mean recall of the classes present),
      expected_calibration_error (link softmax), per_class_recall (K values, None for a class with
      no test row), top5_accuracy where K > 10, real_accuracy where there are accepted labels
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
    _check(scores, labels)
    if labels.ndim == 2:
        return _evaluate_labels(scores, labels != 0, link)
    rows, classes = scores.shape
    true = np.take_along_axis(scores, labels[:, None], axis=1)
    before = np.arange(classes)[None, :] < labels[:, None]
    rank = np.sum((scores > true) | ((scores == true) & before), axis=1)
    correct = rank == 0
    recall = _recall(labels, correct, classes)
    result: dict[str, Any] = {
        "accuracy": float(correct.mean()),
        "macro_accuracy": float(np.nanmean(recall)),
    }
    if link == "softmax":
        result["expected_calibration_error"] = calibration_error(scores, correct)
    result["per_class_recall"] = [None if np.isnan(value) else float(value) for value in recall]
    if classes > TOP5_ABOVE:
        result["top5_accuracy"] = float(np.sum(rank < 5) / rows)
    if accepted is not None:
        result["real_accuracy"] = _accepted_accuracy(scores.argmax(axis=1), accepted)
    if classes == 2 and _both(labels == 1):
        result["auc"] = _ranking(_margin(scores), labels == 1)[0]
    return result


def _accepted_accuracy(predicted: np.ndarray, accepted: Sequence[Sequence[int]]) -> float:
    judged = [
        label in labels
        for label, labels in zip(predicted.tolist(), accepted, strict=True)
        if labels
    ]
    if not judged:
        raise DataError("no test row has an accepted label; give some rows theirs")
    return float(np.mean(judged))


def _evaluate_labels(scores: np.ndarray, labels: np.ndarray, link: Link) -> dict[str, Any]:
    """Computes what `evaluate` returns for [n, K] booleans."""
    right = hits(scores, labels, link=link)
    areas: list[float | None] = [None] * labels.shape[1]
    precisions = areas.copy()
    ranked = ranked_labels(labels, labels.shape[1])
    for label in ranked:
        areas[label], precisions[label] = _ranking(scores[:, label], labels[:, label])
    result: dict[str, Any] = {}
    if ranked:
        result["auc"] = float(np.mean([areas[label] for label in ranked]))
        result["mean_average_precision"] = float(np.mean([precisions[label] for label in ranked]))
    result["accuracy"] = float(right.mean())
    result["exact_match_accuracy"] = float(right.all(axis=1).mean())
    if link == "sigmoid":
        result["expected_calibration_error"] = label_calibration_error(scores, labels)
    return result | {
        "per_label_auc": areas,
        "per_label_average_precision": precisions,
        "per_label_accuracy": right.mean(axis=0).tolist(),
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
    scores: np.ndarray, labels: np.ndarray, *, link: Link = "softmax"
) -> dict[str, float]:
    """Computes what is cheap enough to follow in training: test_accuracy, and test_auc.

    test_auc is the auc of `evaluate`, absent where that is; scores that are not finite give NaN.
    """
    result = {"test_accuracy": float(hits(scores, labels, link=link).mean())}
    if ranked_labels(labels, scores.shape[1]):
        areas = [math.nan]
        if np.isfinite(scores).all():
            areas = [_ranking(*column)[0] for column in _columns(scores, labels)]
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


def _ranking(scores: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """Computes the area under the ROC curve and the average precision of one label.

    The area is the Mann-Whitney statistic, the chance that a row with the label scores above one
    without it, ties for a half. Average precision is the sum over thresholds of the recall gained
    there times the precision there; equal scores are one threshold. One sort
    serves both: scikit-learn's functions agree to the last bit or two and take 18 times as long.

    Args:
      scores: [n] finite.
      positive: [n] booleans, of both values.
    """
    order = np.argsort(scores)
    ranked = scores[order]
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    hits_below = np.cumsum(positive[order])[ends]  # with the label and at most this score
    misses_below = ends + 1 - hits_below
    hits_at, misses_at = np.diff(hits_below, prepend=0), np.diff(misses_below, prepend=0)
    wins = np.sum(hits_at * (misses_below - misses_at / 2))
    above = hits_below[-1] - hits_below + hits_at  # with the label and at least this score
    precision = above / (above + misses_below[-1] - misses_below + misses_at)
    area = wins / (float(hits_below[-1]) * float(misses_below[-1]))
    return float(area), float(np.sum(hits_at * precision) / hits_below[-1])


def calibration_error(
    scores: np.ndarray, correct: np.ndarray, *, bins: int = CALIBRATION_BINS
) -> float:
    """Computes the expected calibration error of the top softmax probability.

    Over bins of equal width: Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural
    networks", 2017, eq. 3.

    Args:
      scores: [n, K] logits.
      correct: [n] booleans, True where the top class is the label.
    """
    confidence = np.exp(log_softmax(scores.astype(np.float64), axis=1).max(axis=1))
    return float(np.abs(_gaps(confidence, correct, bins)).sum() / len(confidence))


def label_calibration_error(
    scores: np.ndarray, labels: np.ndarray, *, bins: int = CALIBRATION_BINS
) -> float:
    """Computes the expected calibration error of all n K sigmoid probabilities, over equal bins.

    Args:
      scores: [n, K] logits.
      labels: [n, K] of 0 and 1.
    """
    total = np.zeros(bins)
    for label in range(labels.shape[1]):
        probability = expit(scores[:, label].astype(np.float64))
        total += _gaps(probability, labels[:, label] != 0, bins)
    return float(np.abs(total).sum() / labels.size)


def _gaps(probability: np.ndarray, outcome: np.ndarray, bins: int) -> np.ndarray:
    """Sums probability minus outcome over the rows of each bin, the bins of equal width."""
    edges = np.linspace(0.0, 1.0, bins + 1)[1:-1]
    index = np.digitize(probability, edges, right=True)
    return np.bincount(index, weights=probability - outcome, minlength=bins)


def summarise(
    records: Sequence[Mapping[str, Any]],
    *,
    correct: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    scores: np.ndarray | None = None,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Computes mean, standard deviation and 95 % intervals of each scalar metric, all in [0, 1].

    Two things are uncertain, and each has its interval. Over seeds, where a metric varies over
    them: Student's t for the mean, cut at 0 and 1. Over test rows, whether or not seeds vary: of
    `PROPORTIONS` Wilson's interval (1927) at the mean over seeds, which has a width also where all
    rows are right; of macro_accuracy, auc and the accuracy over labels a percentile bootstrap over
    the rows of the first seed, moved to the mean over seeds and cut at 0 and 1. A resample in which
    a class or a label lacks one of its values leaves it out of the mean, as `evaluate` does. A
    bootstrap in which no resample differs says nothing, and is left out.

    Args:
      records: one result of `evaluate` a seed; other keys than the metrics are left out.
      correct: `hits` of the first seed.
      labels: [n] or [n, K] labels of those rows; needed for macro_accuracy and auc.
      scores: [n, K] of the first seed; needed for auc.
      seed: of the bootstrap.

    Returns:
      metric -> mean, std (ddof = 1; None for one seed), count; rows_low, rows_high, rows_interval:
      the interval over test rows, None without one; low, high, interval: that over seeds, or
      the one over test rows where the metric does not vary over seeds.
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
        resampled: dict[str, tuple[float, float]] = {}
        if correct.ndim == 1 and labels is not None:
            resampled = {"macro_accuracy": _bootstrap_classes(correct, labels, seed=seed)}
        if "auc" in columns or correct.ndim == 2:
            resampled |= _bootstrap_rows(correct, labels, scores, seed=seed)
        for name, values in columns.items():
            if name in PROPORTIONS and not (name == "accuracy" and correct.ndim == 2):
                over_rows[name] = (*wilson(means[name], len(correct)), ROW_PROPORTION)
            elif name in resampled and resampled[name][0] < resampled[name][1]:
                ends = [
                    min(max(means[name] + end - float(values[0]), 0.0), 1.0)
                    for end in resampled[name]
                ]
                over_rows[name] = (ends[0], ends[1], ROW_BOOTSTRAP)
    return {
        name: _entry(values, means[name], over_rows.get(name)) for name, values in columns.items()
    }


def wilson(share: float, rows: int) -> tuple[float, float]:
    """Computes Wilson's score interval of a share of `rows` independent rows."""
    z = float(ndtri((1 + CONFIDENCE) / 2))
    shrunk = 1 + z**2 / rows
    centre = (share + z**2 / (2 * rows)) / shrunk
    half = z / shrunk * math.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    # At the ends rounding would leave the share outside.
    return max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))


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
    return {
        "mean": mean, "std": std, "low": low, "high": high, "count": count, "interval": interval,
        "rows_low": rows_low, "rows_high": rows_high, "rows_interval": rows_interval,
    }  # fmt: skip


def _bootstrap_classes(
    correct: np.ndarray, labels: np.ndarray, *, seed: int
) -> tuple[float, float]:
    """Computes the percentile interval of macro_accuracy when the test rows are drawn again.

    A row matters only through its class and whether it is right, so a resample of n rows is one
    multinomial draw of n over those 2 K cells: the exact bootstrap, without touching rows.
    """
    cells = np.bincount(2 * labels + correct.astype(np.int64), minlength=2 * int(labels.max()) + 2)
    generator = np.random.Generator(np.random.Philox(seed))
    drawn = generator.multinomial(len(correct), cells / cells.sum(), size=RESAMPLES)
    drawn = drawn.reshape(RESAMPLES, -1, 2)
    right, total = drawn[:, :, 1], drawn.sum(axis=2)
    present = total > 0
    recall = np.divide(right, total, out=np.zeros(right.shape), where=present)
    return _percentiles(recall.sum(axis=1) / present.sum(axis=1))


def _percentiles(values: np.ndarray) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    return float(np.quantile(values, tail)), float(np.quantile(values, 1 - tail))


def _bootstrap_rows(
    correct: np.ndarray, labels: np.ndarray | None, scores: np.ndarray | None, *, seed: int
) -> dict[str, tuple[float, float]]:
    """Computes percentile intervals of auc, and with several labels a row of accuracy.

    Every label sees the same resamples of rows. They are held as [rows, resamples] counts, a block
    of resamples at a time.
    """
    rows = len(correct)
    per_row = {}
    if correct.ndim == 2:
        per_row["accuracy"] = correct.mean(axis=1)
    runs = []
    if labels is not None and scores is not None:
        runs = [_Runs(*column) for column in _columns(scores, labels)]
    generator = np.random.Generator(np.random.Philox(seed))
    drawn: dict[str, list[np.ndarray]] = {}
    block = max(1, _BLOCK_BYTES // (4 * rows))
    for start in range(0, RESAMPLES, block):
        counts = np.empty((rows, min(block, RESAMPLES - start)), dtype=np.float32)
        for column in range(counts.shape[1]):
            counts[:, column] = np.bincount(generator.integers(rows, size=rows), minlength=rows)
        for name, values in per_row.items():
            drawn.setdefault(name, []).append(values @ counts / rows)
        if runs:
            drawn.setdefault("auc", []).append(_mean_defined([run.areas(counts) for run in runs]))
    joined = {name: np.concatenate(parts) for name, parts in drawn.items()}
    defined = {name: values[np.isfinite(values)] for name, values in joined.items()}
    return {name: _percentiles(values) for name, values in defined.items() if len(values)}


def _mean_defined(areas: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the mean [resamples] over the labels that are not NaN; NaN where all are."""
    total = np.sum([np.nan_to_num(area) for area in areas], axis=0)
    count = np.sum([np.isfinite(area) for area in areas], axis=0)
    return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)


class _Runs:
    """Rows of one label in the order of their scores, cut where that matters for its AUC.

    Neighbours that all have the label are one run: only their number enters, and that of the rows
    without the label that score below them. A run ends where its score is shared with rows of the
    other kind: those are beaten by half.
    """

    def __init__(self, scores: np.ndarray, positive: np.ndarray) -> None:
        order = np.lexsort((positive, scores))  # of equal scores, rows without the label first
        ranked, present = scores[order], positive[order]
        steps = ranked[1:] != ranked[:-1]
        group = np.append(0, np.cumsum(steps))
        share = np.bincount(group, weights=present) / np.bincount(group)
        mixed = ((share > 0) & (share < 1))[group]
        cut = (present[1:] != present[:-1]) | (steps & (mixed[1:] | mixed[:-1]))
        starts = np.append(True, cut) & present
        run = np.cumsum(starts)  # of a row with the label, counted from 1
        count = int(run[-1])
        rows = len(order)
        self._gained = _indicator(run[present] - 1, order[present], (count, rows))
        # Rows without the label lie between two runs: below the second, if there is one.
        between = ~present & (run < count)
        self._below = _indicator(run[between], order[between], (count, rows))
        tied = between & mixed
        self._tied = _indicator(run[tied], order[tied], (count, rows)) if tied.any() else None

    def areas(self, counts: np.ndarray) -> np.ndarray:
        """Computes the AUC [resamples] of rows counted [n, resamples] times.

        It is NaN where one kind of row is left out.
        """
        gained = self._gained @ counts
        beaten = np.cumsum(self._below @ counts, axis=0, dtype=np.float64)
        if self._tied is not None:
            beaten -= (self._tied @ counts) / 2
        wins = np.einsum("ij,ij->j", gained, beaten)
        hits = gained.sum(axis=0, dtype=np.float64)
        pairs = hits * (counts.sum(axis=0, dtype=np.float64) - hits)
        return np.divide(wins, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)


def _indicator(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> csr_array:
    """Returns the sparse matrix of ones at (rows, columns); rows rise."""
    starts = np.searchsorted(rows, np.arange(shape[0] + 1))
    return csr_array((np.ones(len(rows), dtype=np.float32), columns, starts), shape=shape)


def _recall(labels: np.ndarray, correct: np.ndarray, classes: int) -> np.ndarray:
    total = np.bincount(labels, minlength=classes)
    right = np.bincount(labels, weights=correct, minlength=classes)
    return np.divide(right, total, out=np.full(classes, np.nan), where=total > 0)


def _check(scores: np.ndarray, labels: np.ndarray) -> None:
    fitting = (scores.shape[:1], scores.shape)
    if scores.ndim != 2 or labels.shape not in fitting or len(labels) == 0:
        raise DataError(
            f"scores {scores.shape} and labels {labels.shape} do not match; "
            "give [n, K] scores and [n] or [n, K] labels with n >= 1"
        )
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
