"""The table of subgroups, and the report's section on subgroups.

The table has one row per group, one column per epsilon, and gaps below each attribute. Not private:
all numbers come from labels, groups and scores of test examples, without noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from dpprobe.analyses.analysis import Page
from dpprobe.analyses.fairness.fairness_record import (
    ALL_LABELS,
    GROUP_METRICS,
    PARITY_RATES,
    TABLE_SUFFIX,
    Attribute,
    FairnessCell,
    FairnessRecord,
    Gap,
    Group,
    Reference,
    left_out_in_words,
)
from dpprobe.analyses.fairness.groupings import NO_NAME, natural_key
from dpprobe.exhibits.html_page import relative_path
from dpprobe.exhibits.tables import (
    BLANK,
    TABLE_BYTES,
    Table,
    TableCell,
    make_row,
    make_table,
    mean_cell,
    write_html,
    write_markdown,
)
from dpprobe.files.table_files import read_table
from dpprobe.privacy.limits import INFINITE
from dpprobe.privacy.risk import budget_order, budget_title, explain_risks
from dpprobe.study.ablations import keep_unique

NAME = "fairness"
METRIC_TITLES = {
    "auc": "AUC",
    "accuracy": "accuracy",
    "recall": "recall",
    "calibration_error": "calibration error",
    "equalised_odds": "equalised odds",
    "demographic_parity": "demographic parity",
}
RATE_TITLES = {
    "true_positive_rate": "true-positive rate",
    "false_positive_rate": "false-positive rate",
    "selection_rate": "share predicted",
}
# Metrics shown after an attribute's main metric. With one label, a recall gap is equal opportunity.
BESIDE = ("recall", *PARITY_RATES)
NOT_MEASURABLE = "not measurable"
PARITY_NOTE = (
    "The gap in equalised odds is the largest gap of any label in true-positive or false-positive "
    "rates. The gap in demographic parity is the largest gap of any label in the share of rows for "
    "which the label is predicted. If a label is more frequent in one group, even a perfect head "
    "has a gap in demographic parity. A head that always makes the same prediction has no gap."
)
BY_ACCURACY = (
    "The headline metric of these cells is macro accuracy. Groups are compared by accuracy "
    "instead, because a group may lack classes. A rare class has little weight in accuracy. "
    "Groups may differ in accuracy only because their classes have different shares."
)
GAPS_SHOWN = 2000
Shown = tuple[str, str, str, FairnessCell, Gap]  # attribute, backbone, metric
_COLUMNS = ("<backbone", "<method", "<attribute", "<metric", "<group", "test units")


@dataclass(frozen=True, kw_only=True)
class Subgroups:
    """A record of subgroups, and the metric of each group from the record's parquet table.

    Attributes:
      values: (value, low, high) by (method, epsilon, attribute, metric, group), over all labels.
    """

    record: FairnessRecord
    values: Mapping[tuple[str, ...], Any]


def read_subgroups(path: Path) -> Subgroups:
    """Reads a record of subgroups, and the values over all labels from the record's table.

    Raises:
      DataError: if the record or the table cannot be read.
    """
    record = FairnessRecord.read(path)
    table = read_table(path.with_suffix(TABLE_SUFFIX))
    names = ["method", "epsilon", "attribute", "metric", "group", "value", "low", "high"]
    rows = table.filter(pc.equal(table["label"], ALL_LABELS))
    columns = [rows[name].to_pylist() for name in names]
    values = {row[:5]: row[5:] for row in zip(*columns, strict=True) if row[5] is not None}
    return Subgroups(record=record, values=values)


def make_fairness_table(records: Sequence[Path]) -> Table:
    return fairness_table([read_subgroups(path) for path in records])


def fairness_table(parts: Sequence[Subgroups]) -> Table:
    """Makes the table of one dataset's subgroups, in percent.

    For each backbone, method and attribute, the table lists the groups: ranges such as `<18` by
    number, other groups by size. Then come the gap, the gap by chance, the difference from the
    reference's gap, and gaps by the metrics `BESIDE`. Notes list omitted groups. Missing results
    are blank.
    """
    epsilons = keep_unique(cell.epsilon for part in parts for cell in part.record.cells)
    epsilons.sort(key=budget_order)
    rows = [row for part in parts for row in _make_rows(part, epsilons)]
    columns = (*_COLUMNS, *(f"±{budget_title(epsilon)}" for epsilon in epsilons))
    return make_table(NAME, "", columns, rows, _write_notes(parts))


def shown_metric(record: FairnessRecord, attribute: str) -> str | None:
    """Returns the metric to show for an attribute; None if no metric compares two groups.

    The headline metric is preferred, then the order of `GROUP_METRICS`.
    """
    for metric in dict.fromkeys([record.headline, *GROUP_METRICS]):
        gaps = (cell.find_gap(attribute, metric) for cell in record.cells)
        if any(gap is not None and gap.gap is not None for gap in gaps):
            return metric
    return None


def shown_metrics(record: FairnessRecord, attribute: str) -> list[str]:
    """Returns `shown_metric`, and the metrics `BESIDE` that are defined for an attribute's groups.

    Gaps by the metrics `BESIDE` may not be measurable. Empty if no metric compares two groups.
    """
    first = shown_metric(record, attribute)
    if first is None:
        return []
    beside = (m for m in BESIDE if any(cell.find_gap(attribute, m) for cell in record.cells))
    return list(dict.fromkeys([first, *beside]))


def metric_title(record: FairnessRecord, metric: str) -> str:
    title = METRIC_TITLES[metric]
    return f"mean {title} over labels" if record.multi_label and metric == "auc" else title


def reference_in_words(method: str, epsilon: str) -> str:
    return f"{method} at {'∞' if epsilon == INFINITE else budget_title(epsilon)}"


def _make_rows(part: Subgroups, epsilons: Sequence[str]) -> Iterator[tuple[TableCell, ...]]:
    record = part.record
    for method in keep_unique(cell.method for cell in record.cells):
        for attribute in record.attributes:
            cells = [record.find_cell(method, epsilon) for epsilon in epsilons]
            references = [cell.reference if cell else None for cell in cells]
            for place, metric in enumerate(shown_metrics(record, attribute.attribute)):
                names = (record.backbone, method, attribute.attribute, METRIC_TITLES[metric])
                if place == 0:
                    yield from _group_rows(part, names, attribute, (method, metric), epsilons)
                gaps = [c.find_gap(attribute.attribute, metric) if c else None for c in cells]
                yield from _gap_rows(names, gaps, references)


def _group_rows(
    part: Subgroups,
    names: Sequence[str],
    attribute: Attribute,
    key: tuple[str, str],
    epsilons: Sequence[str],
) -> Iterator[tuple[TableCell, ...]]:
    """Yields one row per group; `key` is the method and the metric."""
    method, metric = key
    for group in _order_groups(attribute):
        values = [
            part.values.get((method, epsilon, attribute.attribute, metric, group.group))
            for epsilon in epsilons
        ]
        if any(values):
            shown = [BLANK if value is None else mean_cell(*value) for value in values]
            units = TableCell(text=f"{group.units:,}", value=group.units)
            yield make_row(*names, group.group, units, *shown)


def _order_groups(attribute: Attribute) -> Sequence[Group]:
    """Sorts an attribute's groups by size, largest first, but ranges such as `<18` by number."""
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
    parity = names[-1] in {METRIC_TITLES[metric] for metric in PARITY_RATES}
    words = "gap, largest of any label" if parity else "gap, best to worst"
    title = TableCell(text=words, bold=True)
    yield make_row(*names, title, "", *(_gap_cell(gap) for gap in gaps))
    if all(gap is None or gap.gap is None for gap in gaps):
        return
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
    if gap is None:
        return BLANK
    if gap.gap is None:
        return TableCell(text=NOT_MEASURABLE)
    return _make_cell(gap.gap, gap.low, gap.high, bold=beyond_chance(gap))


