"""Demographic parity, equal opportunity and equalized odds of predicted labels, by fairlearn.

Differences between the largest and the smallest rate of a group: of rows predicted to have a label
(demographic parity), of such rows among those that have it (equal opportunity), and the larger of
the latter and of the same among rows without it (equalized odds): Hardt, Price and Srebro 2016,
"Equality of opportunity in supervised learning", section 2; Agarwal et al. 2018, "A reductions
approach to fair classification", definitions 1 and 2. Rows count by their weights. fairlearn calls
a Python function for each group and rate, so that it is given sums of weights, one row for each of
a group's four kinds of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dpprobe.analyses.fairness.fairness_record import Minimum, Parity
from dpprobe.analyses.fairness.group_metrics import Head
from dpprobe.analyses.fairness.groupings import Counts, Grouping, TestRows, kept_groups

DIFFERENCES = (
    "demographic_parity_difference",
    "equal_opportunity_difference",
    "equalized_odds_difference",
)
# The rates of a label that a frame has: of all rows, of those with the label, of those without.
KINDS = ("selected", "true", "false")
_Rate = Callable[[np.ndarray, np.ndarray, np.ndarray], float]
# A threshold is a probability, or a rate of false positives; neither with more than two classes.
Threshold = tuple[str, float | None, float | None]


def named_thresholds(values: Sequence[float | dict[str, float]], classes: int) -> list[Threshold]:
    """Returns each threshold as its name, its probability and its rate of false positives.

    Args:
      values: probabilities, and {"false_positive_rate": r}.
      classes: of rows with one label; 2 for several labels per example.
    """
    if classes > 2:
        return [("argmax", None, None)]
    named: list[Threshold] = []
    for value in values:
        if isinstance(value, dict):
            rate = value["false_positive_rate"]
            named.append((f"false positive rate {rate:g}", None, rate))
        else:
            named.append((f"{value:g}", value, None))
    return named


def compute_parity(
    head: Head,
    grouping: Grouping,
    counts: Counts,
    thresholds: Sequence[Threshold],
    minimum: Minimum,
) -> dict[tuple[str, str], tuple[float | None, ...]]:
    """Computes the differences of one head: (threshold, label) -> `DIFFERENCES`.

    Demographic parity is between all groups that are compared, the other two between those with
    enough units that have the label and that have it not; None where these are fewer than two.

    Args:
      counts: units of each group with each of the labels that have a recall.
    """
    kept = kept_groups(grouping, grouping.left_out)
    made: dict[tuple[str, str], tuple[float | None, ...]] = {}
    for threshold, probability, rate in thresholds:
        metrics: dict[str, _Rate] = {}
        weights: dict[str, np.ndarray] = {}
        labels = []
        for name, predicted in head.predict_labels(probability, rate):
            label = head.rows.recalled_labels.index(name)
            sums = _sum_weights(head.rows, grouping, name, predicted)[kept]
            enough = (counts.positives[kept, label] >= minimum.positives) & (
                counts.negatives[kept, label] >= minimum.negatives
            )
            for kind, compute in zip(
                KINDS, (_selected_share, _true_rate, _false_rate), strict=True
            ):
                metrics[f"{kind} {label}"] = compute
                weights[f"{kind} {label}"] = sums if kind == "selected" else sums * enough[:, None]
            labels.append((name, label))
        if labels and len(kept) > 1:
            spread = _rate_spread(metrics, weights)
            for name, label in labels:
                selected, true, false = (spread[f"{kind} {label}"] for kind in KINDS)
                odds = None if true is None or false is None else max(true, false)
                made[threshold, name] = selected, true, odds
    return made


def _sum_weights(
    rows: TestRows, grouping: Grouping, label: str, predicted: np.ndarray
) -> np.ndarray:
    """Returns the weight of each group's rows of four kinds, [groups, 4].

    Without the label and not predicted to have it, without and predicted, with and not, with it.
    """
    named = grouping.codes >= 0
    kinds = 4 * grouping.codes[named] + 2 * rows.rows_with(label)[named] + predicted[named]
    sums = np.bincount(kinds, rows.weights[named], minlength=4 * len(grouping.names))
    return sums[: 4 * len(grouping.names)].reshape(-1, 4)


def _rate_spread(
    metrics: Mapping[str, _Rate], weights: Mapping[str, np.ndarray]
) -> dict[str, float | None]:
    """Returns the largest rate of a group less the smallest; None where fewer than two have one."""
    from fairlearn.metrics import MetricFrame  # pandas and scikit-learn come with it

    groups = len(next(iter(weights.values())))
    frame = MetricFrame(
        metrics=dict(metrics),
        y_true=np.tile([0, 0, 1, 1], groups),
        y_pred=np.tile([0, 1, 0, 1], groups),
        sensitive_features=np.repeat(np.arange(groups), 4),
        sample_params={name: {"sample_weight": sums.ravel()} for name, sums in weights.items()},
    )
    difference, rates = frame.difference(method="between_groups"), frame.by_group
    return {
        name: float(difference[name]) if rates[name].notna().sum() > 1 else None for name in metrics
    }


def _selected_share(_: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray) -> float:
    """Computes the share of the weight that is predicted; NaN of no weight."""
    total = float(np.sum(sample_weight))
    return float(np.dot(y_pred, sample_weight)) / total if total > 0 else math.nan


def _true_rate(y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray) -> float:
    return _selected_share(y_true, y_pred, sample_weight * y_true)


def _false_rate(y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray) -> float:
    return _selected_share(y_true, y_pred, sample_weight * (1 - y_true))


def parity_rows(
    heads: Sequence[dict[tuple[str, str], tuple[float | None, ...]]],
) -> tuple[Parity, ...]:
    """Returns the mean over heads for each threshold and label, then "mean" and "worst" of labels.

    Args:
      heads: one result of `compute_parity` each, all of the same thresholds and labels.
    """
    made = []
    for threshold in dict.fromkeys(threshold for threshold, _ in heads[0]):
        labels = [label for at, label in heads[0] if at == threshold]
        columns = np.array(
            [[_mean_or_nan([head[threshold, label][i] for head in heads]) for i in range(3)]
             for label in labels]
        )  # fmt: skip
        rows = list(zip(labels, columns, strict=True))
        if len(labels) > 1:
            rows += [
                ("mean", _compute_over_labels(columns, np.nanmean)),
                ("worst", _compute_over_labels(columns, np.nanmax)),
            ]
        for label, values in rows:
            given = (None if np.isnan(value) else float(value) for value in values)
            rates = dict(zip(DIFFERENCES, given, strict=True))
            made.append(Parity.model_validate({"threshold": threshold, "label": label, **rates}))
    return tuple(made)


def _mean_or_nan(values: Sequence[float | None]) -> float:
    return float("nan") if None in values else float(np.mean(np.array(values, dtype=np.float64)))


def _compute_over_labels(columns: np.ndarray, compute: Any) -> np.ndarray:
    """Computes a statistic over the labels of each difference; NaN where no label has it."""
    return np.array(
        [compute(column) if np.isfinite(column).any() else np.nan for column in columns.T]
    )
