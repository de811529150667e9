"""Compares the groups of an attribute (such as age) by one metric, for the heads of one cell.

The values of a comparison have one column per label, or per rate and label. A metric that is a mean
over labels is reduced to a single column before groups are compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpprobe.analyses.fairness.fairness_record import (
    ALL_LABELS,
    GROUP_METRICS,
    PARITY_RATES,
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

# OF_LABELS need units with each label in each group; OF_BOTH also need units without each label.
OF_LABELS = ("auc", "recall", "equalised_odds")
OF_BOTH = ("auc", "equalised_odds")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of an attribute's groups by one metric; all cells share the comparison.

    Attributes:
      compared: the labels of the metric's mean, and the groups that only this metric leaves out.
      kept: the groups that are compared, as indices into the attribute's groups.
      labels: the labels for which the metric is computed; empty if a metric has no labels.
      positives: int64 [all groups, columns], numbers of units with each label; None if not needed.
      units: int64 [all groups, columns or 1], numbers of units that decide a value's variance. For
        AUC, this is the number of units with or without the label, whichever is smaller.
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

    @property
    def rates(self) -> tuple[str, ...]:
        return PARITY_RATES.get(self.metric, (self.metric,))

    @property
    def is_parity(self) -> bool:
        return self.metric in PARITY_RATES

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The rate and the label of each column."""
        return [(rate, label) for rate in self.rates for label in self.labels]

    def compute_metric(self, head: Head, resamples: Resamples) -> tuple[Values, Drawn]:
        """Returns the metric, [groups, columns], and in resamples, [groups, columns, resamples]."""
        parts = [
            head.compute_metric(rate, self.layout, self.labels, resamples) for rate in self.rates
        ]
        values, drawn = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
        if self.grouping.by_label:
            return values.T, np.swapaxes(drawn, 0, 1)
        return values, drawn

    def compute_whole(self, head: Head, once: Resamples) -> Values:
        """Computes the metric over all rows: [columns], or [groups] if groups are labels."""
        layout = Layout.layout_whole(len(self.rows.labels))
        parts = [head.compute_metric(rate, layout, self.labels, once)[0][0] for rate in self.rates]
        return np.concatenate(parts)

    def compute_shuffled(self, head: Head, ways: Ways) -> Values:
        """Returns the metric of random groups, [compared columns, groups, permutations]."""
        parts = [head.compute_shuffled(rate, self.layout, self.labels, ways) for rate in self.rates]
        return self.reduce(np.concatenate(parts, axis=1))

    def reduce(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Makes [compared columns, groups, ...] of [groups, columns, ...]; a mean is one column."""
        return np.moveaxis(values, 1, 0) if self.is_parity else values.mean(axis=1)[None]

    def count_units(self) -> Values:
        """Returns the effective numbers of units, [compared columns, kept groups]."""
        units = np.array([self.units[group] for group in self.kept], dtype=np.float64)
        return units.T if self.is_parity else count_units(units)[None]


def make_comparisons(
    rows: TestRows, grouping: Grouping, minimum: Minimum, *, seed: int
) -> list[Comparison]:
    """Returns an attribute's comparisons, one for each metric that is defined for its groups.

    Classes as groups have no AUC and no parity, and their recall equals their accuracy. Labels as
    groups have no calibration error and no parity.
    """
    made: list[Comparison] = []
    for metric in (*GROUP_METRICS, *PARITY_RATES):
        names = rows.ranked_labels if metric == "auc" else rows.recalled_labels
        of_classes = metric in OF_LABELS or metric in PARITY_RATES
        if grouping.by_label:
            fits = metric in GROUP_METRICS and metric != "calibration_error"
        else:
            fits = not of_classes or (bool(names) and not grouping.classes)
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
    if metric == "demographic_parity":
        labels, units = names, np.repeat(units, len(names), axis=1)
    if grouping.by_label or metric in OF_LABELS:
        counts = label_counts(rows, grouping, names)
        positives, fewest = counts.positives, counts.positives
        if metric == "auc":
            fewest = np.minimum(fewest, counts.negatives)
        if grouping.by_label:
            labels = tuple(grouping.names[index] for index in kept)
        else:
            chosen = choose_compared(
                rows, grouping, names, counts, minimum, negatives=metric in OF_BOTH
            )
            kept, labels = (
                kept_groups(grouping, {**grouping.left_out, **chosen.left_out}),
                chosen.labels,
            )
            columns = [names.index(name) for name in labels]
            positives, fewest = positives[:, columns], fewest[:, columns]
            if metric == "equalised_odds":
                fewest = np.concatenate([positives, counts.negatives[:, columns]], axis=1)
                positives = np.tile(positives, (1, 2))
        units = fewest if metric in OF_LABELS else units
    return Comparison(
        rows=rows,
        grouping=grouping,
        metric=metric,
        compared=chosen,
        kept=kept,
        labels=labels,
        positives=positives,
        units=units,
    )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A comparison of groups for one cell's heads.

    Attributes:
      values: [groups, columns], the metric on the test examples, as means over heads.
      drawn: [groups, columns, resamples], the metric in resamples, as means over heads.
      whole: [columns], the metric over all rows.
      chance_gap: the gap due to chance, for the first head; None if rows cannot be exchanged.
    """

    comparison: Comparison
    values: Values
    drawn: Drawn
    whole: Values
    heads: tuple[Groups, ...]
    chance_gap: float | None

    @property
    def usable_resamples(self) -> int:
        return int(np.isfinite(self.heads[0].deviations).all(axis=(0, 1)).sum())


def measure_comparison(
    comparison: Comparison,
    heads: Sequence[Head],
    resamples: Resamples,
    once: Resamples,
    confidence: float,
) -> Measured:
    """Computes a comparison for one cell; `once` has all test examples, without resampling."""
    whole = np.mean([comparison.compute_whole(head, once) for head in heads], axis=0)
    chance_gap, excess, spread = compute_chance(comparison, heads[0], once)
    least = np.maximum(smallest_deviation(comparison.count_units(), confidence), spread)
    groups, values, drawn = [], np.zeros(()), np.zeros((), dtype=np.float32)
    for head in heads:
        of_head, resampled = comparison.compute_metric(head, resamples)
        part = comparison.reduce(of_head), comparison.reduce(resampled)
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


def compute_chance(
    comparison: Comparison, head: Head, once: Resamples
) -> tuple[float | None, Values, Values]:
    """Returns the 95% quantile of gaps between random groups, and each group's excess and spread.

    The excess is the mean metric of random groups minus the metric over all rows. The spread is the
    metric's standard deviation over random groups; both are [compared columns, groups]. Only
    calibration errors depend on a group's size, so other metrics have excess 0.
    """
    if comparison.ways is None:
        none = np.zeros(())
        return None, none, none
    shuffled = comparison.compute_shuffled(head, comparison.ways)
    there = np.isfinite(shuffled)
    count = np.maximum(there.sum(axis=-1), 1)
    means = np.where(there, shuffled, 0.0).sum(axis=-1) / count
    excess = np.zeros(means.shape)
    if comparison.metric == "calibration_error":
        whole = comparison.compute_whole(head, once).mean()
        excess = np.where(there.any(axis=-1), means - whole, 0.0)
    largest = np.where(there, shuffled, -np.inf).max(axis=1)
    smallest = np.where(there, shuffled, np.inf).min(axis=1)
    gaps = np.where(there.sum(axis=1) >= 2, largest - smallest, -np.inf).max(axis=0)
    gaps = gaps[np.isfinite(gaps)]
    apart = np.where(there, shuffled - means[..., None], 0.0)
    spread = np.sqrt(np.square(apart).sum(axis=-1) / count)
    return (float(np.quantile(gaps, CHANCE)) if len(gaps) else None), excess, spread


def gap_of(measured: Measured, reference: Sequence[Groups] | None, confidence: float) -> Gap:
    """Returns a cell's gap and its difference from the reference's gap, if there is a reference."""
    comparison, heads = measured.comparison, measured.heads
    columns = comparison.reduce(measured.values)
    column = int(np.ptp(columns, axis=1).argmax())
    means = columns[column]
    rate, label = comparison.columns[column] if comparison.is_parity else (None, None)
    low, high = mean_gap_interval(heads, confidence)
    gaps = [head.gap for head in heads]
    between = gap_difference(heads, reference, confidence) if reference else (None, None, None)
    is_error = rate == "false_positive_rate" or not GROUP_METRICS.get(comparison.metric, True)
    ranked = -means if is_error else means
    worst, best = int(ranked.argmin()), int(ranked.argmax())
    return Gap(
        overall=float(measured.whole[column] if rate else measured.whole.mean()),
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
        label=label,
        rate=rate,
    )


def no_gap(comparison: Comparison) -> Gap:
    """Returns an empty gap, for an attribute with fewer than two groups."""
    undefined = dict.fromkeys(set(Gap.model_fields) - {"groups", "resamples", "label", "rate"})
    return Gap.model_validate({**undefined, "groups": len(comparison.kept), "resamples": 0})


def group_rows(measured: Measured, confidence: float) -> Iterator[dict[str, Any]]:
    """Yields the compared groups' rows for the table of all groups and metrics."""
    comparison = measured.comparison
    parts = []
    if not comparison.is_parity:
        means = measured.values.mean(axis=1, keepdims=True)
        overall, drawn = measured.whole.mean(keepdims=True), measured.drawn
        mean = [(comparison.metric, ALL_LABELS)]
        parts.append((mean, means, drawn.mean(axis=1, keepdims=True), overall))
    if comparison.labels and not comparison.grouping.by_label:
        parts.append((comparison.columns, measured.values, measured.drawn, measured.whole))
    for columns, values, drawn, whole in parts:
        units = np.array([comparison.units[group] for group in comparison.kept], dtype=np.float64)
        if values.shape[1] != units.shape[1]:
            units = np.broadcast_to(count_units(units)[:, None], values.shape)
        low, high = compute_intervals(values, drawn, units, confidence)
        for (place, column), value in np.ndenumerate(values):
            group = comparison.kept[place]
            positives = comparison.positives
            metric, label = columns[column]
            one = positives is not None and (label != ALL_LABELS or positives.shape[1] == 1)
            yield {
                "group": comparison.grouping.names[group],
                "label": label,
                "metric": metric,
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
    """Yields the omitted groups' rows for the table of all groups and metrics."""
    reasons = {**comparison.grouping.left_out, **comparison.compared.left_out}
    places = itertools.product(enumerate(comparison.grouping.names), comparison.rates)
    for (index, name), rate in places:
        if name in reasons:
            yield {
                "group": name,
                "label": ALL_LABELS,
                "metric": rate,
                "rows": comparison.grouping.rows[index],
                "units": comparison.grouping.units[index],
                "left_out": reasons[name],
            }


def compute_intervals(
    values: Values, drawn: Drawn, units: Values, confidence: float
) -> tuple[Values, Values]:
    """Returns the ends [groups, labels] of each value's interval over test units.

    Intervals are percentiles of the resamples' deviations from their mean. An interval that reaches
    0 or 1 is extended by Wilson's interval, because resamples do not vary if all rows are right.
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
