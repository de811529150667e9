"""Figures: accuracy or AUC against epsilon, and the t-SNE plane. The only user of matplotlib.

Colours are those of Okabe and Ito, safe for colour-blind readers; lines also differ by style and
marker. The same input gives the same bytes, so that a figure can be compared by its hash.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from pyarrow import parquet as pq

from dpprobe.analysis import read_embedding
from dpprobe.artifacts import atomic_path
from dpprobe.backbones.images import convert
from dpprobe.data.table import SplitTable, decode
from dpprobe.errors import DataError
from dpprobe.metrics import SEED_INTERVAL
from dpprobe.summary import Entry, Grid, read_grid

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
CEILING_STYLE = (0, (6, 3))
CLASS_COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#B8A800",
    "#882255", "#999999", "#332288", "#117733", "#DDCC77", "#AA4499", "#44AA99", "#661100",
    "#6699CC", "#AA4466", "#999933", "#4A4A4A",
)  # fmt: skip
NAMED_CLASSES = len(CLASS_COLOURS)  # more classes than this share a colour bar
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
NAMED_POINTS = 50  # among fewer, a class's name would hide its points; the legend has it


def epsilon_accuracy(summary: Path, *, svg: Path, png: Path) -> None:
    """Draws a dataset's test accuracy, or its AUC, against epsilon, a line a (backbone, method).

    Colour tells the backbone, style and marker the method; with one backbone colour tells the
    method as well. Bands are the cells' 95 % intervals;
    a dashed line is a backbone's non-private ceiling; epsilon inf stands apart on the right.

    Raises:
      DataError: when the summary does not hold exactly one dataset.
    """
    grid = read_grid([summary])
    datasets = sorted({row[0] for row in grid.rows})
    if len(datasets) != 1:
        raise DataError(f"{summary}: holds {len(datasets)} datasets; a figure shows exactly one")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.3), layout="constrained")
        _draw_curves(figure.add_subplot(), grid, datasets[0])
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
        count = f"{facts['points']:,} of {facts['rows']:,} rows"
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


def _draw_curves(axes: Axes, grid: Grid, dataset: str) -> None:
    epsilons = [row[1] for row in grid.rows]
    finite = tuple(value for value in epsilons if math.isfinite(value))
    backbones = list(dict.fromkeys(backbone for backbone, _ in grid.columns))
    lines = {column: _line(grid, dataset, column) for column in grid.columns}
    ceilings = {c: line for c, line in lines.items() if any(e.ceiling for e in line.values())}
    methods = list(dict.fromkeys(m for b, m in grid.columns if (b, m) not in ceilings))
    styles = {name: STYLES[i % len(STYLES)] for i, name in enumerate(methods)}
    # One backbone's name needs no colour: the methods then have it.
    coloured = backbones if len(backbones) > 1 else methods
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(coloured)}
    curves = {column: line for column, line in lines.items() if column not in ceilings}
    painted = {(b, m): colours[b if len(backbones) > 1 else m] for b, m in curves}
    scale = _Scale(finite=finite, infinite=len(finite) < len(epsilons), curves=len(curves))
    _draw_epsilon_axis(axes, scale)
    axes.set_ylabel(f"test {grid.measures[dataset].title} (%)")
    for (backbone, _), line in ceilings.items():
        for entry in line.values():
            colour = colours[backbone] if len(backbones) > 1 else NEUTRAL
            axes.axhline(entry.mean, color=colour, linestyle=CEILING_STYLE, linewidth=1)
    alpha = 0.18 if len(curves) <= 8 else 0.07
    for (backbone, method), line in curves.items():
        _draw_line(axes, scale, line, painted[backbone, method], styles[method], alpha)
    _draw_infinite(axes, scale, curves, painted, styles)
    # A t interval may reach past 100 %; the axis need not.
    axes.set_ylim(top=min(axes.get_ylim()[1], TOP))
    _draw_legend(axes, backbones, colours, styles, ceiling=bool(ceilings))
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


def _draw_epsilon_axis(axes: Axes, scale: _Scale) -> None:
    ticks = [scale.position(epsilon) for epsilon in scale.finite]
    texts = [f"{epsilon:g}" for epsilon in scale.finite]
    # Labels that would run into the one before are left out; their ticks stay.
    character = 0.0175 * (scale.end - scale.start + scale.gap)
    free = -math.inf
    for index, tick in enumerate(ticks):
        half = character * len(texts[index]) / 2
        if tick - half < free:
            texts[index] = ""
        else:
            free = tick + half + 0.4 * character
    if scale.infinite:
        ticks.append(scale.position(math.inf))
        texts.append("∞\n(no privacy)")
        if scale.finite:
            axes.axvline(scale.end + scale.gap / 2, color="#BBBBBB", linewidth=0.8, zorder=0.5)
    axes.set_xticks(ticks, texts)
    margin = 0.4 * scale.gap
    axes.set_xlim(scale.start - margin, max(ticks) + margin)
    axes.set_xlabel("privacy budget ε (log scale)")
    axes.grid(axis="y")


def _draw_legend(
    axes: Axes,
    backbones: list[str],
    colours: dict[str, str],
    styles: dict[str, tuple[Any, str]],
    *,
    ceiling: bool,
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
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    legend = figure.legend(handles=handles, loc="outside right upper", handlelength=2.8)
    for text in legend.get_texts():
        if text.get_text() in ("Backbone", "Method"):
            text.set_fontweight("bold")


def _heading(text: str) -> Line2D:
    return Line2D([], [], linestyle="none", label=text)


def _draw_captions(axes: Axes, grid: Grid, dataset: str) -> None:
    entries = grid.entries.values()
    seeds = sorted({entry.seeds for entry in entries})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    delta = f", δ = {_power(grid.deltas[dataset])}" if dataset in grid.deltas else ""
    plural = "" if seeds[-1] == 1 else "s"
    over = {entry.interval for entry in entries if entry.private and entry.interval}
    kind = "over seeds" if over == {SEED_INTERVAL} else "over test rows" if over else None
    bands = f"; bands: 95 % interval {kind}" if kind else ""
    _set_titles(axes, f"{dataset}{delta}", f"mean of {count} seed{plural}{bands}")


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
    colours: Any = labels[order]
    if named:
        colours = np.array(CLASS_COLOURS)[labels[order]]
    points = axes.scatter(
        plane[order, 0], plane[order, 1], s=size, c=colours, linewidths=0, alpha=0.75,
        rasterized=True, cmap=None if named else "viridis",
    )  # fmt: skip
    axes.set_aspect("equal", adjustable="datalim")
    _frame(axes)
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    if not named:
        label = f"class index (of {len(names)})" if legend == "class" else legend
        figure.colorbar(points, ax=axes, label=label, shrink=0.8)
        return
    handles = [
        Line2D([], [], linestyle="none", marker="o", markersize=5, color=colour, label=name)
        for name, colour in zip(names, CLASS_COLOURS, strict=False)
    ]
    figure.legend(handles=handles, loc="outside right upper", title=legend, handletextpad=0.2)
    for index, name in enumerate(names):
        own = plane[labels == index]
        if len(own) and len(plane) >= NAMED_POINTS:
            _draw_name(axes, own, str(name))


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
