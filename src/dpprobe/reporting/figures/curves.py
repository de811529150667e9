"""The figure of test results against epsilon: all curves of a dataset."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpprobe.exhibits import style
from dpprobe.exhibits.epsilon_axis import EpsilonScale, draw_epsilon_axis
from dpprobe.exhibits.published import Published
from dpprobe.privacy.limits import ABOVE_MARK
from dpprobe.reporting.accuracy_table import UNPRICED_MARK
from dpprobe.reporting.figures.published_points import Mark, draw_marks, number_points
from dpprobe.results.summary import Entry, Grid, read_grid
from dpprobe.study.ablations import keep_unique

Curve = dict[float, Entry]  # results by epsilon


def epsilon_accuracy(
    summary: Path, *, published: Published | None = None, name: str | None = None
) -> Figure:
    """Draws a dataset's accuracy or AUC against epsilon, one line per (backbone, method).

    Colour shows the backbone; line style and marker show the method. With one backbone, colour also
    shows the method. Bands are 95% intervals of cells. A dashed line is a backbone's non-private
    baseline. Results at epsilon inf, without noise, are on the right. Numbered circles are
    published results, whose sources the legend names. A bar through a circle spans a range of
    epsilons; a dashed circle has an inferred epsilon. `name` is the dataset's name in `published`.
    """
    grid = read_grid([summary])
    (dataset,) = grid.measures
    marks: list[Mark] = []
    if published is not None:
        headline = grid.measures[dataset].headline
        networks = any(entry.network for entry in grid.entries.values())
        points = published.mark_points(name or dataset, headline, networks=networks)
        marks = number_points(published, points)
    named = {name for column in grid.columns for name in column}
    height = max(4.3, 1.2 + style.LEGEND_LINE * (len(named) + len({mark.number for mark in marks})))
    figure = Figure(figsize=(9.0 if marks else 7.2, height), layout="constrained")
    draw_curves(figure.add_subplot(), grid, dataset, marks)
    return figure


def draw_curves(axes: Axes, grid: Grid, dataset: str, marks: Sequence[Mark] = ()) -> None:
    """Draws a dataset's results against epsilon, with baselines and published points."""
    backbones = keep_unique(backbone for backbone, _ in grid.columns)
    lines = {column: _make_curve(grid, dataset, column) for column in grid.columns}
    finite = tuple(sorted({e for line in lines.values() for e in line if math.isfinite(e)}))
    ends = [end for mark in marks for end in mark.reach]
    reach = tuple(sorted({*finite, *([min(ends), max(ends)] if ends else [])}))
    ceilings = {c: line for c, line in lines.items() if any(e.ceiling for e in line.values())}
    methods = keep_unique(m for b, m in grid.columns if (b, m) not in ceilings)
    method_looks = style.choose_looks(len(methods))
    styles = {name: look[1] for name, look in zip(methods, method_looks, strict=True)}
    several = len(backbones) > 1  # colour shows the backbone if there are several, else the method
    coloured = backbones if several else methods
    colours = {name: style.COLOURS[i % len(style.COLOURS)] for i, name in enumerate(coloured)}
    curves = {column: line for column, line in lines.items() if column not in ceilings}
    looks = {(b, m): (colours[b if several else m], styles[m]) for b, m in curves}
    # The baseline is a horizontal line, so only other results at infinity need space on the axis.
    infinite = any(math.inf in line for line in curves.values())
    scale = EpsilonScale(finite=reach, infinite=infinite, curves=len(curves))
    draw_epsilon_axis(axes, scale, finite, others=ends)
    axes.set_ylabel(f"test {grid.measures[dataset].title} (%)")
    for (backbone, _), line in ceilings.items():
        for entry in line.values():
            colour = colours[backbone] if several else style.NEUTRAL
            axes.axhline(entry.mean, color=colour, linestyle=style.CEILING_STYLE, linewidth=1)
    alpha = 0.18 if len(curves) <= 8 else 0.07
    for column, line in curves.items():
        _draw_line(axes, scale, line, looks[column], alpha)
    _draw_infinite(axes, scale, curves, looks)
    draw_marks(axes, scale, marks)
    # Matplotlib's margins may extend the axis far above 100%.
    axes.set_ylim(top=min(axes.get_ylim()[1], style.TOP))
    _draw_legend(
        axes,
        backbones,
        colours,
        styles,
        ceiling=bool(ceilings),
        marks=marks,
        unpriced=grid.unpriced,
    )
    style.title_axes(axes, *_write_captions(grid, dataset))


def _make_curve(grid: Grid, dataset: str, column: tuple[str, str]) -> Curve:
    line = {
        row[1] if entry.epsilon is None else entry.epsilon: entry
        for row in grid.rows
        if row[0] == dataset and (entry := grid.get(row, column)) is not None
    }
    return dict(sorted(line.items()))


