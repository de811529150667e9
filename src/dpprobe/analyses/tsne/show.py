"""Figures of t-SNE embeddings: one plot, or all plots of a study side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from dpprobe.analyses.tsne.measure import read_embedding
from dpprobe.exhibits import style
from dpprobe.exhibits.class_colours import CIRCLES, CLASS_COLOURS, NAMED_CLASSES
from dpprobe.study.ablations import keep_unique

MARKERS = ("o", "^")  # markers of the first classes, and of all other classes
NAMED_POINTS = 50  # in a plot with fewer points, names of classes would hide points


def plot_tsne_grid(*, embeddings: Sequence[Path], split: str) -> Figure:
    """Draws embeddings side by side: one row per dataset, one column per backbone.

    Each panel's title has the share of nearest neighbours that t-SNE keeps. Each row of panels has
    a legend of classes and the number of points, with the seed of a sample.
    """
    named = {(path.parent.parent.name, path.parent.name): path for path in embeddings}
    datasets = keep_unique(dataset for dataset, _ in named)
    backbones = keep_unique(backbone for _, backbone in named)
    size = 2.35
    figure = Figure(
        figsize=(max(size * len(backbones) + 1.6, 5.2), (size + 0.35) * len(datasets) + 0.45),
        layout="constrained",
    )
    grid = figure.subplots(len(datasets), len(backbones), squeeze=False)
    for line, dataset in zip(grid, datasets, strict=True):
        for axes, backbone in zip(line, backbones, strict=True):
            path = named.get((dataset, backbone))
            if path is None:
                axes.set_axis_off()
                continue
            _draw_small_plane(axes, path, backbone)
        shown = named[next(key for key in named if key[0] == dataset)]
        _describe_row(line, dataset, split, shown)
    figure.suptitle(
        "t-SNE; percentages: the share of a point's 15 nearest neighbours in feature "
        "space\nthat are also its neighbours in the plot. Not private: drawn from the "
        "features.",
        fontsize=8,
        x=0.01,
        ha="left",
        color=style.SUBTLE,
    )
    return figure


def plot_tsne(*, embedding: Path, dataset: str, backbone: str, split: str) -> Figure:
    """Draws an embedding, coloured by class; without points, draws the note with the reason.

    Up to 20 classes are named, in the plot and in the legend; more classes have a colour bar. The
    line below the title gives the share of nearest neighbours that PCA and t-SNE keep.

    Raises:
      DataError: if the file is not an embedding.
    """
    plane, labels, facts = _read_points(embedding)
    figure = Figure(figsize=(6.6, 5.4), layout="constrained")
    axes = figure.add_subplot()
    subtitle, count = "", _drawn_rows(facts)
    if facts["method"] is None:
        _draw_empty_plane(axes, facts["note"])
    else:
        _draw_plane(axes, plane, labels, facts["class_names"], legend=facts["legend"])
        subtitle = (
            f"{facts['neighbours']} nearest neighbours kept: "
            f"PCA ({facts['components']}) {_format_percent(facts['pca_agreement'])}, "
            f"t-SNE {_format_percent(facts['tsne_agreement'])}"
        )
        count += f", perplexity {facts['perplexity']:g}"
    style.title_axes(axes, f"{dataset} {split}, {backbone}", subtitle)
    axes.set_xlabel(
        f"{count}. Not private: drawn from the features.",
        fontsize=8,
        color=style.SUBTLE,
        loc="left",
    )
    if len(plane) >= NAMED_POINTS and len(facts["class_names"]) <= NAMED_CLASSES:
        _draw_names(axes, plane, labels, [str(name) for name in facts["class_names"]])
    return figure


def _read_points(path: Path) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Reads the points [rows, 2] of an embedding, the points' labels, and the file's metadata."""
    table, facts = read_embedding(path)
    plane = np.column_stack([table["x"].to_numpy(), table["y"].to_numpy()])
    return plane, table["label"].to_numpy(), facts


def _draw_small_plane(axes: Axes, path: Path, backbone: str) -> None:
    plane, labels, facts = _read_points(path)
    if facts["method"] is None:
        _draw_empty_plane(axes, "no points")
        axes.set_title(backbone, fontsize=9)
        return
    named = len(facts["class_names"]) <= NAMED_CLASSES
    size = float(np.clip(2500 / len(plane), 0.8, 8))
    _draw_points(axes, plane, labels, size=size, named=named)
    axes.set_title(f"{backbone}, {_format_percent(facts['tsne_agreement'])}", fontsize=9)


