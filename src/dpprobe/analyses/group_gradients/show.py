"""Table, figures and report section of subgroups' gradients; not private."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from dpprobe.analyses.analysis import Page
from dpprobe.analyses.group_gradients.gradients_record import (
    GradientsCell,
    GradientsRecord,
    GroupedRows,
    Spread,
)
from dpprobe.counted_nouns import count_noun
from dpprobe.exhibits import style
from dpprobe.exhibits.epsilon_axis import EpsilonScale, draw_epsilon_axis
from dpprobe.exhibits.tables import (
    Table,
    TableCell,
    make_row,
    make_table,
    write_html,
)
from dpprobe.privacy.risk import budget_words
from dpprobe.study.ablations import keep_unique

NOTE = (
    "Mean over seeds, with the smallest and the largest value of any seed in brackets. Norm: L2 "
    "norm of an example's gradient at the final weights, before clipping. Longer than C: share of "
    "examples whose gradient exceeds the method's `max_grad_norm`, in percent; at epsilon inf "
    "training clips nothing. Alignment: cosine between the group's mean clipped gradient and the "
    "mean clipped gradient of all examples. Unclipped alignment: the same cosine, but with the "
    "mean unclipped gradient of all examples. Not private, and not for publication: gradients of "
    "private training examples, without noise."
)
_MOST_DRAWN = 12
# The title, factor, limits and value of each column of panels.
_PANELS: Any = (
    ("longer than C (%)", 100, (0, None), "clipped"),
    ("alignment (cosine)", 1, (-1.05, 1.05), "alignment"),
)


def make_gradients_table(records: Sequence[Path]) -> Table:
    """Makes the table of one dataset, from its records on all backbones."""
    return gradients_table([*map(GradientsRecord.read, records)])


def gradients_table(records: Sequence[GradientsRecord]) -> Table:
    """Makes the table: one row per (backbone, method, epsilon, group)."""
    columns = (
        "<backbone",
        "<method",
        "epsilon",
        "C",
        "<attribute",
        "<group",
        "rows",
        "±median norm",
        "±90% norm",
        "±longer than C",
        "±alignment",
        "±unclipped alignment",
    )
    rows = [
        make_row(
            record.backbone,
            cell.method,
            budget_words(cell.epsilon),
            f"{cell.max_grad_norm:g}",
            group.attribute,
            group.group,
            f"{group.rows:,}",
            _spread_cell(group.median, ".2g"),
            _spread_cell(group.p90, ".2g"),
            _spread_cell(group.clipped, ".1f", scale=100),
            _spread_cell(group.alignment, ".2f"),
            _spread_cell(group.unclipped_alignment, ".2f"),
        )
        for record in records
        for cell in record.cells
        for group in cell.groups
    ]
    notes = [note for record in records for note in list_notes(record)]
    return make_table("group_gradients", "", columns, rows, [NOTE, *notes])


def _spread_cell(value: Spread | None, form: str, *, scale: float = 1) -> TableCell:
    if value is None:
        return TableCell(text="undefined")
    mean, low, high = (scale * each for each in (value.mean, value.low, value.high))
    text, first, last = (format(each, form) for each in (mean, low, high))
    if first != last:
        text += f" ({first} to {last})"
    return TableCell(text=text, value=mean, ends=(low, high))


def list_notes(record: GradientsRecord) -> list[str]:
    """Returns notes on groups, rows and methods that are left out."""
    return [
        *(
            f"{record.backbone}: left out of {attribute.attribute}: "
            f"{'; '.join(f'{group.group} ({group.left_out})' for group in few)}."
            for attribute in record.attributes
            if (few := [group for group in attribute.groups if group.left_out])
        ),
        *(
            [f"{record.backbone}: {count_noun(record.unusable, 'row')} without usable features."]
            if record.unusable
            else []
        ),
        *(
            f"{record.backbone}: {method} is not measured: {reason}."
            for method, reason in record.skipped.items()
        ),
    ]


def make_section(paths: Sequence[Path], page: Page) -> list[dict[str, Any]]:
    """Reads records; returns the section's parts, one per dataset with records."""
    records = [GradientsRecord.read(path) for path in paths]
    return [
        {
            "dataset": dataset,
            "rows": len((table := gradients_table(mine)).rows),
            "table": write_html(table, caption=f"Gradients of subgroups of {dataset}, not private"),
        }
        for dataset in page.datasets
        if (mine := [record for record in records if record.dataset == dataset])
    ]