def _difference_cell(gap: Gap | None) -> TableCell:
    if gap is None or gap.difference is None:
        return BLANK
    low, high = gap.difference_low, gap.difference_high
    cell = _make_cell(gap.difference, low, high, bold=stands_apart(gap))
    return replace(cell, text=f"+{cell.text}") if gap.difference > 0 else cell


def beyond_chance(gap: Gap) -> bool:
    """Returns True if a gap's interval is above 0, and the gap exceeds the gap by chance.

    Both tests are needed: a small group may widen the gap by chance while two large groups move the
    interval above 0.
    """
    if gap.gap is None or not gap.is_apart:
        return False
    return gap.chance_gap is None or gap.gap > gap.chance_gap


def stands_apart(gap: Gap) -> bool:
    low, high = gap.difference_low, gap.difference_high
    return low is not None and high is not None and (low > 0 or high < 0)


def _write_notes(parts: Sequence[Subgroups]) -> list[str]:
    """Returns notes on how to read the table, and on omitted groups."""
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
        f"A group is compared if it has at least {need.units} test {units}, {need.positives} with "
        f"and {need.negatives} without a label.",
    ]
    if risks := explain_risks(cell.place for part in parts for cell in part.record.cells):
        notes.append(f"{risks}.")
    if any(part.record.cell_headline == "macro_accuracy" for part in parts):
        notes.append(BY_ACCURACY)
    shown = [
        (part.record, attribute, metric)
        for part in parts
        for attribute in part.record.attributes
        for metric in shown_metrics(part.record, attribute.attribute)
    ]
    if any(metric in PARITY_RATES for _, _, metric in shown):
        notes.append(PARITY_NOTE)
    left = dict.fromkeys(
        f"{attribute.attribute}: {words}"
        for part in parts
        for attribute in part.record.attributes
        if (words := left_out_in_words(attribute.groups))
    )
    partial = dict.fromkeys(
        f"{attribute.attribute}, {METRIC_TITLES[metric]}: {group} ({reason})"
        for _, attribute, metric in shown
        if metric in attribute.compared
        for group, reason in attribute.compared[metric].left_out.items()
    )
    if left or partial:
        notes.append(f"Left out: {'; '.join([*left, *partial])}.")
    return notes


