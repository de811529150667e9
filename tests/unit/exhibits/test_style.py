"""Saved figures: equal inputs give equal files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpprobe.analyses.tsne.show import tsne_grid
from dpprobe.exhibits import published, style
from dpprobe.reporting.figures.curves import epsilon_accuracy
from dpprobe.reporting.figures.options import option_figure
from tests.support.figures import (
    varied_cells,
    write_embedding,
    write_summary,
)


def test_equal_summaries_give_equal_bytes(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)
    for name in ("a", "b"):
        epsilon_accuracy(summary, svg=tmp_path / f"{name}.svg", png=tmp_path / f"{name}.png")
    for kind in ("svg", "png"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert "<dc:date>" not in (tmp_path / "a.svg").read_text()


def test_every_new_figure_is_the_same_bytes_twice(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)
    cells = varied_cells(tmp_path / "v", "batch_size", [64, 256])
    grid = {("digits", "clip"): write_embedding(tmp_path / "e", classes=4, seed=0)}
    results = published.read_published()
    for name in ("a", "b"):
        for kind, draw in {
            "points": lambda f: epsilon_accuracy(summary, published=results, name="mnist", **f),
            "option": lambda f: option_figure(cells, "batch_size", dataset="digits", **f),
            "grid": lambda f: tsne_grid(grid, split="test", **f),
        }.items():
            folder = tmp_path / kind
            draw({"svg": folder / f"{name}.svg", "png": folder / f"{name}.png"})
    for kind in ("points", "option", "grid"):
        for extension in ("svg", "png"):
            first, second = (tmp_path / kind / f"{name}.{extension}" for name in ("a", "b"))
            assert first.read_bytes() == second.read_bytes(), kind


def test_a_band_leaves_out_means_without_an_interval() -> None:
    axes = Figure().subplots()
    values: list[style.Interval] = [(50.0, 40.0, 70.0), (60.0, None, None)]
    style.draw_banded(axes, [1.0, 2.0], values, ("#000000", ("-", "o")), alpha=0.3)
    (line,), (band,) = axes.lines, axes.collections
    assert np.asarray(line.get_ydata()).tolist() == [50.0, 60.0]
    places = {tuple(point) for point in np.round(np.asarray(band.get_paths()[0].vertices), 9)}
    assert places == {(1.0, 40.0), (1.0, 70.0)}
    assert band.get_alpha() == 0.3


def test_a_long_subtitle_leaves_the_axes_their_width() -> None:
    """It once took the axes to a fifth of their width, as part of the layout."""
    widths = []
    for words in ("few words", "many words " * 30):
        figure = Figure(figsize=(7.2, 4.3), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], label="a line")
        legend = axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        style.title_axes(axes, "title", words)
        figure.canvas.draw()
        widths.append(axes.get_position().width)
        small = axes.texts[0].get_window_extent()
        assert small.x1 < legend.get_window_extent().x0
    assert widths[0] == pytest.approx(widths[1], abs=0.01)
