"""Results against epsilon: curves, bands and ceilings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpprobe.files.json_files import read_json, write_json
from dpprobe.reporting.figures import curves
from dpprobe.reporting.figures.curves import epsilon_accuracy
from dpprobe.results.summary import read_grid
from tests.support.cell_files import summarise, write_cell
from tests.support.figures import (
    curve_axes,
    drawn_bars,
    drawn_curves,
    drawn_levels,
    legend_texts,
    save_bytes,
    tick_texts,
    write_summary,
)
from tests.support.made_grids import made_entry, made_grid


def test_curves_are_drawn_at_the_logarithm_of_epsilon(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)
    grid, axes = read_grid([summary]), curve_axes(summary)
    expected: Any = [
        [
            (pytest.approx(math.log10(e)), grid.entries["digits", e, *column].mean)
            for e in (0.5, 1.0, 8.0)
        ]
        for column in grid.columns
        if column[1] != "nonprivate"
    ]
    assert drawn_curves(axes, 3) == expected
    assert tick_texts(axes.xaxis) == ["0.5", "1", "8", "∞\n(no noise)"]
    assert axes.get_xticks()[3] > math.log10(8)


def test_a_mean_that_rounding_puts_past_its_interval_is_drawn(tmp_path: Path) -> None:
    cell = write_cell(tmp_path, epsilon="inf")
    record = read_json(cell)
    mean = float(np.mean([100 * seed["accuracy"] for seed in record["seeds"]])) / 100
    record["summary"]["accuracy"] |= {"low": mean + 1e-12, "high": mean + 1e-12}
    write_json(cell, record)
    save_bytes(epsilon_accuracy(summarise(tmp_path / "summary.parquet", cell)), tmp_path / "a")


def _drawn(entries: dict[Any, Any], **changes: Any) -> Any:
    """Draws a made-up grid of the dataset `d`; returns its axes."""
    axes = Figure(figsize=(7, 4)).add_subplot()
    curves.draw_curves(axes, made_grid(entries, **changes), "d")
    return axes


def _heights(axes: Any, points: int) -> list[list[float]]:
    return [[y for _, y in curve] for curve in drawn_curves(axes, points)]


FREE = {"private": False, "ceiling": True}


def test_each_backbone_has_its_ceiling_across_and_a_head_without_noise_a_place() -> None:
    entries = {
        ("d", 1.0, "x", "sgd"): made_entry(50.0, low=45.0, high=52.0),
        ("d", 8.0, "x", "sgd"): made_entry(60.0, low=55.0, high=62.0),
        ("d", 8.0, "y", "sgd"): made_entry(65.0),
        ("d", math.inf, "x", "free"): made_entry(80.0, **FREE),
        ("d", math.inf, "y", "free"): made_entry(90.0, **FREE),
    }
    axes = _drawn(entries)
    assert drawn_levels(axes) == [80.0, 90.0]
    assert tick_texts(axes.xaxis) == ["1", "8"], "baselines need no place at infinity"
    band = next(part for part in axes.collections if len(part.get_paths()[0].vertices) > 6)
    vertices = np.asarray(band.get_paths()[0].vertices)
    assert {y for x, y in vertices if x == 0} >= {45.0, 52.0}
    colours = [line.get_color() for line in axes.get_lines()]
    assert colours[2:4] == colours[:2], "a curve has the colour of its backbone"
    assert colours[0] != colours[1]
    noiseless = {("d", math.inf, "x", "sgd"): made_entry(70.0, private=False, low=66.0, high=71.0)}
    axes = _drawn(entries | noiseless)
    assert tick_texts(axes.xaxis) == ["1", "8", "∞\n(no noise)"]
    ((place, *bar),) = drawn_bars(axes)
    assert bar == [70.0, 66.0, 71.0]
    assert place == axes.get_xticks()[-1]
    assert [50.0, 60.0] in _heights(axes, 2)
    second = {("d", math.inf, "y", "newton"): made_entry(65.0, private=False)}
    (left, *_), (right, *_) = drawn_bars(axes := _drawn(entries | noiseless | second))
    assert left < axes.get_xticks()[-1] < right, "side by side, in the order of columns"


def test_a_method_that_no_epsilon_covers_is_marked() -> None:
    entries = {
        ("d", 1.0, "x", "sgd"): made_entry(50.0),
        ("d", 1.0, "y", "found"): made_entry(60.0, private=False, unpriced=True),
    }
    headings = {"Backbone", "Method", ""}
    texts = [each for each in legend_texts(_drawn(entries).get_figure()) if each not in headings]
    assert texts == ["x", "y", "sgd", "found †"]
