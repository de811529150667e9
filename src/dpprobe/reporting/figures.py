"""Figures: results against epsilon and options, and t-SNE. The only user of matplotlib.

Colours are those of Okabe and Ito, safe for colour-blind readers; lines also differ by style and
marker. The same input gives the same bytes, so that a figure can be compared by its hash.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.patheffects import withStroke
from pyarrow import parquet as pq

from dpprobe.analysis.tsne import read_embedding
from dpprobe.artifacts import atomic_path
from dpprobe.backbones.images import convert
from dpprobe.data.table import SplitTable, decode
from dpprobe.errors import DataError
from dpprobe.heads.gradient_options import INIT_DEVIATION
from dpprobe.reporting.colours import CIRCLES, CLASS_COLOURS, NAMED_CLASSES
from dpprobe.reporting.published import Number, Published
from dpprobe.results.best_private import best_ceiling
from dpprobe.results.cell_results import Measured
from dpprobe.results.metrics import SEED_INTERVAL
from dpprobe.results.summary import Entry, Grid, read_grid
from dpprobe.study.ablations import unique, varied

# Okabe and Ito's, without the yellow that fades on white, then darker and lighter kin.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
    "#7F4F00", "#5B2C6F", "#8C8C8C", "#1B4F3A", "#C0392B",
)  # fmt: skip
STYLES = (
    ("-", "o"), ((0, (4, 1.2)), "s"), ((0, (1, 1)), "^"), ((0, (6, 1.5, 1, 1.5)), "D"),
    ((0, (8, 2)), "v"), ((0, (3, 1, 1, 1, 1, 1)), "P"), ("-", "X"), ((0, (1, 2)), "*"),
    ((0, (5, 1, 1, 1)), "<"), ((0, (2, 1)), ">"), ((0, (10, 2, 2, 2)), "p"), ((0, (2, 2)), "h"),
)  # fmt: skip
NEUTRAL = "#444444"
MARKERS = ("o", "^")  # of the first classes, and of those after them
CEILING_STYLE = (0, (6, 3))
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "grid.color": "#D9D9D9",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.hashsalt": "dpprobe",
    "text.parse_math": False,  # a class name may hold a dollar sign
}
DPI = 200
SUBTLE = "#555555"
TSNE = "t-SNE"
TOP = 101.0  # of the accuracy axis: a line at 100 % is still seen whole
PAIRS, PAIRS_A_ROW = 12, 6  # of near-duplicates
LEGEND_LINE = 0.185  # inches
OPTION_TITLES = {"batch_size": "batch size", "init_scale": "scale of the initial weights"}
OPTION_LABELS = {
    "batch_size": "expected batch size (log scale)",
    "init_scale": "standard deviation of initial weights (log scale)",
}
NAMED_POINTS = 50  # among fewer, a class's name would hide its points; the legend has it


def epsilon_accuracy(
    summary: Path,
    *,
    svg: Path,
    png: Path,
    published: Published | None = None,
    name: str | None = None,
) -> None:
    """Draws a dataset's test accuracy, or its AUC, against epsilon, a line a (backbone, method).

    Colour tells the backbone, style and marker the method; with one backbone colour tells the
    method as well. Bands are the cells' 95 % intervals;
    a dashed line is a backbone's non-private ceiling; epsilon inf stands apart on the right.
    Numbered circles are published results, the legend says whose.

    Args:
      published: numbers to mark; none where absent.
      name: what they call the dataset; its own name where absent.

    Raises:
      DataError: when the summary does not hold exactly one dataset.
    """
    grid, dataset = _one_dataset(summary)
    marks: list[_Mark] = []
    if published is not None:
        headline = grid.measures[dataset].headline
        found = published.points(name or dataset, headline)
        marks = _marks(published, sorted(found, key=lambda one: one.single_epsilon or 0.0))
    with mpl.rc_context(STYLE):
        named = {name for column in grid.columns for name in column}
        height = max(4.3, 1.2 + LEGEND_LINE * (len(named) + len({mark.number for mark in marks})))
        figure = Figure(figsize=(9.0 if marks else 7.2, height), layout="constrained")
        _draw_curves(figure.add_subplot(), grid, dataset, marks)
        _save(figure, svg, png)


def method_comparison(summary: Path, *, svg: Path, png: Path) -> None:
    """Draws each backbone of a dataset apart: test results against epsilon, a colour a method.

    Raises:
      DataError: when the summary does not hold exactly one dataset.
    """
    grid, dataset = _one_dataset(summary)
    _draw_panels(
        grid, dataset, {column: _line(grid, dataset, column) for column in grid.columns},
        label=f"test {grid.measures[dataset].title} (%)", top=TOP, svg=svg, png=png,
    )  # fmt: skip


def ceiling_gap(summary: Path, *, svg: Path, png: Path) -> None:
    """Draws how far private heads stay below their backbone's non-private ceiling.

    Bands are the private cells' 95 % intervals; the ceiling's own is not in them. A backbone
    without a ceiling has no panel.

    Raises:
      DataError: when the summary does not hold exactly one dataset, or no ceiling.
    """
    grid, dataset = _one_dataset(summary)
    ceilings = {
        backbone: best.mean
        for backbone in unique(backbone for backbone, _ in grid.columns)
        if (best := best_ceiling(e for key, e in grid.entries.items() if key[2] == backbone))
    }
    if not ceilings:
        raise DataError(f"{summary}: no non-private ceiling; add a method with head: nonprivate")
    gaps: dict[tuple[str, str], dict[float, Entry]] = {}
    for column in grid.columns:
        line = _line(grid, dataset, column)
        if column[0] in ceilings and not any(entry.ceiling for entry in line.values()):
            top = ceilings[column[0]]
            gaps[column] = {
                epsilon: replace(
                    entry,
                    mean=top - entry.mean,
                    low=None if entry.high is None else top - entry.high,
                    high=None if entry.low is None else top - entry.low,
                )
                for epsilon, entry in line.items()
                if entry.private
            }
    measure = grid.measures[dataset].title
    _draw_panels(
        grid, dataset, gaps, label=f"{measure}: points below the ceiling", zero=True,
        svg=svg, png=png,
    )  # fmt: skip


def option_figure(
    cells: Sequence[Measured], option: str, *, dataset: str, svg: Path, png: Path
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
    epsilons = sorted({cell.epsilon for _, _, own in panels for cell in own})
    with mpl.rc_context(STYLE):
        figure, grid = _panel_grid(len(panels), legend=len(epsilons))
        for axes, (backbone, group, own) in zip(grid, panels, strict=True):
            _draw_option(axes, own, option, epsilons)
            axes.set_title(f"{backbone}, {own[0].head}", fontsize=9, pad=15)
            axes.text(0.0, 1.02, _span(group), transform=axes.transAxes, fontsize=7, color=SUBTLE)
        grid[0].set_ylim(top=min(grid[0].get_ylim()[1], TOP))
        _outer_label(grid, f"test {panels[0][2][0].measure.title} (%)")
        handles = [
            Line2D([], [], color=colour, linestyle=style[0], marker=style[1], label=_budget(value))
            for value, (colour, style) in zip(epsilons, _looks(len(epsilons)), strict=True)
        ]
        figure.legend(handles=handles, loc="outside right upper", handlelength=2.8)
        counts = sorted({len(cell.values) for _, _, own in panels for cell in own})
        _head(
            figure, f"{dataset}: {OPTION_TITLES[option]}",
            f"mean of {_counted(counts)}; bands: 95 % interval", panels=len(panels),
        )  # fmt: skip
        _save(figure, svg, png)


def tsne_grid(
    embeddings: Mapping[tuple[str, str], Path], *, split: str, svg: Path, png: Path
) -> None:
    """Draws embeddings by `analysis.tsne` side by side: a row a dataset, a column a backbone.

    Each panel's title has the share of nearest neighbours that t-SNE keeps, each row the colours of
    its labels, and what was drawn of a set that was larger, with its seed.

    Args:
      embeddings: by (dataset, backbone).
      split: whose features these are.

    Raises:
      DataError: when a file is not an embedding.
    """
    datasets = unique(dataset for dataset, _ in embeddings)
    backbones = unique(backbone for _, backbone in embeddings)
    with mpl.rc_context(STYLE):
        size = 2.35
        figure = Figure(
            figsize=(max(size * len(backbones) + 1.6, 5.2), (size + 0.35) * len(datasets) + 0.45),
            layout="constrained",
        )
        grid = figure.subplots(len(datasets), len(backbones), squeeze=False)
        for line, dataset in zip(grid, datasets, strict=True):
            for axes, backbone in zip(line, backbones, strict=True):
                path = embeddings.get((dataset, backbone))
                if path is None:
                    axes.set_axis_off()
                    continue
                _draw_small_plane(axes, path, backbone)
            shown = embeddings[next(key for key in embeddings if key[0] == dataset)]
            _describe_row(line, dataset, split, shown)
        figure.suptitle(
            "t-SNE; percentages: the share of a point's 15 nearest neighbours in feature space\n"
            "that it keeps. Not private: drawn from the features.",
            fontsize=8, x=0.01, ha="left", color=SUBTLE,
        )  # fmt: skip
        _save(figure, svg, png)


def tsne_figure(embedding: Path, *, svg: Path, png: Path, title: str | None = None) -> None:
    """Draws an embedding made by `analysis.tsne`, coloured by class.

    Up to 20 classes are named, in the plane and in the legend; more share a colour bar. The
    line below the title gives the share of nearest neighbours that PCA and t-SNE keep. What is
    not t-SNE says so: principal components in the title, no points by a note in their place.

    Raises:
      DataError: when the file is not an embedding.
    """
    table, facts = read_embedding(embedding)
    plane = np.column_stack([table["x"].to_numpy(), table["y"].to_numpy()])
    labels = table["label"].to_numpy()
    method = facts.get("method", TSNE)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.6, 5.4), layout="constrained")
        axes = figure.add_subplot()
        if method is None:
            _draw_empty_plane(axes, facts["note"])
        else:
            _draw_plane(
                axes, plane, labels, facts["class_names"], legend=facts.get("legend", "class")
            )
        shown = title or method or TSNE
        if title and method not in (TSNE, None):
            shown = f"{title} ({method}, not t-SNE)"
        _set_titles(axes, shown, _embedding_subtitle(facts, method))
        count = _drawn_rows(facts)
        if method == TSNE:
            count += f", perplexity {facts['perplexity']:g}"
        axes.set_xlabel(
            f"{count}. Not private: drawn from the features.",
            fontsize=8, color=SUBTLE, loc="left",
        )  # fmt: skip
        _save(figure, svg, png)


def overlap_figure(matches: Path, tables: Mapping[str, Path], *, svg: Path, png: Path) -> None:
    """Draws the private images that look most like public ones, each above its nearest.

    Args:
      matches: the table that `overlap.write_overlap` wrote.
      tables: "<dataset>/<split>" -> split table of the public rows; the private one under "".
    """
    pairs = pq.read_table(matches).slice(0, PAIRS).to_pylist()
    found = {name: SplitTable(path) for name, path in tables.items()}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.4 * -(-len(pairs) // PAIRS_A_ROW)), layout="constrained")
        grid = figure.subplots(2 * -(-len(pairs) // PAIRS_A_ROW), PAIRS_A_ROW, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for number, pair in enumerate(pairs):
            line, column = divmod(number, PAIRS_A_ROW)
            source = f"{pair['public_dataset']}/{pair['public_split']}"
            mark = "same file" if pair["exact"] else f"{pair['cosine']:.3f}"
            above, below = grid[2 * line, column], grid[2 * line + 1, column]
            _draw_image(above, found[""], pair["row"])
            _draw_image(below, found[source], pair["public_row"])
            above.set_title(mark, fontsize=8, fontweight="bold" if pair["near"] else "normal")
            below.set_title(_clipped(pair["public_id"]), fontsize=6, color=SUBTLE)
        figure.suptitle(
            "Private images (above) and the public ones nearest to them, by cosine; bold: above "
            "the threshold. Not for publication",
            fontsize=8.5,
        )
        _save(figure, svg, png)


def _draw_image(axes: Axes, table: SplitTable, row: int) -> None:
    image = next(iter(table.images(row, row + 1)))
    axes.imshow(convert(decode(image, split=table.split), "RGB"))


def _clipped(name: str) -> str:
    return name if len(name) <= 22 else f"…{name[-21:]}"


def _embedding_subtitle(facts: dict[str, Any], method: str | None) -> str:
    if method == TSNE:
        return (
            f"{facts['neighbours']} nearest neighbours kept: "
            f"PCA ({facts['components']}) {_percent(facts['pca_agreement'])}, "
            f"t-SNE {_percent(facts['tsne_agreement'])}"
        )
    return "" if method is None else str(facts["note"])


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """Where epsilons stand: at their logarithm, with infinity a step to the right."""

    finite: tuple[float, ...]
    infinite: bool
    curves: int

    @property
    def end(self) -> float:
        return math.log10(self.finite[-1]) if self.finite else 0.0

    @property
    def start(self) -> float:
        return math.log10(self.finite[0]) if self.finite else 0.0

    @property
    def gap(self) -> float:
        # Many cells at infinity stand side by side and need more room.
        share = 0.18 + 0.012 * max(0, self.curves - 4)
        return max(share * (self.end - self.start), 0.12)

    def position(self, epsilon: float) -> float:
        return math.log10(epsilon) if math.isfinite(epsilon) else self.end + self.gap


@dataclass(frozen=True, kw_only=True)
class _Mark:
    """A published point: its number in the figure, where it stands, what the legend says."""

    number: int
    epsilon: float
    percent: float
    label: str


def _marks(published: Published, points: Sequence[Number]) -> list[_Mark]:
    """Equal sources and columns share a number."""
    labels = [
        ", ".join(filter(None, (published.citations[point.citation].short, point.what)))
        for point in points
    ]
    for index, (label, point) in enumerate(zip(tuple(labels), points, strict=True)):
        if labels.count(label) == 1:
            labels[index] = f"{label} (ε {point.single_epsilon:g})"
    numbers = {label: number for number, label in enumerate(unique(labels), start=1)}
    return [
        _Mark(
            number=numbers[label], epsilon=point.single_epsilon or 0.0, percent=point.percent,
            label=label,
        )
        for label, point in zip(labels, points, strict=True)
    ]  # fmt: skip


def _one_dataset(summary: Path) -> tuple[Grid, str]:
    grid = read_grid([summary])
    datasets = sorted({row[0] for row in grid.rows})
    if len(datasets) != 1:
        raise DataError(f"{summary}: holds {len(datasets)} datasets; a figure shows exactly one")
    return grid, datasets[0]


def _draw_curves(axes: Axes, grid: Grid, dataset: str, marks: Sequence[_Mark] = ()) -> None:
    epsilons = [row[1] for row in grid.rows]
    finite = tuple(value for value in epsilons if math.isfinite(value))
    ends = [mark.epsilon for mark in marks]
    reach = tuple(sorted({*finite, *([min(ends), max(ends)] if ends else [])}))
    backbones = list(dict.fromkeys(backbone for backbone, _ in grid.columns))
    lines = {column: _line(grid, dataset, column) for column in grid.columns}
    ceilings = {c: line for c, line in lines.items() if any(e.ceiling for e in line.values())}
    methods = list(dict.fromkeys(m for b, m in grid.columns if (b, m) not in ceilings))
    styles = {name: look[1] for name, look in zip(methods, _looks(len(methods)), strict=True)}
    # One backbone's name needs no colour: the methods then have it.
    coloured = backbones if len(backbones) > 1 else methods
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(coloured)}
    curves = {column: line for column, line in lines.items() if column not in ceilings}
    painted = {(b, m): colours[b if len(backbones) > 1 else m] for b, m in curves}
    scale = _Scale(finite=reach, infinite=len(finite) < len(epsilons), curves=len(curves))
    _draw_epsilon_axis(axes, scale, finite, others=ends)
    axes.set_ylabel(f"test {grid.measures[dataset].title} (%)")
    for (backbone, _), line in ceilings.items():
        for entry in line.values():
            colour = colours[backbone] if len(backbones) > 1 else NEUTRAL
            axes.axhline(entry.mean, color=colour, linestyle=CEILING_STYLE, linewidth=1)
    alpha = 0.18 if len(curves) <= 8 else 0.07
    for (backbone, method), line in curves.items():
        _draw_line(axes, scale, line, painted[backbone, method], styles[method], alpha)
    _draw_infinite(axes, scale, curves, painted, styles)
    _draw_marks(axes, scale, marks)
    # A t interval may reach past 100 %; the axis need not.
    axes.set_ylim(top=min(axes.get_ylim()[1], TOP))
    _draw_legend(axes, backbones, colours, styles, ceiling=bool(ceilings), marks=marks)
    _draw_captions(axes, grid, dataset)


def _line(grid: Grid, dataset: str, column: tuple[str, str]) -> dict[float, Entry]:
    rows = {row[1]: grid.get(row, column) for row in grid.rows if row[0] == dataset}
    return {epsilon: entry for epsilon, entry in rows.items() if entry is not None}


def _draw_line(
    axes: Axes,
    scale: _Scale,
    line: dict[float, Entry],
    colour: str,
    style: tuple[Any, str],
    alpha: float,
) -> None:
    dashes, marker = style
    finite = [epsilon for epsilon in line if math.isfinite(epsilon)]
    x = [scale.position(epsilon) for epsilon in finite]
    axes.plot(
        x, [line[epsilon].mean for epsilon in finite],
        color=colour, linestyle=dashes, marker=marker, markeredgecolor="white", markeredgewidth=0.5,
    )  # fmt: skip
    banded = [epsilon for epsilon in finite if line[epsilon].low is not None]
    axes.fill_between(
        [scale.position(epsilon) for epsilon in banded],
        [line[epsilon].low or 0.0 for epsilon in banded],
        [line[epsilon].high or 0.0 for epsilon in banded],
        color=colour, alpha=alpha, linewidth=0,
    )  # fmt: skip


def _draw_infinite(
    axes: Axes,
    scale: _Scale,
    curves: dict[tuple[str, str], dict[float, Entry]],
    painted: dict[tuple[str, str], str],
    styles: dict[str, tuple[Any, str]],
) -> None:
    """The cells at epsilon inf, side by side so that their intervals can be told apart."""
    present = [column for column, line in curves.items() if math.inf in line]
    offsets = [0.0] if len(present) == 1 else np.linspace(-0.3, 0.3, len(present))
    for (backbone, method), offset in zip(present, offsets, strict=True):
        entry = curves[backbone, method][math.inf]
        reach = [[0.0], [0.0]]
        if entry.low is not None and entry.high is not None:
            # a mean of equal values may be rounded past an interval of no width
            reach = [[max(0.0, entry.mean - entry.low)], [max(0.0, entry.high - entry.mean)]]
        axes.errorbar(
            scale.position(math.inf) + offset * scale.gap, entry.mean, yerr=reach,
            color=painted[backbone, method], marker=styles[method][1], markersize=4,
            markerfacecolor="white", elinewidth=1.0,
        )  # fmt: skip


def _draw_marks(axes: Axes, scale: _Scale, marks: Sequence[_Mark]) -> None:
    """Numbered circles; those that would hide each other stand side by side."""
    if not marks:
        return
    values = [mark.percent for mark in marks]
    low, high = axes.get_ylim()
    low, high = min(low, *values), max(high, *values)
    pad = 0.05 * (high - low)
    axes.set_ylim(low - pad, high + pad)
    width = 0.033 * (scale.end - scale.start + 2 * scale.gap)
    placed: list[tuple[float, float]] = []
    for mark in sorted(marks, key=lambda one: (one.epsilon, one.percent)):
        true = scale.position(mark.epsilon), mark.percent
        place = _free_place(true, placed, (width, 0.8 * pad), top=100.0)
        placed.append(place)
        if place != true:  # a line leads to where it belongs
            axes.plot(
                [true[0], place[0]], [true[1], place[1]], color=NEUTRAL, linewidth=0.6, marker=".",
                markersize=3, markevery=[0], zorder=3.5,
            )  # fmt: skip
        axes.plot(
            *place, marker="o", markersize=9.5, linestyle="none", color="white",
            markeredgecolor=NEUTRAL, markeredgewidth=0.9, zorder=4,
        )  # fmt: skip
        axes.annotate(
            f"{mark.number}", place, ha="center", va="center_baseline", fontsize=6.5,
            color=NEUTRAL, zorder=5,
        )  # fmt: skip


_STEPS = sorted(
    ((across, up) for across in range(-12, 13) for up in range(-12, 13)),
    key=lambda step: (step[0] ** 2 + step[1] ** 2, step),
)


def _free_place(
    true: tuple[float, float],
    placed: Sequence[tuple[float, float]],
    size: tuple[float, float],
    *,
    top: float,
) -> tuple[float, float]:
    """The place nearest to the true one where a circle of that size hides none of the others."""
    for across, up in _STEPS:
        x, y = true[0] + across * size[0], true[1] + up * size[1]
        free = all(
            abs(x - px) >= 0.95 * size[0] or abs(y - py) >= 0.95 * size[1] for px, py in placed
        )
        if free and (y <= top or up == 0):
            return x, y
    return true


def _draw_epsilon_axis(
    axes: Axes,
    scale: _Scale,
    shown: Sequence[float] | None = None,
    *,
    others: Sequence[float] = (),
    width: float = 1.0,
) -> None:
    """Ticks at the epsilons shown, all of the scale's where absent, and at others with room.

    Args:
      width: the axis is so many times 5 inches long.
    """
    texts: dict[float, str] = {}
    taken: list[tuple[float, float]] = []
    # Labels that would run into one before are left out; ticks of what is shown stay.
    character = 0.0175 * (scale.end - scale.start + scale.gap) / width
    for epsilon in scale.finite if shown is None else shown:
        _place_tick(epsilon, scale, character, texts, taken)
    for epsilon in sorted(set(others) - texts.keys()):
        _place_tick(epsilon, scale, character, texts, taken)
        if not texts[epsilon]:
            del texts[epsilon]
    ticks = [scale.position(epsilon) for epsilon in texts]
    labels = list(texts.values())
    if scale.infinite:
        ticks.append(scale.position(math.inf))
        labels.append("∞\n(no privacy)")
        if scale.finite:
            axes.axvline(scale.end + scale.gap / 2, color="#BBBBBB", linewidth=0.8, zorder=0.5)
    axes.set_xticks(ticks, labels)
    margin = 0.4 * scale.gap
    axes.set_xlim(scale.start - margin, max(ticks) + margin)
    axes.set_xlabel("privacy budget ε (log scale)")
    axes.grid(axis="y")


def _place_tick(
    epsilon: float,
    scale: _Scale,
    character: float,
    texts: dict[float, str],
    taken: list[tuple[float, float]],
) -> None:
    """Labels an epsilon where no label stands yet, else leaves its label empty."""
    text, place = f"{epsilon:g}", scale.position(epsilon)
    half = character * len(text) / 2
    low, high = place - half - 0.2 * character, place + half + 0.2 * character
    free = all(high <= left or low >= right for left, right in taken)
    texts[epsilon] = text if free else ""
    if free:
        taken.append((low, high))


def _draw_legend(
    axes: Axes,
    backbones: list[str],
    colours: dict[str, str],
    styles: dict[str, tuple[Any, str]],
    *,
    ceiling: bool,
    marks: Sequence[_Mark] = (),
) -> None:
    handles = [_heading("Backbone")]
    if len(backbones) == 1:
        handles += [_heading(backbones[0])]
    else:
        handles += [Line2D([], [], color=c, linewidth=4, label=name) for name, c in colours.items()]
    if styles:
        handles += [_heading(""), _heading("Method")]
        handles += [
            Line2D(
                [], [], color=colours[name] if len(backbones) == 1 else NEUTRAL,
                linestyle=dashes, marker=marker, label=name,
            )
            for name, (dashes, marker) in styles.items()
        ]  # fmt: skip
    if ceiling:
        handles.append(
            Line2D([], [], color=NEUTRAL, linestyle=CEILING_STYLE, linewidth=1,
                   label="non-private ceiling")
        )  # fmt: skip
    if marks:
        handles += [_heading(""), _heading("Published")]
        handles += [
            Line2D(
                [], [], linestyle="none", marker="o", markersize=7, color="white",
                markeredgecolor=NEUTRAL, markeredgewidth=0.9, label=f"{number}  {label}",
            )
            for number, label in unique((mark.number, mark.label) for mark in marks)
        ]  # fmt: skip
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    legend = figure.legend(handles=handles, loc="outside right upper", handlelength=2.8)
    for text in legend.get_texts():
        if text.get_text() in ("Backbone", "Method", "Published"):
            text.set_fontweight("bold")


def _heading(text: str) -> Line2D:
    return Line2D([], [], linestyle="none", label=text)


def _draw_captions(axes: Axes, grid: Grid, dataset: str) -> None:
    _set_titles(axes, *_captions(grid, dataset))


def _captions(grid: Grid, dataset: str) -> tuple[str, str]:
    """The dataset with its delta, and what lines and bands are."""
    entries = grid.entries.values()
    delta = f", δ = {_power(grid.deltas[dataset])}" if dataset in grid.deltas else ""
    over = {entry.interval for entry in entries if entry.private and entry.interval}
    kind = "over seeds" if over == {SEED_INTERVAL} else "over test rows" if over else None
    bands = f"; bands: 95 % interval {kind}" if kind else ""
    seeds = sorted({entry.seeds for entry in entries})
    return f"{dataset}{delta}", f"mean of {_counted(seeds)}{bands}"


def _draw_panels(
    grid: Grid,
    dataset: str,
    lines: Mapping[tuple[str, str], dict[float, Entry]],
    *,
    label: str,
    svg: Path,
    png: Path,
    top: float = math.inf,
    zero: bool = False,
) -> None:
    """A panel a backbone, against finite epsilons, a colour and a style a method."""
    curves = {
        column: line
        for column, line in lines.items()
        if not any(entry.ceiling for entry in line.values())
    }
    backbones = unique(backbone for backbone, _ in curves)
    methods = unique(method for _, method in curves)
    looks = dict(zip(methods, _looks(len(methods)), strict=True))
    finite = tuple(sorted({e for line in curves.values() for e in line if math.isfinite(e)}))
    if not finite:
        raise DataError(f"{dataset}: no cell at a finite epsilon; add one to the study")
    with mpl.rc_context(STYLE):
        figure, panels = _panel_grid(len(backbones), legend=len(methods) + 1)
        scale = _Scale(finite=finite, infinite=False, curves=len(methods))
        for axes, backbone in zip(panels, backbones, strict=True):
            _draw_epsilon_axis(axes, scale, width=0.5)
            for (own, method), line in curves.items():
                if own == backbone:
                    _draw_line(axes, scale, line, looks[method][0], looks[method][1], 0.12)
            ceiling = [
                entry.mean
                for (own, _), line in lines.items()
                for entry in line.values()
                if own == backbone and entry.ceiling
            ]
            if zero or ceiling:
                axes.axhline(
                    0.0 if zero else max(ceiling),
                    color=NEUTRAL, linestyle=CEILING_STYLE, linewidth=1,
                )  # fmt: skip
            axes.set_title(backbone, fontsize=9)
        # The panels share their axis: a limit set before the last is drawn would be its end.
        panels[0].set_ylim(top=min(panels[0].get_ylim()[1], top))
        _outer_label(panels, label)
        handles = [
            Line2D([], [], color=colour, linestyle=style[0], marker=style[1], label=method)
            for method, (colour, style) in looks.items()
        ]
        if any(entry.ceiling for entry in grid.entries.values()):
            handles.append(
                Line2D([], [], color=NEUTRAL, linestyle=CEILING_STYLE, linewidth=1,
                       label="non-private ceiling")
            )  # fmt: skip
        figure.legend(handles=handles, loc="outside right upper", handlelength=2.8)
        title, caption = _captions(grid, dataset)
        _head(figure, title, caption, panels=len(backbones))
        _save(figure, svg, png)


def _head(figure: Figure, title: str, caption: str, *, panels: int) -> None:
    """The figure's title; above a single panel there is no room for one line."""
    text = f"{title}\n{caption}" if panels == 1 else f"{title}; {caption}"
    figure.suptitle(text, fontsize=9, x=0.01, ha="left")


