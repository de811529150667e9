"""The table of subgroups: one row per group, one column per epsilon, and gaps below each attribute.

Not private: computed from labels, groups and scores of test examples, without noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from dpprobe.analyses.fairness.fairness_record import (
    ALL_LABELS,
    GROUP_METRICS,
    TABLE_SUFFIX,
    Attribute,
    FairnessRecord,
    Gap,
    Group,
    Reference,
    left_out_in_words,
)
from dpprobe.analyses.fairness.groupings import NO_NAME, natural_key
from dpprobe.artifacts import read_table
from dpprobe.exhibits.tables import BLANK, Table, TableCell, make_row, make_table, mean_cell
from dpprobe.privacy.limits import INFINITE
from dpprobe.privacy.risk import budget_order, budget_title, explain_risks
from dpprobe.study.ablations import keep_unique

NAME = "fairness"
METRIC_TITLES = {
    "auc": "AUC",
    "accuracy": "accuracy",
    "recall": "recall",
    "calibration_error": "calibration error",
}
BY_ACCURACY = (
    "The headline metric of these cells is macro accuracy. Groups are compared by accuracy "
    "instead, because a group may lack classes. A rare class has little weight in accuracy. "
    "Groups may differ in accuracy only because their classes have different shares."
)
_COLUMNS = ("<backbone", "<method", "<attribute", "<metric", "<group", "test units")


@dataclass(frozen=True, kw_only=True)
class Subgroups:
    """A record, and the metric of each group from the table in the record's folder.

    Attributes:
      values: (value, low, high) by (method, epsilon, attribute, metric, group), over all labels.
    """

    record: FairnessRecord
    values: Mapping[tuple[str, ...], Any]


def read_subgroups(path: Path) -> Subgroups:
    """Reads a record, and the values over all labels from the table in the record's folder.

    Raises:
      DataError: if one of the two files cannot be read.
    """
    record = FairnessRecord.read(path)
    table = read_table(path.with_suffix(TABLE_SUFFIX))
    names = ["method", "epsilon", "attribute", "metric", "group", "value", "low", "high"]
    rows = table.filter(pc.equal(table["label"], ALL_LABELS))
    columns = [rows[name].to_pylist() for name in names]
    values = {row[:5]: row[5:] for row in zip(*columns, strict=True) if row[5] is not None}
    return Subgroups(record=record, values=values)


def make_fairness_table(records: Sequence[Path]) -> Table:
    """Makes the table of one dataset's subgroups, in percent."""
    return fairness_table([read_subgroups(path) for path in records])


def fairness_table(parts: Sequence[Subgroups]) -> Table:
    """Makes the table of one dataset.

    For each backbone, method and attribute the table lists the groups, largest first (ranges of
    numbers in their order). Further rows have the gap, the gap expected by chance, and the
    difference to the gap of the reference cell. Notes list omitted groups. Cells without a run are
    blank.
    """
    epsilons = keep_unique(cell.epsilon for part in parts for cell in part.record.cells)
    epsilons.sort(key=budget_order)
    rows = [row for part in parts for row in _make_rows(part, epsilons)]
    columns = (*_COLUMNS, *(f"±{budget_title(epsilon)}" for epsilon in epsilons))
    return make_table(NAME, "", columns, rows, _write_notes(parts))


def shown_metric(record: FairnessRecord, attribute: str) -> str | None:
    """Returns an attribute's shown metric: the headline if it has a gap, else the first with one.

    The result is None if no metric compares two groups.
    """
    for metric in dict.fromkeys([record.headline, *GROUP_METRICS]):
        gaps = (cell.find_gap(attribute, metric) for cell in record.cells)
        if any(gap is not None and gap.gap is not None for gap in gaps):
            return metric
    return None


def metric_title(record: FairnessRecord, metric: str) -> str:
    """Formats a metric for an axis or a heading."""
    title = METRIC_TITLES[metric]
    return f"mean {title} over labels" if record.multi_label and metric == "auc" else title


def reference_in_words(method: str, epsilon: str) -> str:
    return f"{method} at {'∞' if epsilon == INFINITE else budget_title(epsilon)}"


def _make_rows(part: Subgroups, epsilons: Sequence[str]) -> Iterator[tuple[TableCell, ...]]:
    record = part.record
    for method in keep_unique(cell.method for cell in record.cells):
        for attribute in record.attributes:
            metric = shown_metric(record, attribute.attribute)
            if metric is None:
                continue
            names = (record.backbone, method, attribute.attribute, METRIC_TITLES[metric])
            for group in _order_groups(attribute):
                values = [
                    part.values.get((method, epsilon, attribute.attribute, metric, group.group))
                    for epsilon in epsilons
                ]
                if any(values):
                    shown = [BLANK if value is None else mean_cell(*value) for value in values]
                    units = TableCell(text=f"{group.units:,}", value=group.units)
                    yield make_row(*names, group.group, units, *shown)
            cells = [record.find_cell(method, epsilon) for epsilon in epsilons]
            gaps = [cell.find_gap(attribute.attribute, metric) if cell else None for cell in cells]
            yield from _gap_rows(names, gaps, [cell.reference if cell else None for cell in cells])


