"""Panels of test results against an option: an axis of its values, a line per epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dpprobe.exhibits import style
from dpprobe.results.cell_results import CellResult

BEST_OF = "best of up to {} at each point, by test result"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes.

    Attributes:
      cells: with the place on the x axis that each is drawn at.
      ticks: the texts of the places.
      named: True where places are names side by side, which no line joins.
      split: draws a vertical line there.
    """

    title: str
    subtitle: str
    cells: Sequence[tuple[float, CellResult]]
    ticks: Mapping[float, str]
    named: bool = False
    split: float | None = None

    @property
    def epsilons(self) -> set[float]:
        """The epsilons of its cells."""
        return {cell.epsilon for _, cell in self.cells}

    def best_by_place(self, epsilon: float) -> list[tuple[float, CellResult]]:
        """Returns the best cell of each place at an epsilon, from left to right."""
        here = [(place, cell) for place, cell in self.cells if cell.epsilon == epsilon]
        best: dict[float, CellResult] = {}
        for place, cell in sorted(here, key=lambda item: (item[0], -item[1].mean)):
            best.setdefault(place, cell)
        return list(best.items())

    @property
    def most_at_place(self) -> int:
        """The largest number of cells of one place and epsilon: more than one is a choice."""
        keys = [(place, cell.epsilon) for place, cell in self.cells]
        return max(map(keys.count, keys))


def draw_panels(panels: Sequence[Panel], *, title: str, label: str, svg: Path, png: Path) -> None:
    """Draws panels with one y axis and one legend of epsilons; `label` is of the x axis."""
    epsilons = sorted(set().union(*(panel.epsilons for panel in panels)))
    looks = dict(zip(epsilons, style.choose_looks(len(epsilons)), strict=True))
    with mpl.rc_context(style.SETTINGS):
        figure, grid = style.panel_grid(len(panels), legend=len(epsilons))
        for axes, panel in zip(grid, panels, strict=True):
            _draw_panel(axes, panel, looks)
            subtitle = _write_subtitle(panel)
            pad = 15 + 9 * subtitle.count("\n")
            axes.set_title(
                style.wrap_name(style.shorten_middle(panel.title, 60), 34), fontsize=9, pad=pad
            )
            axes.text(0.0, 1.02, subtitle, transform=axes.transAxes, fontsize=7, color=style.SUBTLE)
            axes.set_xlabel(label, fontsize=8.5)
            axes.grid(axis="y")
        grid[0].set_ylim(top=min(grid[0].get_ylim()[1], style.TOP))
        measure = panels[0].cells[0][1].measure
        style.label_outer_panels(grid, f"test {measure.title} (%)")
        named = panels[0].named
        handles = [
            Line2D(
                [],
                [],
                color=colour,
                linestyle="none" if named else dashes,
                marker=marker,
                label=format_budget(value),
            )
            for value, (colour, (dashes, marker)) in looks.items()
        ]
        figure.legend(handles=handles, loc="outside right upper", handlelength=2.8)
        counts = sorted({len(cell.values) for panel in panels for _, cell in panel.cells})
        bands = "bars" if named else "bands"
        style.title_figure(
            figure, title, f"mean of {style.counted_seeds(counts)}; {bands}: 95% CI",
            panels=len(panels),
        )  # fmt: skip
        style.save_figure(figure, svg, png)


def _write_subtitle(panel: Panel) -> str:
    choice = BEST_OF.format(panel.most_at_place) if panel.most_at_place > 1 else ""
    return "\n".join(filter(None, (style.shorten_middle(panel.subtitle, 48), choice)))


def _draw_panel(axes: Axes, panel: Panel, looks: Mapping[float, style.Look]) -> None:
    offsets = _spread_lines(len(looks)) if panel.named else [0.0] * len(looks)
    for (epsilon, (colour, (dashes, marker))), offset in zip(looks.items(), offsets, strict=True):
        points = panel.best_by_place(epsilon)
        if not points:
            continue
        if panel.named:
            draw_bars(axes, points, offset, colour, marker)
            continue
        style.draw_banded(
            axes,
            [x for x, _ in points],
            [style.in_percent(cell.mean, cell.low, cell.high) for _, cell in points],
            (colour, (dashes, marker)),
        )
    if not panel.named:
        axes.set_xscale("log")
    places = sorted(panel.ticks)
    axes.set_xticks(places, [panel.ticks[place] for place in places], fontsize=8)
    axes.set_xticks([], minor=True)
    if panel.named:
        axes.set_xlim(places[0] - 0.5, places[-1] + 0.5)
    if panel.split is not None:
        axes.axvline(panel.split, color="#BBBBBB", linewidth=0.8, zorder=0.5)


def draw_bars(
    axes: Axes,
    points: Sequence[tuple[float, CellResult]],
    offset: float,
    colour: str,
    marker: str,
) -> None:
    """Draws results at names, with their intervals, a little beside others of the same name."""
    axes.errorbar(
        [x + offset for x, _ in points], [100 * cell.mean for _, cell in points],
        yerr=[
            # a mean of equal values may be rounded past an interval of no width
            [100 * max(0.0, cell.mean - (cell.mean if cell.low is None else cell.low))
             for _, cell in points],
            [100 * max(0.0, (cell.mean if cell.high is None else cell.high) - cell.mean)
             for _, cell in points],
        ],
        color=colour, linestyle="none", marker=marker, elinewidth=1.0,
        **({"markersize": 9} if marker == "_" else {"markeredgecolor": "white",
                                                    "markeredgewidth": 0.5}),
    )  # fmt: skip


def _spread_lines(count: int) -> list[float]:
    """Spreads lines about a place, so that their bars do not hide each other."""
    step = min(0.12, 0.6 / max(1, count))
    return [step * (index - (count - 1) / 2) for index in range(count)]


def format_budget(epsilon: float) -> str:
    """Writes an epsilon for a legend."""
    return f"ε = {epsilon:g}" if math.isfinite(epsilon) else "ε = ∞"