def _describe_row(line: Sequence[Axes], dataset: str, split: str, path: Path) -> None:
    """Labels a row of panels: the dataset on the left, points below, a legend on the right."""
    _, facts = read_embedding(path)
    line[0].set_ylabel(f"{dataset} {split}", fontsize=9, fontweight="bold")
    line[0].set_xlabel(_drawn_rows(facts), fontsize=7, color=style.SUBTLE, loc="left")
    names = [str(name) for name in facts["class_names"]]
    if len(names) > NAMED_CLASSES // 2:
        line[-1].set_xlabel(f"{len(names)} classes", fontsize=7, color=style.SUBTLE, loc="right")
    if len(names) > NAMED_CLASSES:
        return
    shown = [name if len(name) <= 18 else f"{name[:17]}…" for name in names]
    handles = _class_handles(shown, markersize=4)
    line[-1].legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.02, 1.0),
        fontsize=7,
        handletextpad=0.1,
        labelspacing=0.25,
        borderaxespad=0.0,
    )


def _drawn_rows(facts: Mapping[str, Any]) -> str:
    """Formats the number of plotted points, with the seed if the points are a sample."""
    text = f"{facts['points']:,} of {facts['rows']:,} rows"
    if facts["points"] < facts["rows"] and facts.get("seed") is not None:
        text += f", sampled with seed {facts['seed']}"
    return text


def _draw_empty_plane(axes: Axes, note: str) -> None:
    axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", va="center")
    _draw_frame(axes)


def _draw_frame(axes: Axes) -> None:
    """Draws a frame without ticks, because t-SNE's coordinates have no units."""
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(True)
        side.set_color("#BBBBBB")


def _draw_plane(
    axes: Axes, plane: np.ndarray, labels: np.ndarray, names: Sequence[str], *, legend: str
) -> None:
    size = float(np.clip(9000 / len(plane), 3, 16))
    named = len(names) <= NAMED_CLASSES
    names = [style.fit_name(str(name), 40) for name in names]
    points = _draw_points(axes, plane, labels, size=size, named=named)
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    if not named:
        label = f"class index (of {len(names)})" if legend == "class" else legend
        figure.colorbar(points, ax=axes, label=label, shrink=0.8)
        return
    handles = _class_handles(names, markersize=5)
    figure.legend(handles=handles, loc="outside right upper", title=legend, handletextpad=0.2)


def _draw_points(
    axes: Axes, plane: np.ndarray, labels: np.ndarray, *, size: float, named: bool
) -> PathCollection:
    """Draws points; named classes have a colour and a marker, other classes a colour scale."""
    # Points are drawn in random order, so that no class covers other classes.
    order = np.random.Generator(np.random.Philox(0)).permutation(len(plane))
    plane, labels = plane[order], labels[order]
    points = axes.scatter(
        plane[:, 0],
        plane[:, 1],
        s=size,
        linewidths=0,
        alpha=0.75,
        rasterized=True,
        c=np.array(CLASS_COLOURS)[labels] if named else labels,
        cmap=None if named else "viridis",
    )
    if named and len(labels):
        markers = [MarkerStyle(marker) for marker in MARKERS]
        paths = [marker.get_path().transformed(marker.get_transform()) for marker in markers]
        points.set_paths([paths[int(label >= CIRCLES)] for label in labels])
    axes.set_aspect("equal", adjustable="datalim")
    _draw_frame(axes)
    return points


def _class_handles(names: Sequence[str], *, markersize: float) -> list[Line2D]:
    return [
        Line2D(
            [],
            [],
            linestyle="none",
            marker=MARKERS[int(index >= CIRCLES)],
            markersize=markersize,
            color=CLASS_COLOURS[index],
            label=name,
        )
        for index, name in enumerate(names)
    ]


def _draw_names(axes: Axes, plane: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> None:
    """Writes each class's name at one of its points, near the median, without overlapping names.

    A name that does not fit is only in the legend. Call after all other parts are drawn.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # sets the scale of the axes
    frame = axes.get_window_extent()
    taken: list[Bbox] = []
    for index, name in enumerate(names):
        points = plane[labels == index]
        if not len(points):
            continue
        text = axes.text(
            0,
            0,
            style.fit_name(name, 24),
            ha="center",
            va="center",
            fontsize=8,
            zorder=3,
            linespacing=0.9,
        )
        text.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
        distance = np.abs(points - np.median(points, axis=0)).sum(axis=1)
        for x, y in points[np.argsort(distance, kind="stable")[: max(1, len(points) // 2)]]:
            text.set_position((float(x), float(y)))
            box = text.get_window_extent().padded(1.5)
            inside = frame.contains(*box.min) and frame.contains(*box.max)
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
        else:
            text.remove()


def _format_percent(share: float) -> str:
    return f"{100 * share:.0f}%"
