"""Made-up summaries and embeddings, and functions that read texts, bars and bytes of figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from dpprobe.exhibits import style
from dpprobe.files.table_files import write_table
from dpprobe.reporting.figures import curves
from dpprobe.results.summary import read_grid
from tests.support.cell_files import summarise, write_study

mpl.rcParams.update(style.SETTINGS)  # same settings as `make_exhibit`


def write_summary(root: Path) -> Path:
    """Writes a study of one dataset and returns its summary."""
    cells = write_study(root, epsilons=("0.5", "1", "8", "inf"))
    return summarise(root / "summary.parquet", *cells)


def curve_axes(summary: Path) -> Any:
    """Draws the curves of a summary of digits and returns the axes."""
    axes = Figure().add_subplot()
    curves.draw_curves(axes, read_grid([summary]), "digits")
    return axes


def write_embedding(path: Path, *, classes: int, rows: int = 300, **changes: Any) -> Path:
    """Writes an embedding of random points; `changes` are facts of the embedding."""
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


def bar_ends(container: Any, *, across: bool = False) -> np.ndarray:
    """Returns both ends of each error bar, [n, 2]."""
    (bars,) = container.lines[2]
    return np.array([segment[:, 0 if across else 1] for segment in bars.get_segments()])


def drawn_bars(axes: Any, *, across: bool = False) -> list[tuple[float, float, float, float]]:
    """Returns position, mean, lower end and upper end of every error bar, in drawing order."""
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
    """Returns the points of each line with `points` points."""
    lines = [np.asarray(line.get_xydata()).tolist() for line in axes.get_lines()]
    return [[(x, y) for x, y in line] for line in lines if len(line) == points]


def drawn_levels(axes: Any) -> list[float]:
    """Returns the heights of horizontal lines across the whole axes."""
    return [y for (x, y), (other, same) in drawn_curves(axes, 2) if (x, other, y) == (0, 1, same)]


def legend_texts(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def tick_texts(axis: Any) -> list[str]:
    return [text.get_text() for text in axis.get_ticklabels()]


def title_of(figure: Figure) -> str:
    return " ".join(figure.get_suptitle().split())
