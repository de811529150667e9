"""Figures of the gap between the best and the worst subgroup, against epsilon and against quality.

Not private: the numbers are computed from test examples, without noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpprobe.analyses.fairness.fairness_record import FairnessCell, FairnessRecord, Gap
from dpprobe.analyses.fairness.fairness_table import (
    BESIDE,
    METRIC_TITLES,
    beyond_chance,
    metric_title,
    shown_metrics,
)
from dpprobe.exhibits import style
from dpprobe.exhibits.epsilon_axis import EpsilonScale, draw_epsilon_axis
from dpprobe.privacy.limits import INFINITE
from dpprobe.privacy.risk import budget_words
from dpprobe.study.ablations import keep_unique

Point = tuple[FairnessCell, Gap]  # a cell, and the cell's gap by the panel's metric
Looks = dict[str, style.Look]
_TICK: Any = {"markersize": 9, "markeredgewidth": 1.6, "zorder": 5}  # the mark of the gap by chance
# The largest offset between methods at one epsilon, as a share of the distance between epsilons.
_SPREAD = 0.12


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """One attribute's gaps on one backbone: for cells sorted by epsilon, and for references."""

    title: str
    metric: str
    points: tuple[Point, ...]
    references: tuple[Point, ...]

    def points_of(self, method: str) -> list[Point]:
        return [point for point in self.points if point[0].method == method]


def plot_fairness(records: Sequence[Path]) -> list[Figure]:
    read = [FairnessRecord.read(path) for path in records]
    return [gap_figure(read), quality_figure(read), gap_figure(read, parity=True)]


def gap_figure(records: Sequence[FairnessRecord], *, parity: bool = False) -> Figure:
    """Draws gaps against epsilon, one panel per attribute and backbone.

    Methods at one epsilon are drawn side by side, with the intervals of their gaps. The mark of a
    gap is filled if chance does not explain the gap. A dashed line with a band is the gap of the
    non-private reference, with its interval. A short line across an interval is the gap by chance.

    If no cell has two groups to compare, the figure shows only a sentence.

    Args:
      parity: draws one panel for each of the metrics `BESIDE`, instead of the metric that tables
        show first.
    """
    panels, looks = _make_panels(records, parity=parity)
    epsilons = {c.place for panel in panels for c, _ in panel.points}
    finite = tuple(sorted(filter(math.isfinite, epsilons)))
    # Methods at epsilon infinity need the width of `curves` curves.
    scale = EpsilonScale(
        finite=finite, infinite=len(finite) < len(epsilons), curves=12 + 2 * len(looks)
    )
    ways = [scale.place_of(high) - scale.place_of(low) for low, high in pairwise(finite)]
    step = min(_SPREAD, 0.6 / max(1, len(looks))) * min(ways, default=scale.gap)

    def draw_gaps(axes: Axes, panel: _Panel) -> None:
        draw_epsilon_axis(axes, scale, width=0.5)
        low, high = axes.get_xlim()
        axes.set_xlim(low - step * len(looks) / 2, high + step * len(looks) / 2)
        axes.xaxis.label.set_fontsize(8.5)
        alone = len(panel.references) == 1
        for cell, gap in panel.references:
            colour = style.NEUTRAL if alone else _choose_colour(looks, cell)
            _draw_band(axes, gap, colour, 0.12 if alone else 0.06)
        for place, (method, look) in enumerate(looks.items()):
            aside = step * (place - (len(looks) - 1) / 2)
            mine = panel.points_of(method)
            x = [scale.place_of(cell.place) + aside for cell, _ in mine]
            finite_ones = sum(cell.epsilon != INFINITE for cell, _ in mine)
            _draw_method(axes, x, mine, look, joined=finite_ones)
            chance = [_to_percent(gap.chance_gap) for _, gap in mine]
            axes.plot(x, chance, color=look[0], marker="_", linestyle="none", **_TICK)

    return _save_panels(
        records,
        panels,
        looks,
        draw_gaps,
        title="recall, equalised odds and demographic parity"
        if parity
        else "gap between the best and the worst group",
        per_panel=parity,
        without=Line2D(
            [],
            [],
            color=style.NEUTRAL,
            linestyle=style.CEILING_STYLE,
            linewidth=1.2,
            label="gap without privacy,\nand its interval",
        ),
        more=[
            Line2D(
                [],
                [],
                color=style.NEUTRAL,
                marker="_",
                linestyle="none",
                **_TICK,
                label="chance alone: 95% of\nrandom groups below",
            ),
        ],
    )


