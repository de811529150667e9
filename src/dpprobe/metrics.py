"""Accuracy, calibration and their uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import log_softmax, stdtrit

from dpprobe.errors import DataError

CALIBRATION_BINS = 15
# Seeds of a method without randomness still differ in the last bits of float32 sums. Metrics this
# close are the same; one test row in a million moves an accuracy as far.
SAME = 1e-6
CONFIDENCE = 0.95
RESAMPLES = 2000
TOP5_ABOVE = 10  # top-5 accuracy is reported only where there are more classes than this

SEED_INTERVAL = "t over seeds"
ROW_INTERVAL = "bootstrap over test rows"


def evaluate(scores: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """The metrics of one head on one test split.

    Args:
      scores: [n, K] logits.
      labels: [n] integers in 0..K-1.

    Returns:
      accuracy, macro_accuracy (mean recall of the classes present), expected_calibration_error,
      per_class_recall (K values, None for a class with no test row), and top5_accuracy where
      K > 10. Fractions, not percent. Equal scores rank in the order of the classes, so that
      top-1 is argmax.

    Raises:
      DataError: when the shapes do not match, a label is out of range or a score is not finite.
    """
    _check(scores, labels)
    rows, classes = scores.shape
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    before = np.arange(classes)[None, :] < labels[:, None]
    rank = np.sum((scores > own) | ((scores == own) & before), axis=1)
    correct = rank == 0
    recall = _recall(labels, correct, classes)
    result: dict[str, Any] = {
        "accuracy": float(correct.mean()),
        "macro_accuracy": float(np.nanmean(recall)),
        "expected_calibration_error": calibration_error(scores, correct),
        "per_class_recall": [None if np.isnan(value) else float(value) for value in recall],
    }
    if classes > TOP5_ABOVE:
        result["top5_accuracy"] = float(np.sum(rank < 5) / rows)
    return result


def calibration_error(
    scores: np.ndarray, correct: np.ndarray, *, bins: int = CALIBRATION_BINS
) -> float:
    """Expected calibration error of the top softmax probability, over bins of equal width.

    Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", 2017, eq. 3.

    Args:
      scores: [n, K] logits.
      correct: [n] whether the top class is the label.
    """
    confidence = np.exp(log_softmax(scores.astype(np.float64), axis=1).max(axis=1))
    edges = np.linspace(0.0, 1.0, bins + 1)[1:-1]
    index = np.digitize(confidence, edges, right=True)
    gap = np.bincount(index, weights=confidence - correct, minlength=bins)
    return float(np.abs(gap).sum() / len(confidence))


def summarise(
    records: Sequence[Mapping[str, Any]],
    *,
    correct: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Mean, standard deviation and a 95 % interval of each scalar metric.

    Over several seeds the interval is Student's t for the mean. Where the seeds do not vary (one
    seed, or a method without randomness, whose seeds differ in rounding at most) it would say
    nothing, so there the interval of the two accuracies is a percentile bootstrap over test rows
    of the first seed.

    Args:
      records: one result of `evaluate` a seed; other keys than the metrics are left out.
      correct: [n] whether the first seed is right on each test row.
      labels: [n] labels of those rows; needed for the bootstrap of macro_accuracy.
      seed: of the bootstrap.

    Returns:
      metric -> mean, std (ddof = 1; None for one seed), low, high, count, interval. low, high and
      interval are None where there is neither variation over seeds nor a bootstrap.
    """
    count = len(records)
    if count == 0:
        raise ValueError("records is empty: a cell has at least one seed")
    columns = {
        name: np.array([record[name] for record in records], dtype=np.float64)
        for name in records[0]
        if name.endswith(("accuracy", "calibration_error"))
    }
    varies = any(np.ptp(values) > SAME for values in columns.values())
    resampled: dict[str, tuple[float, float]] = {}
    if not varies and correct is not None:
        resampled = _bootstrap(correct, labels, seed=seed)
    return {
        name: _entry(values, varies=varies, resampled=resampled.get(name))
        for name, values in columns.items()
    }


def _entry(
    values: np.ndarray, *, varies: bool, resampled: tuple[float, float] | None
) -> dict[str, Any]:
    count = len(values)
    # Values that are the same have no spread: neither last bits nor a rounded mean make one.
    equal = np.ptp(values) <= SAME
    mean = float(values[0] if equal else values.mean())
    std = None if count == 1 else 0.0 if equal else float(values.std(ddof=1))
    low = high = interval = None
    if varies and std is not None:
        half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * std / count**0.5
        low, high, interval = mean - half, mean + half, SEED_INTERVAL
    elif resampled is not None:
        low, high = resampled
        interval = ROW_INTERVAL
    return {
        "mean": mean, "std": std, "low": low, "high": high, "count": count, "interval": interval,
    }  # fmt: skip


def _bootstrap(
    correct: np.ndarray, labels: np.ndarray | None, *, seed: int
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of both accuracies when the test rows are drawn again.

    A row matters only through its class and whether it is right, so a resample of n rows is one
    multinomial draw of n over those 2 K cells: the exact bootstrap, without touching rows.
    """
    groups = np.zeros(len(correct), dtype=np.int64) if labels is None else labels
    cells = np.bincount(2 * groups + correct.astype(np.int64), minlength=2 * int(groups.max()) + 2)
    generator = np.random.Generator(np.random.Philox(seed))
    drawn = generator.multinomial(len(correct), cells / cells.sum(), size=RESAMPLES)
    drawn = drawn.reshape(RESAMPLES, -1, 2)
    right, total = drawn[:, :, 1], drawn.sum(axis=2)
    statistics = {"accuracy": right.sum(axis=1) / len(correct)}
    if labels is not None:
        present = total > 0
        recall = np.divide(right, total, out=np.zeros(right.shape), where=present)
        statistics["macro_accuracy"] = recall.sum(axis=1) / present.sum(axis=1)
    tail = (1 - CONFIDENCE) / 2
    return {
        name: (float(np.quantile(values, tail)), float(np.quantile(values, 1 - tail)))
        for name, values in statistics.items()
    }


def _recall(labels: np.ndarray, correct: np.ndarray, classes: int) -> np.ndarray:
    total = np.bincount(labels, minlength=classes)
    right = np.bincount(labels, weights=correct, minlength=classes)
    return np.divide(right, total, out=np.full(classes, np.nan), where=total > 0)


def _check(scores: np.ndarray, labels: np.ndarray) -> None:
    if scores.ndim != 2 or labels.ndim != 1 or len(scores) != len(labels) or len(labels) == 0:
        raise DataError(
            f"scores {scores.shape} and labels {labels.shape} do not match; "
            "give [n, K] scores and [n] labels with n >= 1"
        )
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
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