def plot_group_gradients(*, record: Path, method: str) -> Figure:
    """Draws one line of panels per attribute: clipped share and alignment against epsilon.

    Each curve is a group, with the range over seeds as a band. If there are many groups, only the
    largest are drawn. For a head chosen by `auto`, the figure may show only why it has no curves.
    """
    read = GradientsRecord.read(record)
    cells = sorted(
        (cell for cell in read.cells if cell.method == method), key=lambda cell: cell.place
    )
    drawn = [(each, _choose_groups(each)) for each in read.attributes]
    drawn = [(each, groups) for each, groups in drawn if groups]
    if not cells or not drawn:
        reason = read.skipped.get(method, f"no group has {read.minimum} training units")
        return style.write_reason(f"{read.dataset}, {read.backbone}, {method}: {reason}")
    finite = tuple(sorted({cell.place for cell in cells if math.isfinite(cell.place)}))
    scale = EpsilonScale(finite=finite, infinite=math.isinf(cells[-1].place), curves=4)
    figure = Figure(figsize=(8.6, 2.7 * len(drawn) + 0.7), layout="constrained")
    grid = figure.subplots(len(drawn), 2, squeeze=False, sharey="col")
    for line, (attribute, groups) in zip(grid, drawn, strict=True):
        looks = dict(zip(groups, style.choose_looks(len(groups)), strict=True))
        for axes, (title, factor, limits, value) in zip(line, _PANELS, strict=True):
            for name, look in looks.items():
                points = [*_find_points(cells, attribute.attribute, name, value, factor)]
                x = [scale.place_of(place) for place, _ in points]
                style.draw_banded(axes, x, [interval for _, interval in points], look)
            draw_epsilon_axis(axes, scale, width=0.5)
            axes.set_ylim(limits)
            axes.set_title(f"{attribute.attribute}: {title}", fontsize=9)
        names = ((style.fit_name(name, 18), look) for name, look in looks.items())
        line[-1].legend(
            handles=style.make_handles(names), loc="center left", bbox_to_anchor=(1.02, 0.5)
        )
    for axes in grid[:-1].flat:
        axes.set_xlabel("")
    clips = keep_unique(f"{cell.max_grad_norm:g}" for cell in cells)
    seeds = style.counted_seeds(sorted({cell.seeds for cell in cells}))
    style.title_figure(
        figure,
        f"{read.dataset}, {read.backbone}, {method}: gradients of training examples (not private)",
        f"C = {', '.join(clips)}; mean and range over {seeds}; the alignment is with the mean of "
        "all examples",
        panels=2,
    )
    return figure


def _choose_groups(attribute: GroupedRows) -> list[str]:
    """Returns the names of the largest measured groups, in the attribute's order."""
    kept = [group for group in attribute.groups if group.left_out is None]
    largest = sorted(kept, key=lambda group: -group.units)[:_MOST_DRAWN]
    return [group.group for group in kept if group in largest]


def _find_points(
    cells: Sequence[GradientsCell], attribute: str, group: str, value: str, factor: float
) -> Iterator[tuple[float, style.Interval]]:
    for cell in cells:
        for each in cell.groups:
            spread = getattr(each, value)
            if (each.attribute, each.group) == (attribute, group) and spread is not None:
                mean, low, high = (factor * number for number in spread.model_dump().values())
                yield cell.place, (mean, low, high)