def quality_figure(records: Sequence[FairnessRecord]) -> Figure:
    """Draws gaps against the metric on all test examples, with panels as in `gap_figure`.

    A line joins a method's marks, and its ends are labelled with epsilon. Hollow squares are heads
    without privacy. If private heads have no larger gaps than non-private heads of equal quality,
    privacy widens gaps only by lowering quality.
    """
    panels, looks = _make_panels(records)

    def draw_quality(axes: Axes, panel: _Panel) -> None:
        named = list(panel.references)
        for method, look in looks.items():
            mine = [point for point in panel.points_of(method) if point[1].overall is not None]
            _draw_method(axes, [_to_percent(gap.overall) for _, gap in mine], mine, look)
            named += mine[:1] + mine[1:][-1:]
        for cell, gap in panel.references:
            look = (_choose_colour(looks, cell), ("-", "s"))
            _draw_method(axes, [_to_percent(gap.overall)], [(cell, gap)], look, hollow=True)
        axes.set_xlabel(f"test {panel.metric} (%)", fontsize=8.5)
        axes.margins(x=0.12)
        axes.grid(axis="both")
        for cell, gap in named:  # labels of all marks would overlap
            text = "∞" if cell.epsilon == INFINITE else budget_words(cell.epsilon)
            axes.annotate(
                text,
                (_to_percent(gap.overall), _to_percent(gap.gap)),
                xytext=(3, 3),
                textcoords="offset points",
                fontsize=6.5,
                color=style.SUBTLE,
            )

    return _save_panels(
        records,
        panels,
        looks,
        draw_quality,
        title="gap between the best and the worst group against quality",
        note="; ε stands at the ends of each line",
        without=Line2D(
            [],
            [],
            color=style.NEUTRAL,
            linestyle="none",
            marker="s",
            markersize=6,
            markerfacecolor="white",
            label="without privacy",
        ),
    )


def _make_panels(
    records: Sequence[FairnessRecord], *, parity: bool = False
) -> tuple[list[_Panel], Looks]:
    panels = []
    for attribute in keep_unique(a.attribute for record in records for a in record.attributes):
        places = [
            (record, metric)
            for record in records
            for place, metric in enumerate(shown_metrics(record, attribute))
            if (metric in BESIDE if parity else place == 0)
        ]
        for record, metric in places:
            points = [
                (cell, gap)
                for cell in sorted(record.cells, key=lambda cell: cell.place)
                if (gap := cell.find_gap(attribute, metric)) is not None and gap.gap is not None
            ]
            named = {(c.reference.method, c.reference.epsilon) for c in record.cells if c.reference}
            beside = [point for point in points if (point[0].method, point[0].epsilon) in named]
            if not points:
                continue
            groups = max(gap.groups for _, gap in points)
            where = f", {record.backbone}" if len(records) > 1 else ""
            named_metric = f": {METRIC_TITLES[metric]}" if parity else ""
            panels.append(
                _Panel(
                    title=f"{attribute}, {groups} groups{where}{named_metric}",
                    metric=metric_title(record, metric),
                    points=tuple(point for point in points if point not in beside),
                    references=tuple(beside),
                )
            )
    methods = keep_unique(cell.method for panel in panels for cell, _ in panel.points)
    return panels, dict(zip(methods, style.choose_looks(len(methods)), strict=True))


