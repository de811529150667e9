"""Table, figure and report section of simulated sites: four heads by number of sites and budget."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpprobe.analyses.analysis import Page
from dpprobe.analyses.sites.sites_record import HEADS, Estimate, SitesCell, SitesRecord
from dpprobe.counted_nouns import count_noun
from dpprobe.exhibits import style, tables
from dpprobe.exhibits.tables import BLANK, Table, TableCell, make_row, make_table, mean_cell
from dpprobe.privacy.risk import budget_title, budget_words
from dpprobe.results.cell_record import HEADLINES
from dpprobe.study.ablations import keep_unique

SPLITS = {"equal": "equal sizes", "sizes": "skewed sizes", "labels": "skewed labels"}
NOTE = (
    "Mean and 95% confidence interval over seeds and test examples or patients, in percent. Each "
    "seed draws another split and other noise. One site alone: mean over sites, each with a head "
    "trained only on its own data; worst and best: mean over seeds. Average of heads: mean of the "
    "scores of all sites' heads. Secure sums: exact sums of all sites, with noise in shares. All "
    "heads in a row have its epsilon. Not private: test labels are read without noise, seeds are "
    "published."
)


def make_sites_table(records: Sequence[Path]) -> Table:
    """Makes the table of one dataset, from its records on all backbones."""
    return sites_table([*map(SitesRecord.read, records)])


def sites_table(records: Sequence[SitesRecord]) -> Table:
    """Makes the table: one row per (backbone, split, number of sites, budget)."""
    titles = [*HEADS.values()]
    measured = keep_unique(f"{r.method} on {r.backbone}: {HEADLINES[r.metric]}" for r in records)
    columns = (
        "<backbone",
        "<split",
        "sites",
        "units per site",
        "epsilon",
        f"±{titles[0]}",
        "worst to best site",
        *(f"±{title}" for title in titles[1:]),
    )
    return make_table(
        "sites",
        "",
        columns,
        [
            make_row(
                record.backbone,
                SPLITS[cell.split],
                str(cell.sites),
                _range_text(cell.smallest, cell.largest, "{:,}"),
                budget_words(cell.epsilon),
                _estimate_cell(cell.alone),
                ""
                if cell.worst is None or cell.best is None
                else _range_text(100 * cell.worst, 100 * cell.best, "{:.1f}"),
                *map(_estimate_cell, (cell.averaged, cell.together, cell.pooled)),
            )
            for record in records
            for cell in record.cells
        ],
        [f"{'; '.join(measured)}. {NOTE}", *(n for r in records for n in list_notes(r))],
    )


def list_notes(record: SitesRecord) -> list[str]:
    """Returns notes on sites without a head, and on sites whose examples have a single class."""
    notes = []
    for cell in record.cells:
        where = f"{record.backbone}, {SPLITS[cell.split]}, {cell.sites} sites"
        of = f"of {cell.sites * record.seeds} over all seeds"
        if cell.untrained:
            notes.append(
                f"{where}, {budget_title(cell.epsilon, 'epsilon ')}: "
                f"{count_noun(cell.untrained, 'site')} {of} cannot train a head alone, and are "
                f"left out of the first two heads ({cell.reason})."
            )
        if cell.one_class:
            notes.append(
                f"{where}: {count_noun(cell.one_class, 'site')} {of} with examples of only one "
                "class."
            )
    return keep_unique(notes)


def _range_text(low: float, high: float, style_of: str) -> str:
    ends = keep_unique([style_of.format(low), style_of.format(high)])
    return " to ".join(ends)


def _estimate_cell(value: Estimate | None) -> TableCell:
    return BLANK if value is None else mean_cell(value.mean, value.low, value.high)


def make_section(paths: Sequence[Path], page: Page) -> list[dict[str, Any]]:
    """Reads records; returns the section's parts, one per dataset with records."""
    records = [SitesRecord.read(path) for path in paths]
    return [
        {
            "dataset": dataset,
            "table": tables.write_html(
                sites_table(mine), caption=f"Heads of several sites, {dataset}, in percent"
            ),
        }
        for dataset in page.datasets
        if (mine := [record for record in records if record.dataset == dataset])
    ]


def plot_sites(record: Path) -> Figure:
    """Draws the four heads of one backbone by number of sites, one panel per split and budget."""
    read = SitesRecord.read(record)
    splits = keep_unique(cell.split for cell in read.cells)
    epsilons = keep_unique(cell.epsilon for cell in read.cells)
    looks = dict(zip(HEADS, style.choose_looks(len(HEADS)), strict=True))
    figure, panels = style.panel_grid(len(splits) * len(epsilons), legend=6, columns=len(splits))
    places = [(split, epsilon) for epsilon in epsilons for split in splits]
    for axes, (split, epsilon) in zip(panels, places, strict=True):
        cells = [c for c in read.cells if (c.split, c.epsilon) == (split, epsilon)]
        _draw_heads(axes, cells, looks)
        axes.set_title(f"{SPLITS[split]}, {budget_title(epsilon)}", fontsize=9)
    for axes in panels[-len(splits) :]:
        axes.set_xlabel("sites", fontsize=8.5)
    style.label_outer_panels(panels, f"{HEADLINES[read.metric]} (%)")
    figure.legend(
        handles=style.make_handles((HEADS[name], look) for name, look in looks.items()),
        loc="outside right upper",
    )
    style.title_figure(
        figure,
        f"{read.dataset}, {read.backbone}: {read.method} of several sites (not private)",
        f"mean and 95% interval, {style.counted_seeds([read.seeds])}; wide bars: range over sites",
        panels=len(panels),
    )
    return figure


def _draw_heads(axes: Axes, cells: Sequence[SitesCell], looks: dict[str, style.Look]) -> None:
    cells = sorted(cells, key=lambda cell: cell.sites)
    for number, (name, look) in enumerate(looks.items()):
        drawn = [
            (place + 0.12 * (number - 1.5), cell, estimate)
            for place, cell in enumerate(cells)
            if (estimate := getattr(cell, name)) is not None
        ]
        colour, (dashes, marker) = look
        values = [(100 * each.mean, 100 * each.low, 100 * each.high) for _, _, each in drawn]
        style.draw_error_bars(
            axes,
            [x for x, _, _ in drawn],
            values,
            color=colour,
            linestyle=dashes,
            marker=marker,
            linewidth=1.2,
            elinewidth=0.9,
        )
        if name == "alone":
            axes.vlines(
                [x for x, _, _ in drawn],
                [100 * (cell.worst or 0) for _, cell, _ in drawn],
                [100 * (cell.best or 0) for _, cell, _ in drawn],
                color=colour,
                alpha=0.25,
                linewidth=6,
            )
    axes.set_xticks(range(len(cells)), [str(cell.sites) for cell in cells])
    axes.set_xlim(-0.5, len(cells) - 0.5)
    axes.grid(axis="y")