def _order_groups(attribute: Attribute) -> Sequence[Group]:
    """Returns an attribute's groups, largest first; ranges such as `<18` in order of numbers."""
    parts = {group.group: group.group.split(" x ") for group in attribute.groups}
    if any(part.startswith(("<", ">=")) for names in parts.values() for part in names):
        return sorted(
            attribute.groups,
            key=lambda group: (group.group == NO_NAME, [*map(natural_key, parts[group.group])]),
        )
    return sorted(attribute.groups, key=lambda group: -group.units)


def _gap_rows(
    names: Sequence[str], gaps: Sequence[Gap | None], references: Sequence[Reference | None]
) -> Iterator[tuple[TableCell, ...]]:
    title = TableCell(text="gap, best to worst", bold=True)
    yield make_row(*names, title, "", *(_gap_cell(gap) for gap in gaps))
    chance = [_make_cell(None if gap is None else gap.chance_gap) for gap in gaps]
    yield make_row(*names, "gap by chance alone (95%)", "", *chance)
    named = keep_unique((one.method, one.epsilon) for one in references if one)
    if named:
        others = " or ".join(reference_in_words(*each) for each in named)
        yield make_row(*names, f"gap minus the gap of {others}", "", *map(_difference_cell, gaps))


def _make_cell(
    value: float | None, low: float | None = None, high: float | None = None, *, bold: bool = False
) -> TableCell:
    if value is None:
        return BLANK
    return replace(mean_cell(value, low, high), bold=bold)


def _gap_cell(gap: Gap | None) -> TableCell:
    return BLANK if gap is None else _make_cell(gap.gap, gap.low, gap.high, bold=beyond_chance(gap))


def _difference_cell(gap: Gap | None) -> TableCell:
    if gap is None or gap.difference is None:
        return BLANK
    low, high = gap.difference_low, gap.difference_high
    cell = _make_cell(gap.difference, low, high, bold=stands_apart(gap))
    return replace(cell, text=f"+{cell.text}") if gap.difference > 0 else cell


def beyond_chance(gap: Gap) -> bool:
    """Returns True if a gap's interval is above 0, and few random splits have a gap as large.

    A small group widens the gap by chance alone, but does not hide a clear difference between two
    large groups. So a gap beyond chance must pass both tests.
    """
    if gap.gap is None or not gap.is_apart:
        return False
    return gap.chance_gap is None or gap.gap > gap.chance_gap


def stands_apart(gap: Gap) -> bool:
    """Returns True if the interval of a gap's difference excludes 0."""
    low, high = gap.difference_low, gap.difference_high
    return low is not None and high is not None and (low > 0 or high < 0)


def _write_notes(parts: Sequence[Subgroups]) -> list[str]:
    """Returns notes on how to read the table, and on the groups that it leaves out."""
    first = parts[0].record
    units = "patients" if first.units is not None else "rows"
    need = first.minimum
    notes = [
        "Not private: computed from labels, groups and scores of test rows, without noise. "
        f"Percent; means over seeds, with {100 * first.confidence:g}% intervals over test {units} "
        f"({first.resamples:,} resamples, every cell on the same ones). The gap is the difference "
        "between the best and the worst group. It is computed for each seed's head and then "
        "averaged. Bold gaps exceed the gap by chance alone, and their interval lies above 0. "
        "Bold differences have an interval that excludes 0. Chance alone makes gaps too: one in "
        "twenty random splits into groups of these sizes has a gap above the gap by chance "
        "alone. Some of many intervals miss the true value: about 5 of 100 at 95%.",
        f"A group is compared with {need.units} test {units}, {need.positives} with and "
        f"{need.negatives} without a label, or more.",
    ]
    if risks := explain_risks(cell.place for part in parts for cell in part.record.cells):
        notes.append(f"{risks}.")
    if any(part.record.cell_headline == "macro_accuracy" for part in parts):
        notes.append(BY_ACCURACY)
    left = dict.fromkeys(
        f"{attribute.attribute}: {words}"
        for part in parts
        for attribute in part.record.attributes
        if (words := left_out_in_words(attribute.groups))
    )
    partial = dict.fromkeys(
        f"{attribute.attribute}, {METRIC_TITLES[metric]}: {group} ({reason})"
        for part in parts
        for attribute in part.record.attributes
        if (metric := shown_metric(part.record, attribute.attribute))
        and metric in attribute.compared
        for group, reason in attribute.compared[metric].left_out.items()
    )
    if left or partial:
        notes.append(f"Left out: {'; '.join([*left, *partial])}.")
    return notes