def _draw_line(
    axes: Axes, scale: EpsilonScale, line: Curve, look: style.Look, alpha: float
) -> None:
    points = {scale.place_of(e): entry for e, entry in line.items() if math.isfinite(e)}
    values = [(entry.mean, entry.low, entry.high) for entry in points.values()]
    style.draw_banded(axes, list(points), values, look, alpha=alpha)
    banded = [(place, entry) for place, entry in points.items() if entry.low is not None]
    if len(banded) == 1:  # a band needs two points
        place, alone = banded[0]
        ends = [alone.low or 0.0, alone.high or 0.0]
        axes.plot([place, place], ends, color=look[0], alpha=0.5, linewidth=1.0)


def _draw_infinite(
    axes: Axes,
    scale: EpsilonScale,
    curves: dict[tuple[str, str], Curve],
    looks: dict[tuple[str, str], style.Look],
) -> None:
    """Draws the cells at epsilon inf side by side, so that each interval can be seen."""
    present = [column for column, line in curves.items() if math.inf in line]
    offsets = [0.0] if len(present) == 1 else np.linspace(-0.3, 0.3, len(present))
    for column, offset in zip(present, offsets, strict=True):
        entry = curves[column][math.inf]
        colour, (_, marker) = looks[column]
        style.draw_error_bars(
            axes,
            [scale.place_of(math.inf) + offset * scale.gap],
            [(entry.mean, entry.low, entry.high)],
            color=colour,
            marker=marker,
            markersize=4,
            markerfacecolor="white",
            elinewidth=1.0,
        )


def _draw_legend(
    axes: Axes,
    backbones: list[str],
    colours: dict[str, str],
    styles: dict[str, style.LineStyle],
    *,
    ceiling: bool,
    marks: Sequence[Mark] = (),
    unpriced: Collection[str] = (),
) -> None:
    handles = [_make_heading("Backbone")]
    if len(backbones) == 1:
        handles += [_make_heading(backbones[0])]
    else:
        handles += [Line2D([], [], color=c, linewidth=4, label=name) for name, c in colours.items()]
    if styles:
        handles += [_make_heading(""), _make_heading("Method")]
        handles += style.make_handles(
            (
                _label_method(name, unpriced),
                (colours[name] if len(backbones) == 1 else style.NEUTRAL, line_style),
            )
            for name, line_style in styles.items()
        )
    if ceiling:
        handles.append(style.make_ceiling_handle())
    if marks:
        handles += [_make_heading(""), _make_heading("Published")]
        handles += [
            Line2D(
                [],
                [],
                linestyle="none",
                marker="o",
                markersize=7,
                color="white",
                markeredgecolor=style.NEUTRAL,
                markeredgewidth=0.9,
                label=f"{number}  {label}",
            )
            for number, label in keep_unique((mark.number, mark.label) for mark in marks)
        ]
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    legend = figure.legend(handles=handles, loc="outside right upper", handlelength=2.8)
    for text in legend.get_texts():
        if text.get_text() in ("Backbone", "Method", "Published"):
            text.set_fontweight("bold")


def _label_method(method: str, unpriced: Collection[str]) -> str:
    return f"{method} {UNPRICED_MARK}" if method in unpriced else method


def _make_heading(text: str) -> Line2D:
    return Line2D([], [], linestyle="none", label=text)


def _write_captions(grid: Grid, dataset: str) -> tuple[str, str]:
    entries = grid.entries.values()
    delta = f", δ = {_format_power(grid.deltas[dataset])}" if dataset in grid.deltas else ""
    delta += ABOVE_MARK if dataset in grid.above else ""
    private = [entry for entry in entries if entry.private]
    over = {entry.over_seeds for entry in private if entry.interval}
    kinds = [
        words
        for seeds, words in ((True, "over seeds"), (False, f"over {grid.tested}"))
        if seeds in over
    ]
    bands = f"; bands: 95% CI {' or '.join(kinds)}" if kinds else ""
    reach = max((e.rows_reach for e in private if e.rows_reach is not None), default=None)
    made = " or ".join(sorted({e.rows_interval for e in private if e.rows_interval}))
    alone = f"\n95% CI over test examples alone ({made})"
    rows = "" if reach is None else f"{alone}: up to ±{reach:.1f} points"
    rows += "; each patient counts once" if grid.patients else ""
    rows += f"\n{UNPRICED_MARK} hyperparameters searched without privacy" if grid.unpriced else ""
    seeds = sorted({entry.seeds for entry in entries})
    return f"{dataset}{delta}", f"mean of {style.counted_seeds(seeds)}{bands}{rows}"


def _format_power(value: float) -> str:
    """Formats numbers such as 1e-5 as powers of ten."""
    mantissa, exponent = f"{value:.2e}".split("e")
    factor = f"{float(mantissa):g}"
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if factor == "1" else f"{factor} × 10{raised}"
