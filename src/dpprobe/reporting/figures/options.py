"""Figures of test results against an option, such as the batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dpprobe.errors import DataError
from dpprobe.heads.first_order_options import INIT_DEVIATION
from dpprobe.reporting.figures import style
from dpprobe.results.cell_results import CellResult
from dpprobe.study.ablations import unique, varied

OPTION_TITLES = {"batch_size": "batch size", "init_scale": "scale of the initial weights"}
OPTION_LABELS = {
    "batch_size": "expected batch size (log scale)",
    "init_scale": "standard deviation of initial weights (log scale)",
}


def option_figure(
    cells: Sequence[CellResult], option: str, *, dataset: str, svg: Path, png: Path
) -> None:
    """Draws test results against an option, from methods that differ in it alone.

    A panel a backbone and family of such methods, a line an epsilon.

    Args:
      cells: of one dataset.
      option: "batch_size" or "init_scale".

    Raises:
      DataError: when no two methods differ in that option alone.
    """
    groups = varied({cell.method: cell.options for cell in cells}, option)
    panels = [
        (backbone, group, [c for c in cells if c.backbone == backbone and c.method in group])
        for backbone in unique(cell.backbone for cell in cells)
        for group in groups
    ]
    if not panels:
        raise DataError(f"{dataset}: no two methods differ in {option} alone; add one")
    epsilons = sorted({cell.epsilon for _, _, members in panels for cell in members})
    with mpl.rc_context(style.SETTINGS):
        figure, grid = style.panel_grid(len(panels), legend=len(epsilons))
        for axes, (backbone, group, members) in zip(grid, panels, strict=True):
            _draw_option(axes, members, option, epsilons)
            axes.set_title(f"{backbone}, {members[0].head}", fontsize=9, pad=15)
            axes.text(
                0.0, 1.02, _span(group), transform=axes.transAxes, fontsize=7, color=style.SUBTLE
            )
        grid[0].set_ylim(top=min(grid[0].get_ylim()[1], style.TOP))
        style.label_outer_panels(grid, f"test {panels[0][2][0].measure.title} (%)")
        handles = [
            Line2D([], [], color=colour, linestyle=dashes, marker=marker, label=_budget(value))
            for value, (colour, (dashes, marker)) in zip(
                epsilons, style.looks(len(epsilons)), strict=True
            )
        ]
        figure.legend(handles=handles, loc="outside right upper", handlelength=2.8)
        counts = sorted({len(cell.values) for _, _, members in panels for cell in members})
        style.title_figure(
            figure, f"{dataset}: {OPTION_TITLES[option]}",
            f"mean of {style.counted_seeds(counts)}; bands: 95 % interval", panels=len(panels),
        )  # fmt: skip
        style.save(figure, svg, png)


def _draw_option(
    axes: Axes, cells: Sequence[CellResult], option: str, epsilons: Sequence[float]
) -> None:
    """Draws one line an epsilon; a scale of 0 stands left of the logarithmic axis."""
    places = {cell.method: _place(cell, option) for cell in cells}
    positive = sorted({value for value in places.values() if value > 0})
    left = positive[0] / 10 if positive else 1.0
    for epsilon, (colour, (dashes, marker)) in zip(
        epsilons, style.looks(len(epsilons)), strict=True
    ):
        points = sorted(
            ((places[cell.method] or left, cell) for cell in cells if cell.epsilon == epsilon),
            key=lambda pair: pair[0],
        )
        axes.plot(
            [x for x, _ in points], [100 * cell.mean for _, cell in points], color=colour,
            linestyle=dashes, marker=marker, markeredgecolor="white", markeredgewidth=0.5,
        )  # fmt: skip
        banded = [(x, cell) for x, cell in points if cell.low is not None]
        axes.fill_between(
            [x for x, _ in banded], [100 * (cell.low or 0.0) for _, cell in banded],
            [100 * (cell.high or 0.0) for _, cell in banded], color=colour, alpha=0.15, linewidth=0,
        )  # fmt: skip
    axes.set_xscale("log")
    texts = {value or left: _tick(value, cells, option) for value in places.values()}
    axes.set_xticks(sorted(texts), [texts[x] for x in sorted(texts)], fontsize=8)
    axes.set_xticks([], minor=True)
    if 0.0 in places.values():
        axes.axvline(left * 10**0.5, color="#BBBBBB", linewidth=0.8, zorder=0.5)
    axes.set_xlabel(OPTION_LABELS[option], fontsize=8.5)
    axes.grid(axis="y")


def _place(cell: CellResult, option: str) -> float:
    """Returns the number that an option of a cell is drawn at."""
    if option == "batch_size":
        return float(cell.batch_size or 0)
    kind, scale = cell.options["init"], cell.options["init_scale"]
    if kind == "zero":
        return 0.0
    return float(cell.dimension**-0.5 if kind == "lecun_normal" else scale or INIT_DEVIATION)


def _tick(value: float, cells: Sequence[CellResult], option: str) -> str:
    """Returns the text of a tick."""
    if option == "batch_size":
        full = value == max(cell.n for cell in cells)
        return f"{value:,.0f}" + ("\n(all)" if full else "")
    lecun = any(
        cell.options["init"] == "lecun_normal" and _place(cell, option) == value for cell in cells
    )
    return "\n1/√d" if lecun else f"{value:g}"  # on a second line: it may be near another


def _budget(epsilon: float) -> str:
    return f"ε = {epsilon:g}" if math.isfinite(epsilon) else "ε = ∞"


def _span(group: Sequence[str]) -> str:
    return f"{group[0]} … {group[-1]}"