def _choose_colour(looks: Looks, cell: FairnessCell) -> str:
    """Returns the colour of a cell's method; gray for a method that is only a reference."""
    return looks[cell.method][0] if cell.method in looks else style.NEUTRAL


def _draw_method(
    axes: Axes,
    x: Sequence[float],
    points: Sequence[Point],
    look: style.Look,
    *,
    joined: int | None = None,
    hollow: bool = False,
) -> None:
    """Draws a method's gaps, filled if beyond chance; a line joins the first `joined` gaps."""
    colour, (dashes, marker) = look
    heights = [_to_percent(gap.gap) for _, gap in points]
    axes.plot(
        x[:joined],
        heights[:joined],
        color=colour,
        linestyle=dashes,
        linewidth=1.0,
        alpha=0.7,
        zorder=3,
    )
    for place, height, (_, gap) in zip(x, heights, points, strict=True):
        if gap.low is not None and gap.high is not None:
            ends = [_to_percent(gap.low), _to_percent(gap.high)]
            axes.plot([place] * 2, ends, color=colour, linewidth=0.9, alpha=0.6, zorder=3)
        axes.plot(
            [place],
            [height],
            color=colour,
            marker=marker,
            linestyle="none",
            markersize=5,
            markerfacecolor=colour if beyond_chance(gap) and not hollow else "white",
            zorder=4,
        )


def _draw_band(axes: Axes, gap: Gap, colour: str, alpha: float) -> None:
    """Draws the gap of a head without privacy, with its interval, across the panel."""
    axes.axhline(_to_percent(gap.gap), color=colour, linestyle=style.CEILING_STYLE, linewidth=1)
    if gap.low is not None and gap.high is not None:
        axes.axhspan(
            _to_percent(gap.low), _to_percent(gap.high), color=colour, alpha=alpha, linewidth=0
        )


def _save_panels(
    records: Sequence[FairnessRecord],
    panels: Sequence[_Panel],
    looks: Looks,
    draw: Callable[[Axes, _Panel], None],
    *,
    title: str,
    note: str = "",
    per_panel: bool = False,
    without: Line2D,
    more: Sequence[Line2D] = (),
) -> Figure:
    """Draws panels with one legend.

    Args:
      per_panel: True if the titles of panels name their metrics.
      without: the legend's entry for heads without privacy.
    """
    first = records[0]
    units = "patients" if first.units is not None else "rows"
    figure, grid = style.panel_grid(max(1, len(panels)), legend=len(looks) + 7)
    if not panels:
        grid[0].set_axis_off()
        grid[0].text(0, 0.5, "No two groups are large enough to compare.")
    for axes, panel in zip(grid, panels, strict=False):  # an empty panel if there are no panels
        draw(axes, panel)
        axes.set_title(panel.title, fontsize=9)
    bottom, top = grid[0].get_ylim()
    grid[0].set_ylim(min(0.0, bottom), top)  # sets all panels, which share the vertical axis
    metrics = " or ".join(keep_unique(panel.metric for panel in panels))
    style.label_outer_panels(grid, "gap (points)" if per_panel else f"gap in {metrics} (points)")
    beside = [without] if any(panel.references for panel in panels) else []
    marks = style.make_handles(looks.items())
    kinds = [
        Line2D(
            [],
            [],
            color=style.NEUTRAL,
            linestyle="none",
            marker="o",
            label=text,
            markerfacecolor=style.NEUTRAL if filled else "white",
        )
        for text, filled in (("beyond chance", True), ("not beyond chance", False))
    ]
    figure.legend(
        handles=[*marks, *kinds, *beside, *more], loc="outside right upper", handlelength=2.4
    )
    caption = f"{100 * first.confidence:g}% intervals over test {units}; not private{note}"
    style.title_figure(figure, f"{first.dataset}: {title}", caption, panels=1)
    return figure


def _to_percent(value: float | None) -> float:
    return math.nan if value is None else 100 * value
