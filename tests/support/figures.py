"""Made-up summaries and embeddings, and the words and bytes of figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow as pa
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text

from dpprobe.artifacts import write_table
from dpprobe.exhibits import style
from dpprobe.reporting.figures import curves
from dpprobe.results.summary import read_grid, summarise_cells
from tests.support.cell_files import write_study

mpl.rcParams.update(style.SETTINGS)  # figures are drawn as `make_exhibit` draws them


def write_summary(
    root: Path,
    *,
    backbones: Sequence[str] = ("pixels", "scattering"),
    methods: Sequence[str] = ("sgd", "sgd_full", "nonprivate"),
    epsilons: Sequence[str] = ("0.5", "1", "8", "inf"),
) -> Path:
    """Writes a study of one dataset and returns its summary."""
    cells = write_study(root, backbones=backbones, methods=methods, epsilons=epsilons)
    summarise_cells(cells, root / "summary.parquet", study="study")
    return root / "summary.parquet"


def curve_axes(summary: Path) -> Any:
    """Draws a summary of digits and returns the axes."""
    axes = Figure().add_subplot()
    curves._draw_curves(axes, read_grid([summary]), "digits")
    return axes


def write_embedding(path: Path, *, classes: int, rows: int = 300, **changes: Any) -> Path:
    """Writes an embedding of random points, its facts changed as given."""
    generator = np.random.default_rng(0)
    labels = generator.integers(classes, size=rows)
    plane = generator.normal(size=(rows, 2)) + 8 * generator.normal(size=(classes, 2))[labels]
    facts = {
        "format": "dpprobe-embedding",
        "format_version": 1,
        "rows": 2 * rows,
        "points": rows,
        "class_names": [f"class {index}" for index in range(classes)],
        "perplexity": 30.0,
        "neighbours": 15,
        "components": 50,
        "pca_agreement": 0.973,
        "tsne_agreement": 0.614,
        "method": "t-SNE",
        "legend": "class",
    }
    facts |= changes
    table = pa.table(
        {
            "id": [str(row) for row in range(rows)],
            "label": labels,
            "x": plane[:, 0].astype(np.float32),
            "y": plane[:, 1].astype(np.float32),
        }
    )
    write_table(path, table.replace_schema_metadata({b"dpprobe": json.dumps(facts).encode()}))
    return path


def save_bytes(figure: Figure, stem: Path) -> tuple[bytes, ...]:
    """Saves a figure in both formats, and returns their bytes."""
    paths = [stem.with_suffix(ending) for ending in (".svg", ".png")]
    for path in paths:
        style.save_figure(figure, path)
    return tuple(path.read_bytes() for path in paths)


LOOKS = (
    "color",
    "facecolor",
    "edgecolor",
    "linestyle",
    "linewidth",
    "marker",
    "markersize",
    "markerfacecolor",
    "markeredgewidth",
    "fontsize",
    "ha",
    "va",
    "alpha",
    "zorder",
)


def describe_figure(figure: Figure) -> list[str]:
    """Returns a line per text, axis, curve, area and legend of a figure: its place and look."""
    legends = [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]
    lines = [f"figure {_shorten(figure.get_size_inches())}", *map(_describe, figure.texts)]
    for axes in figure.axes:
        both = (axes.xaxis, axes.yaxis)
        frame = {*axes.spines.values(), *both, axes.patch, axes.get_legend()}
        limits = _shorten([*axes.get_xlim(), *axes.get_ylim()])
        kind = f"{axes.axison} {axes.get_xscale()} {axes.get_yscale()} {axes.get_aspect()}"
        lines.append(f"axes {kind} {limits} at {_shorten(axes.get_position().bounds)}")
        for axis in both:
            ticks: list[Any] = [text.get_text() for text in axis.get_ticklabels()]
            ticks += [text.get_fontsize() for text in axis.get_ticklabels()[:1]]
            grid = [line.get_visible() for line in axis.get_gridlines()[:1]]
            lines.append(
                f"axis {axis.label.get_text()!r} {axis.label.get_fontsize()} {ticks} {grid}"
            )
        lines += [
            _describe(part)
            for part in axes.get_children()
            if part not in frame and (not isinstance(part, Text) or part.get_text())
        ]
    for legend in legends:
        room = (
            legend.handlelength,
            legend.handletextpad,
            legend.labelspacing,
            vars(legend)["_ncols"],
        )
        sizes = {text.get_fontsize() for text in legend.get_texts()}
        lines.append(f"legend of {legend.get_title().get_text()!r} {room} {sizes}")
        handles = map(_look_in_words, filter(None, legend.legend_handles))
        lines += [
            f"legend {text.get_text()!r} {handle}"
            for text, handle in zip(legend.get_texts(), handles, strict=True)
        ]
    return lines


def _describe(part: Any) -> str:
    places = [
        _shorten(getattr(part, f"get_{name}")())
        for name in ("xydata", "offsets", "position", "array", "sizes")
        if hasattr(part, f"get_{name}") and getattr(part, f"get_{name}")() is not None
    ]
    paths = part.get_paths() if hasattr(part, "get_paths") else []
    paths = [part.get_path()] if isinstance(part, Patch) else paths
    places += [_shorten(np.concatenate([path.vertices for path in paths]))] if paths else []
    text = part.get_text() if isinstance(part, Text) else str(part.get_label())
    name = f"{type(part).__name__} " + ("" if text.startswith("_") else repr(text))
    places += [_shorten(part.xy)] if isinstance(part, Annotation) else []
    return " ".join([name, _look_in_words(part), *places])


def _look_in_words(part: Any) -> str:
    words = []
    for name in LOOKS:
        value = getattr(part, f"get_{name}", lambda: None)()
        if isinstance(value, np.ndarray | list):
            value = "/".join(
                to_hex(tuple(one), True) if isinstance(one, np.ndarray) else str(one)
                for one in value[:4]
            )
        words += [] if value is None else [str(value)]
    return " ".join(words)


def _shorten(values: Any) -> str:
    numbers = np.asarray(values, dtype=np.float64).ravel()
    if len(numbers) > 14:  # the sums notice another number, and another order
        known = np.nan_to_num(numbers)
        turns = np.cos(np.arange(len(known)))
        sums = [len(numbers), np.isnan(numbers).sum(), known.sum(), known @ turns]
        return "sums " + " ".join(f"{value:.4g}" for value in sums)
    return " ".join(f"{value:.5g}" for value in numbers)


def bar_ends(container: Any, *, across: bool = False) -> np.ndarray:
    """Returns the ends of each error bar, [n, 2]."""
    (bars,) = container.lines[2]
    return np.array([segment[:, 0 if across else 1] for segment in bars.get_segments()])


def drawn_bars(axes: Any, *, across: bool = False) -> list[tuple[float, float, float, float]]:
    """Returns place, mean and both ends of every error bar, in the order of drawing."""
    found = []
    for container in axes.containers:
        points = np.asarray(container.lines[0].get_xydata())
        points = points[:, ::-1] if across else points
        for (place, mean), (low, high) in zip(
            points, bar_ends(container, across=across), strict=True
        ):
            found.append((float(place), float(mean), float(low), float(high)))
    return found


def drawn_curves(axes: Any, points: int) -> list[list[tuple[float, float]]]:
    """Returns the points of each line that has so many."""
    lines = [np.asarray(line.get_xydata()).tolist() for line in axes.get_lines()]
    return [[(x, y) for x, y in line] for line in lines if len(line) == points]


def drawn_levels(axes: Any) -> list[float]:
    """Returns the heights of lines across the whole axes."""
    return [y for (x, y), (other, same) in drawn_curves(axes, 2) if (x, other, y) == (0, 1, same)]


def legend_texts(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def tick_texts(axis: Any) -> list[str]:
    return [text.get_text() for text in axis.get_ticklabels()]


def title_of(figure: Figure) -> str:
    return " ".join(figure.get_suptitle().split())
