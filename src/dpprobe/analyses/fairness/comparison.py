"""Compares the groups of an attribute (such as age) by one metric, for the heads of one cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpprobe.analyses.fairness.fairness_record import (
    ALL_LABELS,
    GROUP_METRICS,
    Compared,
    Gap,
    Minimum,
)
from dpprobe.analyses.fairness.gaps import (
    CHANCE,
    Groups,
    count_units,
    gap_difference,
    mean_gap_interval,
    smallest_deviation,
)
from dpprobe.analyses.fairness.group_metrics import Drawn, Head, Layout, Resamples, Ways
from dpprobe.analyses.fairness.groupings import (
    Grouping,
    TestRows,
    Values,
    choose_compared,
    kept_groups,
    label_counts,
)
from dpprobe.results.intervals import wilson_interval

# Metrics that are means over labels; each group needs units with each label (AUC: also without).
OF_LABELS = ("auc", "recall")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of an attribute's groups by one metric; all cells share the comparison.

    Attributes:
      compared: the labels of the metric's mean, and the groups that only this metric leaves out.
      kept: the groups that are compared, as indices into the attribute's groups.
      labels: the labels for which the metric is computed; empty if a metric has no labels.
      positives: int64 [all groups, labels], numbers of units with each label; None if not needed.
      units: int64 [all groups, labels or 1], numbers of units that decide a value's variance. For
        AUC, the number is the smaller of the numbers of units with and without the label.
      ways: random assignments of blocks of rows to groups; None if groups are labels, or if there
        are fewer than two groups.
    """

    rows: TestRows
    grouping: Grouping
    metric: str
    compared: Compared
    kept: list[int]
    labels: tuple[str, ...]
    positives: npt.NDArray[np.int64] | None
    units: npt.NDArray[np.int64]
    ways: Ways | None = None

    @property
    def group_names(self) -> list[str]:
        return [self.grouping.names[index] for index in self.kept]

    @property
    def is_possible(self) -> bool:
        return len(self.kept) > 1

    @property
    def is_exchangeable(self) -> bool:
        """True if rows can be assigned to groups at random."""
        return self.is_possible and not self.grouping.by_label

    @property
    def layout(self) -> Layout:
        if self.grouping.by_label:
            return Layout.layout_whole(len(self.rows.labels))
        return Layout.layout_groups(self.grouping, self.kept)

    def compute_metric(self, head: Head, resamples: Resamples) -> tuple[Values, Drawn]:
        """Returns the metric, [groups, labels], and its resamples, [groups, labels, resamples]."""
        values, drawn = head.compute_metric(self.metric, self.layout, self.labels, resamples)
        if self.grouping.by_label:
            return values.T, np.swapaxes(drawn, 0, 1)
        return values, drawn

    def compute_whole(self, head: Head, once: Resamples) -> Values:
        """Computes the metric over all rows, [labels], or [groups] if groups are labels."""
        layout = Layout.layout_whole(len(self.rows.labels))
        return np.asarray(head.compute_metric(self.metric, layout, self.labels, once)[0][0])


def make_comparisons(
    rows: TestRows, grouping: Grouping, minimum: Minimum, *, seed: int
) -> list[Comparison]:
    """Returns an attribute's comparisons, one for each metric that is defined for its groups.

    If the groups are classes, AUC is undefined and recall equals accuracy, so both are left out. If
    the groups are labels, the calibration error is left out.
    """
    made: list[Comparison] = []
    for metric in GROUP_METRICS:
        names = rows.ranked_labels if metric == "auc" else rows.recalled_labels
        if grouping.by_label:
            fits = metric != "calibration_error"
        else:
            fits = metric not in OF_LABELS or (bool(names) and not grouping.classes)
        if fits:
            made.append(_make_comparison(rows, grouping, metric, names, minimum))
    ways: dict[tuple[int, ...], Ways] = {}
    for item in made:
        if item.is_exchangeable and tuple(item.kept) not in ways:
            ways[tuple(item.kept)] = item.layout.shuffle_blocks(rows, seed)
    return [replace(item, ways=ways.get(tuple(item.kept))) for item in made]