def _panel_grid(panels: int, *, legend: int) -> tuple[Figure, list[Axes]]:
    """Up to three panels a row, one y axis, as high as the lines of the legend."""
    columns = min(panels, 3)
    rows = -(-panels // columns)
    figure = Figure(
        figsize=(max(2.6 * columns, 4.2) + 2.2, max(2.7 * rows + 0.5, 0.6 + LEGEND_LINE * legend)),
        layout="constrained",
    )
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    axes = [one for line in grid for one in line]
    for spare in axes[panels:]:
        spare.set_axis_off()
    return figure, axes[:panels]


def _outer_label(panels: Sequence[Axes], label: str) -> None:
    for axes in panels:
        place = axes.get_subplotspec()
        if place is not None and place.is_first_col():
            axes.set_ylabel(label, fontsize=8.5)


def _looks(count: int) -> list[tuple[str, tuple[Any, str]]]:
    """A colour and a style each; colours come again with other styles."""
    return [
        (COLOURS[index % len(COLOURS)], STYLES[(index + index // len(COLOURS)) % len(STYLES)])
        for index in range(count)
    ]


def _draw_option(
    axes: Axes, cells: Sequence[Measured], option: str, epsilons: Sequence[float]
) -> None:
    """One line an epsilon; a scale of 0 stands left of the logarithmic axis."""
    places = {cell.method: _place(cell, option) for cell in cells}
    positive = sorted({value for value in places.values() if value > 0})
    left = positive[0] / 10 if positive else 1.0
    for epsilon, (colour, style) in zip(epsilons, _looks(len(epsilons)), strict=True):
        own = sorted(
            ((places[cell.method] or left, cell) for cell in cells if cell.epsilon == epsilon),
            key=lambda pair: pair[0],
        )
        axes.plot(
            [x for x, _ in own], [100 * cell.mean for _, cell in own], color=colour,
            linestyle=style[0], marker=style[1], markeredgecolor="white", markeredgewidth=0.5,
        )  # fmt: skip
        banded = [(x, cell) for x, cell in own if cell.low is not None]
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


def _place(cell: Measured, option: str) -> float:
    if option == "batch_size":
        return float(cell.batch_size or 0)
    kind, scale = cell.options["init"], cell.options["init_scale"]
    if kind == "zero":
        return 0.0
    return float(cell.dimension**-0.5 if kind == "lecun_normal" else scale or INIT_DEVIATION)


def _tick(value: float, cells: Sequence[Measured], option: str) -> str:
    if option == "batch_size":
        full = value == max(cell.train_rows for cell in cells)
        return f"{value:,.0f}" + ("\n(all)" if full else "")
    lecun = any(
        cell.options["init"] == "lecun_normal" and _place(cell, option) == value for cell in cells
    )
    return "\n1/√d" if lecun else f"{value:g}"  # on a line of its own: it may be near another


def _budget(epsilon: float) -> str:
    return f"ε = {epsilon:g}" if math.isfinite(epsilon) else "ε = ∞"


def _span(group: Sequence[str]) -> str:
    return f"{group[0]} … {group[-1]}"


def _counted(counts: Sequence[int]) -> str:
    text = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{text} seed{'' if counts[-1] == 1 else 's'}"


def _draw_small_plane(axes: Axes, path: Path, backbone: str) -> None:
    table, facts = read_embedding(path)
    if facts.get("method", TSNE) is None:
        _draw_empty_plane(axes, "no points")
        axes.set_title(backbone, fontsize=9)
        return
    plane = np.column_stack([table["x"].to_numpy(), table["y"].to_numpy()])
    labels = table["label"].to_numpy()
    order = np.random.Generator(np.random.Philox(0)).permutation(len(plane))
    named = len(facts["class_names"]) <= NAMED_CLASSES
    size = float(np.clip(2500 / len(plane), 0.8, 8))
    _draw_points(axes, plane[order], labels[order], size=size, named=named)
    axes.set_aspect("equal", adjustable="datalim")
    _frame(axes)
    kept = facts["tsne_agreement"]
    axes.set_title(backbone if kept is None else f"{backbone}, {_percent(kept)}", fontsize=9)


def _describe_row(line: Sequence[Axes], dataset: str, split: str, path: Path) -> None:
    """A row's name on the left, what was drawn under it, its labels' colours on the right."""
    _, facts = read_embedding(path)
    line[0].set_ylabel(f"{dataset} {split}", fontsize=9, fontweight="bold")
    line[0].set_xlabel(_drawn_rows(facts), fontsize=7, color=SUBTLE, loc="left")
    names = [str(name) for name in facts["class_names"]]
    if len(names) > NAMED_CLASSES // 2:
        line[-1].set_xlabel(f"{len(names)} classes", fontsize=7, color=SUBTLE, loc="right")
    if len(names) > NAMED_CLASSES:
        return
    shown = [name if len(name) <= 18 else f"{name[:17]}…" for name in names]
    handles = _class_handles(shown, markersize=4)
    line[-1].legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=7,
        handletextpad=0.1, labelspacing=0.25, borderaxespad=0.0,
    )  # fmt: skip


def _drawn_rows(facts: Mapping[str, Any]) -> str:
    """How many rows are drawn, of a larger set with the seed of the sample."""
    text = f"{facts['points']:,} of {facts['rows']:,} rows"
    if facts["points"] < facts["rows"] and facts.get("seed") is not None:
        text += f", sampled with seed {facts['seed']}"
    return text


def _set_titles(axes: Axes, title: str, subtitle: str) -> None:
    axes.set_title(f"{title}\n")
    axes.text(0.0, 1.02, subtitle, transform=axes.transAxes, fontsize=8, color=SUBTLE)


def _draw_empty_plane(axes: Axes, note: str) -> None:
    axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", va="center")
    _frame(axes)


def _frame(axes: Axes) -> None:
    """A frame without ticks: the plane's units mean nothing."""
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(True)
        side.set_color("#BBBBBB")


def _draw_plane(
    axes: Axes,
    plane: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    *,
    legend: str = "class",
) -> None:
    size = float(np.clip(9000 / len(plane), 3, 16))
    named = len(names) <= NAMED_CLASSES
    # Drawn in a shuffled order, so that no class lies on top of the others.
    order = np.random.Generator(np.random.Philox(0)).permutation(len(plane))
    points = _draw_points(axes, plane[order], labels[order], size=size, named=named)
    axes.set_aspect("equal", adjustable="datalim")
    _frame(axes)
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    if not named:
        label = f"class index (of {len(names)})" if legend == "class" else legend
        figure.colorbar(points, ax=axes, label=label, shrink=0.8)
        return
    handles = _class_handles(names, markersize=5)
    figure.legend(handles=handles, loc="outside right upper", title=legend, handletextpad=0.2)
    for index, name in enumerate(names):
        own = plane[labels == index]
        if len(own) and len(plane) >= NAMED_POINTS:
            _draw_name(axes, own, str(name))


def _draw_points(
    axes: Axes, plane: np.ndarray, labels: np.ndarray, *, size: float, named: bool
) -> PathCollection:
    """Points by class: a colour and a marker each, or a colour bar's where there are too many."""
    points = axes.scatter(
        plane[:, 0], plane[:, 1], s=size, linewidths=0, alpha=0.75, rasterized=True,
        c=np.array(CLASS_COLOURS)[labels] if named else labels, cmap=None if named else "viridis",
    )  # fmt: skip
    if named and len(labels):
        markers = [MarkerStyle(marker) for marker in MARKERS]
        paths = [marker.get_path().transformed(marker.get_transform()) for marker in markers]
        points.set_paths([paths[int(label >= CIRCLES)] for label in labels])
    return points


def _class_handles(names: Sequence[str], *, markersize: float) -> list[Line2D]:
    return [
        Line2D([], [], linestyle="none", marker=MARKERS[int(index >= CIRCLES)],
               markersize=markersize, color=CLASS_COLOURS[index], label=name)
        for index, name in enumerate(names)
    ]  # fmt: skip


def _draw_name(axes: Axes, own: np.ndarray, name: str) -> None:
    """Writes a class's name at its most central point: a median may fall between two clusters."""
    distance = np.abs(own - np.median(own, axis=0)).sum(axis=1)
    x, y = own[int(distance.argmin())]
    text = axes.text(float(x), float(y), name, ha="center", va="center", fontsize=8.5, zorder=3)
    text.set_path_effects([withStroke(linewidth=2.5, foreground="white")])


def _power(value: float) -> str:
    """A small number for a title: 1e-5 as a power of ten."""
    mantissa, exponent = f"{value:.2e}".split("e")
    factor = f"{float(mantissa):g}"
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if factor == "1" else f"{factor} × 10{raised}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _save(figure: Figure, svg: Path, png: Path) -> None:
    """Writes both files without a date or a version, so that equal figures are equal bytes."""
    with atomic_path(svg) as temporary:
        figure.savefig(
            temporary, format="svg", dpi=DPI, metadata={"Date": None, "Creator": "dpprobe"}
        )
    with atomic_path(png) as temporary:
        figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})
