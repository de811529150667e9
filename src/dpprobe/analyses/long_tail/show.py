"""Figure and report section on long tails: sub-classes, memorisation, accuracy lost to privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from dpprobe.analyses.analysis import Page
from dpprobe.analyses.long_tail.long_tail_record import LongTailRecord, read_long_tails
from dpprobe.analyses.long_tail.long_tail_tables import list_tables
from dpprobe.exhibits import style
from dpprobe.exhibits.tables import write_html

_FOOT = 0.01  # the smallest share on the logarithmic axis, in percent


def make_section(paths: Sequence[Path], page: Page) -> dict[str, list[Markup] | list[str]] | None:
    """Reads records; returns the tables and notes of the section, or None without records."""
    records = read_long_tails(paths)
    if not records:
        return None
    made = list_tables(records, page.grid)
    return {
        "tables": [write_html(table, caption=table.title) for table in made],
        "notes": [f"{r.dataset}, {r.backbone}: {note}" for r in records for note in r.notes],
    }


def plot_long_tail(records: Sequence[Path]) -> Figure:
    """Draws a dataset's long tail: shares of sub-classes by rank, and memorised rows by threshold.

    Dashed lines are references: features without sub-classes, and scores expected by chance.
    """
    read = read_long_tails(records)
    looks = style.choose_looks(len(read))
    scored = any(record.memorisation for record in read)
    figure = Figure(figsize=(8.8 if scored else 5.6, 3.6), layout="constrained")
    panels = figure.subplots(1, 2 if scored else 1, squeeze=False)[0]
    for record, (colour, _) in zip(read, looks, strict=True):
        _draw_sub_classes(panels[0], record, colour)
        if record.memorisation:
            _draw_scores(panels[1], record, colour)
    _label_sub_classes(panels[0], read)
    if scored:
        _label_scores(panels[1])
    figure.legend(
        handles=_make_handles([record.backbone for record in read], [c for c, _ in looks]),
        loc="outside right upper",
    )
    style.title_figure(
        figure, f"{read[0].dataset}: long tail of the features", "not private", panels=2
    )
    return figure


def _draw_sub_classes(axes: Axes, record: LongTailRecord, colour: str) -> None:
    finest = record.finest
    for frequencies, dashes in ((finest.measured, "-"), (finest.reference, style.CEILING_STYLE)):
        shares = [100 * share for share in frequencies.shares]
        ranks = range(1, len(shares) + 1)
        axes.plot(ranks, shares, color=colour, linestyle=dashes, linewidth=1.4)


def _label_sub_classes(axes: Axes, records: Sequence[LongTailRecord]) -> None:
    clusters = max(record.finest.clusters for record in records)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(
        f"rank of the sub-class, at most {clusters} per class (log scale)", fontsize=8.5
    )
    axes.set_ylabel("share of the class's rows (%, log scale)", fontsize=8.5)
    axes.set_title("Sub-classes", fontsize=9)
    _plain_logarithm(axes, x=True)
    axes.grid(axis="both")


def _draw_scores(axes: Axes, record: LongTailRecord, colour: str) -> None:
    scores = record.memorisation
    assert scores is not None
    above = scores.above
    for shares, dashes in ((above.share, "-"), (above.chance, style.CEILING_STYLE)):
        percents = [100 * share or math.nan for share in shares]
        axes.plot(above.thresholds, percents, color=colour, linestyle=dashes, linewidth=1.4)


def _label_scores(axes: Axes) -> None:
    axes.axvline(0.25, color=style.NEUTRAL, linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylim(_FOOT, 130)
    axes.set_xlabel("memorisation score", fontsize=8.5)
    axes.set_ylabel("rows with a higher score (%, log scale)", fontsize=8.5)
    axes.set_title("Memorised rows", fontsize=9)
    _plain_logarithm(axes, x=False)
    axes.grid(axis="both")


def _plain_logarithm(axes: Axes, *, x: bool) -> None:
    for axis in (axes.xaxis, axes.yaxis) if x else (axes.yaxis,):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter("")


def _make_handles(backbones: Sequence[str], colours: Sequence[str]) -> list[Line2D]:
    dashed = Line2D(
        [], [], color=style.NEUTRAL, linestyle=style.CEILING_STYLE, label="reference, chance"
    )
    lines = [
        Line2D([], [], color=colour, label=name)
        for name, colour in zip(backbones, colours, strict=True)
    ]
    return [*lines, dashed]