def _make_comparison(
    rows: TestRows, grouping: Grouping, metric: str, names: tuple[str, ...], minimum: Minimum
) -> Comparison:
    kept, chosen = kept_groups(grouping, grouping.left_out), Compared(labels=(), left_out={})
    labels: tuple[str, ...] = rows.class_names if metric == "accuracy" and rows.multi_label else ()
    positives, units = None, grouping.units[:, None]
    if grouping.by_label or metric in OF_LABELS:
        counts = label_counts(rows, grouping, names)
        positives, fewest = counts.positives, counts.positives
        if metric == "auc":
            fewest = np.minimum(fewest, counts.negatives)
        if grouping.by_label:
            labels = tuple(grouping.names[index] for index in kept)
        else:
            chosen = choose_compared(
                rows, grouping, names, counts, minimum, negatives=metric == "auc"
            )
            kept, labels = (
                kept_groups(grouping, {**grouping.left_out, **chosen.left_out}),
                chosen.labels,
            )
            columns = [names.index(name) for name in labels]
            positives, fewest = positives[:, columns], fewest[:, columns]
        units = fewest if metric in OF_LABELS else units
    return Comparison(
        rows=rows, grouping=grouping, metric=metric, compared=chosen, kept=kept, labels=labels,
        positives=positives, units=units,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A comparison of groups for one cell's heads.

    Attributes:
      values: [groups, labels], the metric on the test examples, as means over heads.
      drawn: [groups, labels, resamples], the metric in resamples, as means over heads.
      whole: [labels], the metric over all rows.
      chance_gap: the gap by chance alone, for the first head; None if rows cannot be exchanged.
    """

    comparison: Comparison
    values: Values
    drawn: Drawn
    whole: Values
    heads: tuple[Groups, ...]
    chance_gap: float | None

    @property
    def usable_resamples(self) -> int:
        return int(np.isfinite(self.heads[0].deviations).all(axis=0).sum()) if self.heads else 0


def measure_comparison(
    comparison: Comparison,
    heads: Sequence[Head],
    resamples: Resamples,
    once: Resamples,
    confidence: float,
) -> Measured:
    """Computes a comparison for one cell; `once` has all test examples, without resampling."""
    whole = np.mean([comparison.compute_whole(head, once) for head in heads], axis=0)
    chance_gap, excess, spread = _compute_chance(comparison, heads[0], once)
    units = np.array([comparison.units[group] for group in comparison.kept], dtype=np.float64)
    least = np.maximum(smallest_deviation(count_units(units), confidence), spread)
    groups, values, drawn = [], np.zeros(()), np.zeros((), dtype=np.float32)
    for head in heads:
        of_head, resampled = comparison.compute_metric(head, resamples)
        part = of_head.mean(axis=1), resampled.mean(axis=1)
        groups.append(Groups.prepare_groups(*part, least=least, excess=excess))
        values, drawn = values + of_head, drawn + resampled
    return Measured(
        comparison=comparison,
        values=values / len(heads),
        drawn=np.asarray(drawn / len(heads), dtype=np.float32),
        whole=whole,
        heads=tuple(groups),
        chance_gap=chance_gap,
    )


def _compute_chance(
    comparison: Comparison, head: Head, once: Resamples
) -> tuple[float | None, Values, Values]:
    """Returns the 95% quantile of gaps between random groups, and each group's excess and spread.

    The excess is the mean metric of random groups minus the metric over all rows. The spread is the
    metric's standard deviation over random groups. Only calibration errors depend on a group's
    size, so other metrics have excess 0.
    """
    excess = np.zeros(len(comparison.kept))
    if comparison.ways is None:
        return None, excess, excess
    metric, labels = comparison.metric, comparison.labels
    shuffled = head.compute_shuffled(metric, comparison.layout, labels, comparison.ways)
    there = np.isfinite(shuffled)
    means = np.where(there, shuffled, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
    if metric == "calibration_error":
        excess = np.where(
            there.any(axis=1), means - comparison.compute_whole(head, once).mean(), 0.0
        )
    largest = np.where(there, shuffled, -np.inf).max(axis=0)
    smallest = np.where(there, shuffled, np.inf).min(axis=0)
    gaps = (largest - smallest)[there.sum(axis=0) >= 2]
    apart = np.where(there, shuffled - means[:, None], 0.0)
    spread = np.sqrt(np.square(apart).sum(axis=1) / np.maximum(there.sum(axis=1), 1))
    return (float(np.quantile(gaps, CHANCE)) if len(gaps) else None), excess, spread


def gap_of(measured: Measured, reference: Sequence[Groups] | None, confidence: float) -> Gap:
    """Returns a cell's gap, and its difference to the gap of the reference if one is given."""
    comparison, heads = measured.comparison, measured.heads
    means = measured.values.mean(axis=1)
    low, high = mean_gap_interval(heads, confidence)
    gaps = [head.gap for head in heads]
    between = gap_difference(heads, reference, confidence) if reference else (None, None, None)
    ranked = means if GROUP_METRICS[comparison.metric] else -means
    worst, best = int(ranked.argmin()), int(ranked.argmax())
    return Gap(
        overall=float(measured.whole.mean()),
        worst_group=comparison.group_names[worst],
        worst=means[worst],
        best_group=comparison.group_names[best],
        best=means[best],
        gap=float(np.mean(gaps)),
        low=low,
        high=high,
        std=float(np.std(gaps, ddof=1)) if len(gaps) > 1 else None,
        chance_gap=measured.chance_gap,
        difference=between[0],
        difference_low=between[1],
        difference_high=between[2],
        groups=len(comparison.kept),
        resamples=measured.usable_resamples,
    )


def no_gap(comparison: Comparison) -> Gap:
    """Returns an empty gap, for an attribute with fewer than two groups."""
    undefined = dict.fromkeys(set(Gap.model_fields) - {"groups", "resamples"})
    return Gap.model_validate({**undefined, "groups": len(comparison.kept), "resamples": 0})


def group_rows(measured: Measured, confidence: float) -> Iterator[dict[str, Any]]:
    """Yields the rows of compared groups in the table of all groups and metrics."""
    comparison = measured.comparison
    means = measured.values.mean(axis=1, keepdims=True)
    several = comparison.labels and not comparison.grouping.by_label
    overall = measured.whole.mean(keepdims=True)
    parts = [([ALL_LABELS], means, measured.drawn.mean(axis=1, keepdims=True), overall)]
    if several:
        parts.append((list(comparison.labels), measured.values, measured.drawn, measured.whole))
    for labels, values, drawn, whole in parts:
        units = np.array([comparison.units[group] for group in comparison.kept], dtype=np.float64)
        if values.shape[1] != units.shape[1]:
            units = np.broadcast_to(count_units(units)[:, None], values.shape)
        low, high = _compute_intervals(values, drawn, units, confidence)
        for (place, column), value in np.ndenumerate(values):
            group = comparison.kept[place]
            positives = comparison.positives
            one = positives is not None and (labels != [ALL_LABELS] or positives.shape[1] == 1)
            yield {
                "group": comparison.grouping.names[group],
                "label": labels[column],
                "metric": comparison.metric,
                "value": value,
                "low": low[place, column],
                "high": high[place, column],
                "difference": value - whole[column],
                "rows": comparison.grouping.rows[group],
                "units": comparison.grouping.units[group],
                "positives": positives[group, column] if one and positives is not None else None,
                "left_out": None,
            }


def left_out_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yields the rows of omitted groups in the table of all groups and metrics."""
    reasons = {**comparison.grouping.left_out, **comparison.compared.left_out}
    for index, name in enumerate(comparison.grouping.names):
        if name in reasons:
            yield {
                "group": name, "label": ALL_LABELS, "metric": comparison.metric,
                "rows": comparison.grouping.rows[index],
                "units": comparison.grouping.units[index],
                "left_out": reasons[name],
            }  # fmt: skip


def _compute_intervals(
    values: Values, drawn: Drawn, units: Values, confidence: float
) -> tuple[Values, Values]:
    """Returns the ends [groups, labels] of each value's interval over test units.

    Intervals are percentiles of the resamples' deviations from their mean. An interval that reaches
    0 or 1 is joined with Wilson's interval, because resamples do not vary if all rows are right.
    """
    ordered = np.sort(drawn, axis=-1)  # sorts NaN last
    count = np.isfinite(ordered).sum(axis=-1, keepdims=True)
    tail = (1 - confidence) / 2
    ends = []
    for share in (tail, 1 - tail):
        place = np.maximum(np.rint(share * (count - 1)), 0).astype(np.int64)
        ends.append(np.take_along_axis(ordered, place, axis=-1)[..., 0])
    middle = np.nansum(drawn, axis=-1, dtype=np.float64) / np.maximum(count[..., 0], 1)
    low, high = (values + end - middle for end in ends)
    inside = (low > 0) & (high < 1) & (low < high)  # False for NaN, if no resample has a value
    for place in zip(*np.nonzero(~inside), strict=True):
        lower, upper = wilson_interval(
            float(values[place]), max(float(units[place]), 1.0), confidence
        )
        low[place], high[place] = np.fmin(low[place], lower), np.fmax(high[place], upper)
    return np.clip(low, 0.0, values), np.clip(high, values, 1.0)
