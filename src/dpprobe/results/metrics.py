"""Accuracy, area under the ROC curve and calibration error of one head on a test split.

Labels are [n] integers for one class per row, or [n, K] of 0 and 1 for several labels per row. The
`link`, which turns scores into probabilities, is "softmax" or "sigmoid" for logits, else "none".

`units` (int64 [rows]) is the index of each test example's patient. With `units` each patient counts
once: a row of a patient with m test examples has weight 1 / m in each metric, and a bootstrap draws
all rows of a patient together. Otherwise intervals would be too narrow, because rows of a patient
resemble each other. Without `units`, all rows have equal weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_softmax

from dpprobe.errors import DataError
from dpprobe.results.cell_record import REAL_ACCURACY
from dpprobe.results.unit_counts import row_weights

Link = Literal["softmax", "sigmoid", "none"]

CALIBRATION_BINS = 15
# Metrics that differ by at most SAME count as equal, because float32 rounding may differ between
# seeds. One test example of a million changes accuracy by SAME.
SAME = 1e-6
TOP5_ABOVE = 10  # top-5 accuracy is computed if there are more classes
# Does not suggest accuracy, which would reward never predicting the missing class.
NO_AUC = (
    "no label that some test rows have and other test rows lack, so no AUC exists; enlarge the "
    "test split (test_fraction, or a test split of your own) or merge classes"
)

# Thresholds by link: a label with a higher score is predicted. A logit of 0 means probability 1/2.
# Scores that are not logits were fitted to targets 0 and 1, so the threshold is 1/2.
THRESHOLDS: dict[str, float] = {"sigmoid": 0.0, "none": 0.5}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One head's scores on one test split, and everything else that its metrics need.

    With `units`, rows are weighted in each share, mean and rank.

    Attributes:
      scores: [n, K].
      labels: [n] integers in 0..K-1, or [n, K] of 0 and 1 if a row may have several labels.
      accepted: for data with one label per example, the labels that count as right for each row;
        rows with an empty list are left out.
    """

    scores: np.ndarray
    labels: np.ndarray
    link: Link = field(default="softmax", kw_only=True)
    accepted: Sequence[Sequence[int]] | None = field(default=None, kw_only=True)
    units: np.ndarray | None = field(default=None, kw_only=True)

    def compute_metrics(self) -> dict[str, Any]:
        """Computes all metrics, as fractions.

        Returns:
          With one label per example (equal scores rank in the order of the classes):
          - accuracy; top5_accuracy if K > 10; expected_calibration_error if the link is softmax
          - macro_accuracy: mean recall of the classes with test examples
          - per_class_recall: K values, None for a class without test examples
          - never_predicted: the classes with test examples and without predictions
          - real_accuracy: accuracy by `accepted` (ReaL: Beyer et al. 2020, Are we done with
            ImageNet?)
          - auc: the second class against the first, if K = 2 and both classes have test examples

          With several labels per example (a label is predicted if its score is above `THRESHOLDS`):
          - accuracy: share of right labels among all n K; exact_match_accuracy: share of right rows
          - auc, mean_average_precision: means over labels that some test examples have and others
            lack
          - expected_calibration_error: over all n K probabilities, if the link is sigmoid
          - per_label_auc, per_label_average_precision: K values, None for labels that enter no mean
          - per_label_accuracy: K values

        Raises DataError if a score is not finite, no row has an accepted label, or the link is
        softmax for several labels.
        """
        bad = ~np.isfinite(self.scores).all(axis=1)
        if bad.any():
            raise DataError(
                f"scores of test row {int(bad.argmax())} are not finite: the head diverged; "
                "lower its learning rate"
            )
        values = {name: compute(self) for name, compute in SCALAR_METRICS.items()}
        result: dict[str, Any] = {name: one for name, one in values.items() if one is not None}
        if not self.several:
            missed = np.setdiff1d(self.labels, self.scores.argmax(axis=1)).tolist()
            recall = [None if np.isnan(value) else float(value) for value in self.recall]
            return result | {"per_class_recall": recall, "never_predicted": missed}
        ranked = [self.ranked.get(label, (None, None)) for label in range(self.labels.shape[1])]
        return result | {
            "per_label_auc": [area for area, _ in ranked],
            "per_label_average_precision": [precision for _, precision in ranked],
            "per_label_accuracy": np.average(self.right, axis=0, weights=self.weights).tolist(),
        }

    def compute_fast_metrics(self) -> dict[str, float]:
        """Computes metrics that are fast enough to record during training.

        Returns test_accuracy, and test_auc if an AUC is defined (NaN if a score is not finite).
        """
        right = right_predictions(self.scores, self.labels, link=self.link)
        result = {"test_accuracy": self.share(right)}
        if ranked_labels(self.labels, self.scores.shape[1]):
            areas = [math.nan]
            if np.isfinite(self.scores).all():
                areas = [_ranking_metrics(*each, self.weights)[0] for each in self.list_columns()]
            result["test_auc"] = float(np.mean(areas))
        return result

    @property
    def several(self) -> bool:
        return self.labels.ndim == 2

    @cached_property
    def weights(self) -> np.ndarray | None:
        """[n] weights of rows; None for equal weights."""
        return row_weights(self.units)

    @cached_property
    def rank(self) -> np.ndarray:
        return label_ranks(self.scores, self.labels)

    @cached_property
    def right(self) -> np.ndarray:
        """Right predictions: booleans [n], or [n, K] for several labels per row."""
        if self.several:
            return right_predictions(self.scores, self.labels, link=self.link)
        return self.rank == 0

    @cached_property
    def recall(self) -> np.ndarray:
        """[K] recall of each class, NaN without test rows."""
        return _recall_by_class(self.labels, self.right, self.scores.shape[1], self.weights)

    @cached_property
    def ranked(self) -> dict[int, tuple[float, float]]:
        """AUC and average precision by label, for the labels in `ranked_labels`."""
        labels = ranked_labels(self.labels, self.scores.shape[1])
        columns = zip(labels, self.list_columns(), strict=True)
        return {label: _ranking_metrics(*column, self.weights) for label, column in columns}

    def list_columns(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields scores [n] and booleans [n] for each label in `ranked_labels`."""
        for label in ranked_labels(self.labels, self.scores.shape[1]):
            if self.several:
                yield self.scores[:, label], self.labels[:, label] != 0
            else:
                yield self.scores[:, 1].astype(np.float64) - self.scores[:, 0], self.labels == 1

    def share(self, right: npt.ArrayLike) -> float:
        return _weighted_share(np.asarray(right), self.weights)

    def mean_ranked(self, which: int) -> float | None:
        values = [each[which] for each in self.ranked.values()]
        return float(np.mean(values)) if values else None


def _top5_accuracy(of: Evaluation) -> float | None:
    if of.several or of.scores.shape[1] <= TOP5_ABOVE:
        return None
    return of.share(np.less(of.rank, 5))


def _real_accuracy(of: Evaluation) -> float | None:
    if of.several or of.accepted is None:
        return None
    return _accepted_accuracy(of.scores.argmax(axis=1), of.accepted, of.weights)


def _expected_calibration_error(of: Evaluation) -> float | None:
    scores = of.scores.astype(np.float64)
    if of.several and of.link == "sigmoid":
        return calibration_error(expit(scores), of.labels != 0, of.weights)
    if not of.several and of.link == "softmax":
        top = np.exp(log_softmax(scores, axis=1).max(axis=1))
        return calibration_error(top, of.right, of.weights)
    return None


# All metrics that are a single fraction, in the order of columns in summaries. A function returns
# None if its metric is undefined for the data.
SCALAR_METRICS: dict[str, Callable[[Evaluation], float | None]] = {
    "accuracy": lambda of: of.share(of.right),
    "top5_accuracy": _top5_accuracy,
    REAL_ACCURACY: _real_accuracy,
    "macro_accuracy": lambda of: None if of.several else float(np.nanmean(of.recall)),
    "exact_match_accuracy": lambda of: of.share(of.right.all(axis=1)) if of.several else None,
    "expected_calibration_error": _expected_calibration_error,
    "auc": lambda of: of.mean_ranked(0),
    "mean_average_precision": lambda of: of.mean_ranked(1) if of.several else None,
}


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
            f"link {link}: this link gives probabilities for one label per row, but the rows have "
            "several labels; train with `loss: sigmoid`"
        )
    return np.asarray((scores > THRESHOLDS[link]) == (labels != 0))


def ranked_labels(labels: np.ndarray, num_classes: int) -> list[int]:
    """Lists the labels with an AUC: labels that some test examples have and others lack.

    With one label per example, lists the second of two classes if both have rows, else nothing.
    """
    if labels.ndim == 1:
        return [1] if num_classes == 2 and _has_both(labels == 1) else []
    return [label for label in range(labels.shape[1]) if _has_both(labels[:, label] != 0)]


def _has_both(positive: np.ndarray) -> bool:
    return bool(positive.any()) and not bool(positive.all())


def _ranking_metrics(
    scores: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None
) -> tuple[float, float]:
    """Computes the area under the ROC curve and the average precision of one label.

    The area is the probability that a row with the label scores above a row without the label,
    where a tie counts half (Mann-Whitney). Average precision is the sum, over thresholds, of the
    gain in recall times the precision. Equal scores are one threshold. scikit-learn's functions
    agree to the last bit or two, and take 18 times as long. `positive` has a True and a False.
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

    See Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", 2017, eq. 3.

    Args:
      probability: [n] for each row's top class, or [n, K] for several labels.
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
