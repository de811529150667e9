"""Accuracy, area under the ROC curve and calibration of one head on a test split.

Labels are one class per row, [n] integers, or several, [n, K] of 0 and 1. The `link`, which turns
scores into probabilities, is "softmax" or "sigmoid" for logits, and "none" for other scores.

`units` (int64 [rows]) may give the number of each test example's patient. With `units` each patient
counts once: a row of a patient with m test examples has weight 1 / m in each metric, and a
bootstrap draws a patient's rows together. Rows of one patient resemble each other, so intervals
over rows would be too narrow. Without `units`, or with one row per patient, all rows have equal
weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from scipy.special import expit, log_softmax

from dpprobe.errors import DataError
from dpprobe.results.unit_counts import row_weights

Link = Literal["softmax", "sigmoid", "none"]

CALIBRATION_BINS = 15
# Even without randomness, seeds differ in the last bits of float32 sums. Metrics that differ by at
# most this count as equal; one of a million test examples changes an accuracy by as much.
SAME = 1e-6
TOP5_ABOVE = 10  # top-5 accuracy is computed for more classes than this
# The message does not suggest accuracy: never predicting the missing class is always right.
NO_AUC = (
    "no label that some test rows have and others have not, so there is no AUC; enlarge the test "
    "split (test_fraction, or a test split of your own) or merge classes, so that both are in it"
)

# A label with a score above this threshold counts as present. A logit of 0 means probability 1/2.
# Scores that are no logits are fits to the targets 0 and 1, so 1/2 lies halfway.
THRESHOLDS: dict[str, float] = {"sigmoid": 0.0, "none": 0.5}


def evaluate_scores(
    scores: np.ndarray,
    labels: np.ndarray,
    *,
    link: Link = "softmax",
    accepted: Sequence[Sequence[int]] | None = None,
    units: np.ndarray | None = None,
) -> dict[str, Any]:
    """Computes the metrics of one head on one test split, as fractions.

    With `units`, each share, mean and rank counts rows by their weights.

    Args:
      scores: [n, K].
      labels: [n] integers in 0..K-1, or [n, K] of 0 and 1 if a row may have several labels.
      accepted: for data with one label per example, the labels that count as right for each row; a
        row with an empty list is left out.

    Returns:
      With one label per example: accuracy, macro_accuracy (mean recall of the classes present),
      expected_calibration_error (link softmax), per_class_recall (K values, None for a class
      without test examples), never_predicted (classes with test examples and no prediction),
      top5_accuracy if K > 10, real_accuracy if there are accepted labels (ReaL: Beyer et al. 2020,
      "Are we done with ImageNet?"), and auc, of the second class against the first, if K = 2 and
      both have test examples. Equal scores rank in the order of the classes, so top-1 is argmax.

      With several labels: auc and mean_average_precision, means over the labels that some test
        examples
      have and others have not (absent if there is no such label); accuracy, the share of all n K
      labels that are right; exact_match_accuracy, the share of rows with all of them right;
      expected_calibration_error over all n K probabilities (link sigmoid); and per_label_auc,
      per_label_average_precision and per_label_accuracy, K values each, None for a label that
      does not enter a mean. A label is predicted if its score is above `THRESHOLDS`.

    Raises DataError if a score is not finite, no row has an accepted label, or the link is softmax
    for several labels.
    """
    bad = ~np.isfinite(scores).all(axis=1)
    if bad.any():
        raise DataError(
            f"scores of test row {int(bad.argmax())} are not finite: the head diverged; "
            "lower its learning rate"
        )
    weights = row_weights(units)
    if labels.ndim == 2:
        return _evaluate_labels(scores, labels != 0, link, weights)
    classes = scores.shape[1]
    rank = label_ranks(scores, labels)
    correct = rank == 0
    recall = _recall_by_class(labels, correct, classes, weights)
    result: dict[str, Any] = {
        "accuracy": _weighted_share(correct, weights),
        "macro_accuracy": float(np.nanmean(recall)),
    }
    if link == "softmax":
        top = np.exp(log_softmax(scores.astype(np.float64), axis=1).max(axis=1))
        result["expected_calibration_error"] = calibration_error(top, correct, weights)
    result["per_class_recall"] = [None if np.isnan(value) else float(value) for value in recall]
    result["never_predicted"] = np.setdiff1d(labels, scores.argmax(axis=1)).tolist()
    if classes > TOP5_ABOVE:
        result["top5_accuracy"] = _weighted_share(np.less(rank, 5), weights)
    if accepted is not None:
        result["real_accuracy"] = _accepted_accuracy(scores.argmax(axis=1), accepted, weights)
    if classes == 2 and _has_both(labels == 1):
        result["auc"] = _ranking_metrics(_score_margin(scores), labels == 1, weights)[0]
    return result


def constant_accuracy(labels: np.ndarray, *, units: np.ndarray | None = None) -> float:
    """Computes the majority-class baseline's accuracy; for several labels, the mean over labels."""
    weights = row_weights(units)
    if labels.ndim == 1:
        total = len(labels) if weights is None else weights.sum()
        return float(np.bincount(labels, weights=weights).max() / total)
    having = np.average(labels != 0, axis=0, weights=weights)
    return float(np.maximum(having, 1 - having).mean())


