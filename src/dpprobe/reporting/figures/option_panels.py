"""Panels of test results against the values of an option, with one line per epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpprobe.errors import NothingToShow
from dpprobe.exhibits import style
from dpprobe.privacy.risk import RiskEpsilon, explain_risks, row_words
from dpprobe.results.cell_results import CellResult

BEST_OF = "best of up to {} at each point, by test result"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes.

    Attributes:
      cells: pairs of a position on the x axis and a cell.
      ticks: the texts at the positions.
      named: True if positions are names instead of numbers, so that no line joins points.
      split: the position of a vertical line.
    """

    title: str
    subtitle: str
    cells: Sequence[tuple[float, CellResult]]
    ticks: Mapping[float, str]
    named: bool = False
    split: float | None = None

    def best_by_place(self, epsilon: float) -> list[tuple[float, CellResult]]:
        """Returns the best cell per position for an epsilon, from left to right."""
        here = [(place, cell) for place, cell in self.cells if cell.epsilon == epsilon]
        best: dict[float, CellResult] = {}
        for place, cell in sorted(here, key=lambda item: (item[0], -item[1].mean)):
            best.setdefault(place, cell)
        return list(best.items())

    @property
    def most_at_place(self) -> int:
        """The largest number of cells at one position and epsilon; only the best cell is drawn."""
        keys = [(place, cell.epsilon) for place, cell in self.cells]
        return max(map(keys.count, keys))


def draw_panels(panels: Sequence[Panel], *, title: str, label: str) -> Figure:
    """Draws panels with a common y axis, a legend of epsilons and a label of the x axes.

    Raises NothingToShow if `panels` is empty.
    """
    if not panels:
        raise NothingToShow(f"{title}: no option has results for two or more values")
    epsilons = sorted({cell.epsilon for panel in panels for _, cell in panel.cells})
    looks = dict(zip(epsilons, style.choose_looks(len(epsilons)), strict=True))
    figure, grid = style.panel_grid(len(panels), legend=len(epsilons))
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, looks)
        subtitle = _write_subtitle(panel)
        pad = 15 + 9 * subtitle.count("\n")
        axes.set_title(style.fit_name(panel.title, 34), fontsize=9, pad=pad)
        axes.text(0.0, 1.02, subtitle, transform=axes.transAxes, fontsize=7, color=style.SUBTLE)
        axes.set_xlabel(label, fontsize=8.5)
        axes.grid(axis="y")
    grid[0].set_ylim(top=min(grid[0].get_ylim()[1], style.TOP))
    measure = panels[0].cells[0][1].measure
    style.label_outer_panels(grid, f"test {measure.title} (%)")
    named = panels[0].named
    handles = style.make_handles(
        ((format_budget(value), look) for value, look in looks.items()), joined=not named
    )
    figure.legend(handles=handles, loc="outside right upper", handlelength=2.8)
    counts = sorted({len(cell.values) for panel in panels for _, cell in panel.cells})
    bands = "bars" if named else "bands"
    style.title_figure(
        figure,
        title,
        f"mean of {style.counted_seeds(counts)}; {bands}: 95% CI",
        panels=len(panels),
    )
    return figure


def _write_subtitle(panel: Panel) -> str:
    choice = BEST_OF.format(panel.most_at_place) if panel.most_at_place > 1 else ""
    return "\n".join(filter(None, (style.shorten_middle(panel.subtitle, 48), choice)))


def _draw_panel(axes: Axes, panel: Panel, looks: Mapping[float, style.Look]) -> None:
    offsets = spread_offsets(len(looks), 0.12)
    for (epsilon, look), offset in zip(looks.items(), offsets, strict=True):
        points = panel.best_by_place(epsilon)
        if panel.named and points:
            draw_bars(axes, points, offset, look)
        elif points:
            places = [place for place, _ in points]
            style.draw_banded(axes, places, [cell.percent for _, cell in points], look)
    if not panel.named:
        axes.set_xscale("log")
    ticks = sorted(panel.ticks)
    axes.set_xticks(ticks, [panel.ticks[place] for place in ticks], fontsize=8)
    axes.set_xticks([], minor=True)
    if panel.named:
        axes.set_xlim(ticks[0] - 0.5, ticks[-1] + 0.5)
    if panel.split is not None:
        axes.axvline(panel.split, color="#BBBBBB", linewidth=0.8, zorder=0.5)


def draw_bars(
    axes: Axes,
    points: Sequence[tuple[float, CellResult]],
    offset: float,
    look: style.Look,
    *,
    across: bool = False,
) -> None:
    """Draws results with intervals, shifted by `offset` to the right (downwards if `across`)."""
    colour, (_, marker) = look
    edge: Mapping[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.5}
    style.draw_error_bars(
        axes,
        [x + offset for x, _ in points],
        [cell.percent for _, cell in points],
        color=colour,
        linestyle="none",
        marker=marker,
        elinewidth=1.0,
        across=across,
        **({"markersize": 9} if marker in "_|" else edge),
    )


def spread_offsets(count: int, step: float) -> list[float]:
    """Returns offsets around 0, so that bars at one position do not overlap."""
    step = min(step, 0.6 / count)
    return [step * (index - (count - 1) / 2) for index in range(count)]


def format_budget(epsilon: float) -> str:
    if isinstance(epsilon, RiskEpsilon):
        return "\n(TPR".join([row_words(epsilon), *explain_risks([epsilon]).split(" (TPR")[1:]])
    return f"ε = {epsilon:g}" if math.isfinite(epsilon) else "ε = ∞"