def make_section(paths: Sequence[Path], page: Page) -> list[dict[str, Any]]:
    """Reads records and their tables; returns the section's parts, one per dataset with records."""
    read = [(path, read_subgroups(path)) for path in sorted(paths)]
    parts = []
    for dataset in page.datasets:
        mine = [(path, part) for path, part in read if part.record.dataset == dataset]
        if mine:
            files = [
                (part.record.backbone, kind, relative_path(path.with_suffix(suffix), page.folder))
                for path, part in mine
                for kind, suffix in (("JSON", path.suffix), ("PARQUET", TABLE_SUFFIX))
            ]
            parts.append({**_make_part(dataset, [part for _, part in mine]), "files": files})
    return parts


def _make_part(dataset: str, parts: Sequence[Subgroups]) -> dict[str, Any]:
    records = [part.record for part in parts]
    shown = [
        (record, attribute, metric)
        for record in records
        for attribute in record.attributes
        for metric in shown_metrics(record, attribute.attribute)
    ]
    gaps = [row for each in shown for row in _list_gaps(*each)]
    table = fairness_table(parts)
    first = records[0]
    return {
        "dataset": dataset,
        "units": "patients" if first.units is not None else "rows",
        "minimum": first.minimum,
        "resamples": first.resamples,
        "confidence": f"{100 * first.confidence:g}",
        "summary": [_count_gaps(*each) for each in shown],
        "uncompared": [
            f"{attribute.attribute}, {record.backbone}"
            for record in records
            for attribute in record.attributes
            if shown_metric(record, attribute.attribute) is None
        ],
        "left_out": list(dict.fromkeys(_left_out(records))),
        "gaps": gaps[:GAPS_SHOWN],
        "gaps_count": len(gaps),
        "points": _format_points,
        "ends": _format_ends,
        "parity": PARITY_NOTE if any(metric in PARITY_RATES for _, _, metric in shown) else None,
        "extreme": describe_extreme,
        "beyond_chance": beyond_chance,
        "stands_apart": stands_apart,
        "reference": reference_in_words,
        "groups": write_html(
            table, caption=f"Subgroups of {dataset}: one row per group, one column per ε"
        )
        if len(write_markdown(table).encode()) <= TABLE_BYTES
        else None,
    }


def describe_extreme(group: str, value: float, gap: Gap) -> str:
    """Formats the worst or the best group of a gap, with the rate and the label of a parity gap."""
    where = f", {RATE_TITLES[gap.rate]} of {gap.label}" if gap.rate else ""
    return f"{group} ({_format_points(value)}{where})"


def _count_gaps(record: FairnessRecord, attribute: Attribute, metric: str) -> dict[str, Any]:
    """Counts cells whose gap is beyond chance, or wider or narrower than the reference's gap."""
    name = attribute.attribute
    private = [
        gap
        for cell in record.cells
        if cell.private and (gap := cell.find_gap(name, metric)) and gap.gap is not None
    ]
    compared = [gap for gap in private if gap.difference_low is not None]
    gaps = [gap.gap for gap in private if gap.gap is not None]
    return {
        "backbone": record.backbone,
        "attribute": name,
        "metric": metric_title(record, metric),
        "groups": max((gap.groups for gap in private), default=0),
        "private": len(private),
        "wide": sum(map(beyond_chance, private)),
        "compared": len(compared),
        "larger": sum((gap.difference_low or 0) > 0 for gap in compared),
        "smaller": sum((gap.difference_high or 0) < 0 for gap in compared),
        "by_chance": f"{(1 - record.confidence) / 2 * len(compared):.1f}",
        "widest": _format_points(max(gaps)) if gaps else NOT_MEASURABLE,
    }


def _list_gaps(record: FairnessRecord, attribute: Attribute, metric: str) -> Iterator[Shown]:
    """Yields the gap of each cell by one metric, sorted by method and epsilon."""
    for cell in sorted(record.cells, key=lambda one: (one.method, budget_order(one.epsilon))):
        gap = cell.find_gap(attribute.attribute, metric)
        if gap is not None and gap.gap is not None:
            yield attribute.attribute, record.backbone, METRIC_TITLES[metric], cell, gap


def _left_out(records: Sequence[FairnessRecord]) -> Iterator[str]:
    """Yields one line per attribute and metric on omitted groups and labels, with reasons."""
    for record in records:
        for attribute in record.attributes:
            if words := left_out_in_words(attribute.groups):
                yield f"{attribute.attribute}: {words}"
            for metric, compared in attribute.compared.items():
                named = [f"{group} ({reason})" for group, reason in compared.left_out.items()]
                if named:
                    title = METRIC_TITLES[metric]
                    yield f"{attribute.attribute}, only by {title}: {', '.join(named)}"
                if 0 < len(compared.labels) < _count_countable(record):
                    labels = ", ".join(compared.labels)
                    yield f"{attribute.attribute}, {METRIC_TITLES[metric]}: only over {labels}"


def _count_countable(record: FairnessRecord) -> int:
    """Counts the labels for which recall is defined; of two classes, only the second counts."""
    classes = len(record.class_names)
    return 1 if classes == 2 and not record.multi_label else classes


def _format_points(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _format_ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"