def _weighted_share(right: np.ndarray, weights: np.ndarray | None) -> float:
    if weights is None:
        return float(right.mean())
    return float(np.average(right.reshape(len(right), -1).mean(axis=1), weights=weights))


def label_ranks(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts, for each row, the classes that rank before the row's label."""
    true = np.take_along_axis(scores, labels[:, None], axis=1)
    before = np.arange(scores.shape[1])[None, :] < labels[:, None]
    return np.asarray(np.sum((scores > true) | ((scores == true) & before), axis=1))


def _accepted_accuracy(
    predicted: np.ndarray, accepted: Sequence[Sequence[int]], weights: np.ndarray | None
) -> float:
    judged = np.array([bool(labels) for labels in accepted])
    if not judged.any():
        raise DataError("no test row has an accepted label; add accepted labels for some test rows")
    right = np.array(
        [label in labels for label, labels in zip(predicted.tolist(), accepted, strict=True)]
    )
    return _weighted_share(right[judged], None if weights is None else weights[judged])


def _evaluate_labels(
    scores: np.ndarray, labels: np.ndarray, link: Link, weights: np.ndarray | None
) -> dict[str, Any]:
    right = right_predictions(scores, labels, link=link)
    areas: list[float | None] = [None] * labels.shape[1]
    precisions = areas.copy()
    ranked = ranked_labels(labels, labels.shape[1])
    for label in ranked:
        areas[label], precisions[label] = _ranking_metrics(
            scores[:, label], labels[:, label], weights
        )
    result: dict[str, Any] = {}
    if ranked:
        result["auc"] = float(np.mean([areas[label] for label in ranked]))
        result["mean_average_precision"] = float(np.mean([precisions[label] for label in ranked]))
    result["accuracy"] = _weighted_share(right, weights)
    result["exact_match_accuracy"] = _weighted_share(np.asarray(right.all(axis=1)), weights)
    if link == "sigmoid":
        probability = expit(scores.astype(np.float64))
        result["expected_calibration_error"] = calibration_error(probability, labels, weights)
    return result | {
        "per_label_auc": areas,
        "per_label_average_precision": precisions,
        "per_label_accuracy": np.average(right, axis=0, weights=weights).tolist(),
    }


def right_predictions(
    scores: np.ndarray, labels: np.ndarray, *, link: Link = "softmax"
) -> np.ndarray:
    """Returns True for each right prediction: [n] with one label per example, [n, K] with several.

    Raises DataError for several labels per example with the link softmax, which needs one label.
    """
    if labels.ndim == 1:
        return np.asarray(scores.argmax(axis=1) == labels)
    if link not in THRESHOLDS:
        raise DataError(
            f"link {link}: this link gives probabilities for one label per row, but these rows "
            "have several; train with `loss: sigmoid`"
        )
    return np.asarray((scores > THRESHOLDS[link]) == (labels != 0))


def training_metrics(
    scores: np.ndarray,
    labels: np.ndarray,
    *,
    link: Link = "softmax",
    units: np.ndarray | None = None,
) -> dict[str, float]:
    """Computes the metrics that are fast during training: test_accuracy, and test_auc if defined.

    Scores that are not finite give NaN.
    """
    weights = row_weights(units)
    result = {
        "test_accuracy": _weighted_share(right_predictions(scores, labels, link=link), weights)
    }
    if ranked_labels(labels, scores.shape[1]):
        areas = [math.nan]
        if np.isfinite(scores).all():
            areas = [
                _ranking_metrics(*column, weights)[0] for column in ranked_columns(scores, labels)
            ]
        result["test_auc"] = float(np.mean(areas))
    return result


def ranked_labels(labels: np.ndarray, num_classes: int) -> list[int]:
    """Lists the labels that enter an AUC: labels that some test examples have and others lack.

    With one label per example, lists the second of two classes if both have rows, else nothing.
    """
    if labels.ndim == 1:
        return [1] if num_classes == 2 and _has_both(labels == 1) else []
    return [label for label in range(labels.shape[1]) if _has_both(labels[:, label] != 0)]


def ranked_columns(
    scores: np.ndarray, labels: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields scores [n] and presence [n] of each label that enters an AUC."""
    for label in ranked_labels(labels, scores.shape[1]):
        if labels.ndim == 1:
            yield _score_margin(scores), labels == 1
        else:
            yield scores[:, label], labels[:, label] != 0


def _score_margin(scores: np.ndarray) -> np.ndarray:
    return np.asarray(scores[:, 1].astype(np.float64) - scores[:, 0])


def _has_both(positive: np.ndarray) -> bool:
    return bool(positive.any()) and not bool(positive.all())


def _ranking_metrics(
    scores: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None
) -> tuple[float, float]:
    """Computes the area under the ROC curve and the average precision of one label.

    The area is the Mann-Whitney statistic, the probability that a row with the label scores above a
    row without it; a tie counts half. Average precision is the sum over thresholds of the recall
    gained at the threshold times the precision there; equal scores are one threshold. One sort
    suffices: scikit-learn's functions agree to the last bit or two and take 18 times as long.
    `positive` has at least one True and one False.
    """
    order = np.argsort(scores)
    ranked = scores[order]
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    present = positive[order]
    if weights is None:
        hits_below = np.cumsum(present)[ends]  # rows with the label and at most this score
        misses_below = ends + 1 - hits_below
    else:
        heavy = weights[order]
        hits_below = np.cumsum(heavy * present)[ends]
        misses_below = np.cumsum(heavy * ~present)[ends]
    hits_at, misses_at = np.diff(hits_below, prepend=0), np.diff(misses_below, prepend=0)
    wins = np.sum(hits_at * (misses_below - misses_at / 2))
    above = hits_below[-1] - hits_below + hits_at  # rows with the label and at least this score
    precision = above / (above + misses_below[-1] - misses_below + misses_at)
    area = wins / (float(hits_below[-1]) * float(misses_below[-1]))
    average = np.sum(hits_at * precision) / hits_below[-1]
    return min(float(area), 1.0), min(float(average), 1.0)  # rounding may exceed 1


def calibration_error(
    probability: np.ndarray, outcome: np.ndarray, weights: np.ndarray | None = None
) -> float:
    """Computes the expected calibration error, over bins of equal width.

    Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", 2017, eq. 3.

    Args:
      probability: [n], each row's top class, or [n, K], several labels.
      outcome: booleans of equal shape, True if the class or label is right.
    """
    edges = np.linspace(0.0, 1.0, CALIBRATION_BINS + 1)[1:-1]
    gaps = np.zeros(CALIBRATION_BINS)
    columns = probability.reshape(len(probability), -1).T, outcome.reshape(len(outcome), -1).T
    for predicted, came in zip(*columns, strict=True):
        gap = predicted - came if weights is None else weights * (predicted - came)
        bins = np.digitize(predicted, edges, right=True)
        gaps += np.bincount(bins, weights=gap, minlength=CALIBRATION_BINS)
    total = len(probability) if weights is None else weights.sum()
    return float(np.abs(gaps).sum() / (total * len(columns[0])))


def _recall_by_class(
    labels: np.ndarray, correct: np.ndarray, classes: int, weights: np.ndarray | None
) -> np.ndarray:
    total = np.bincount(labels, weights=weights, minlength=classes)
    weighted = correct if weights is None else weights * correct
    right = np.bincount(labels, weights=weighted, minlength=classes)
    return np.divide(right, total, out=np.full(classes, np.nan), where=total > 0)
