"""The report's section on subgroups: gaps between groups, for private and non-private heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dpprobe.analyses.analysis import Page
from dpprobe.analyses.fairness.fairness_record import (
    TABLE_SUFFIX,
    Attribute,
    FairnessCell,
    FairnessRecord,
    Gap,
    left_out_in_words,
)
from dpprobe.analyses.fairness.fairness_table import (
    METRIC_TITLES,
    Subgroups,
    beyond_chance,
    fairness_table,
    metric_title,
    read_subgroups,
    reference_in_words,
    shown_metric,
    stands_apart,
)
from dpprobe.exhibits.html_page import relative_path
from dpprobe.exhibits.tables import TABLE_BYTES, write_html, write_markdown
from dpprobe.privacy.risk import budget_order

GAPS_SHOWN = 2000
Shown = tuple[str, str, str, FairnessCell, Gap]  # attribute, backbone, metric


def make_section(paths: Sequence[Path], page: Page) -> list[dict[str, Any]]:
    """Reads records and their tables; returns one part for each dataset with records."""
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
        if (metric := shown_metric(record, attribute.attribute))
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
        "beyond_chance": beyond_chance,
        "stands_apart": stands_apart,
        "reference": reference_in_words,
        "groups": write_html(
            table, caption=f"Subgroups of {dataset}: one row per group, one column per ε"
        )
        if len(write_markdown(table).encode()) <= TABLE_BYTES
        else None,
    }


def _count_gaps(record: FairnessRecord, attribute: Attribute, metric: str) -> dict[str, Any]:
    """Counts an attribute's gaps beyond chance, and the number of such gaps expected by chance."""
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
        "widest": _format_points(max(gaps)) if gaps else "",
    }


def _list_gaps(record: FairnessRecord, attribute: Attribute, metric: str) -> Iterator[Shown]:
    """Yields the gap of each cell, in the order of epsilon."""
    for cell in sorted(record.cells, key=lambda one: (one.method, budget_order(one.epsilon))):
        gap = cell.find_gap(attribute.attribute, metric)
        if gap is not None and gap.gap is not None:
            yield attribute.attribute, record.backbone, METRIC_TITLES[metric], cell, gap


def _left_out(records: Sequence[FairnessRecord]) -> Iterator[str]:
    """Yields groups that are not compared, with reasons: one line per attribute and metric."""
    for record in records:
        for attribute in record.attributes:
            if words := left_out_in_words(attribute.groups):
                yield f"{attribute.attribute}: {words}"
            for metric, compared in attribute.compared.items():
                named = [f"{group} ({reason})" for group, reason in compared.left_out.items()]
                if named:
                    title = METRIC_TITLES[metric]
                    yield f"{attribute.attribute}, by {title} alone: {', '.join(named)}"
                if 0 < len(compared.labels) < _count_countable(record):
                    labels = ", ".join(compared.labels)
                    yield f"{attribute.attribute}, {METRIC_TITLES[metric]}: over {labels} alone"


def _count_countable(record: FairnessRecord) -> int:
    """Counts the labels that have a recall; with two classes only the second class has one."""
    classes = len(record.class_names)
    return 1 if classes == 2 and not record.multi_label else classes


def _format_points(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _format_ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"
