"""Results against epsilon: curves, bands and ceilings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from dpprobe.artifacts import read_json, write_json
from dpprobe.exhibits import style
from dpprobe.reporting.figures import curves
from dpprobe.reporting.figures.curves import epsilon_accuracy
from dpprobe.results.summary import read_grid
from tests.support.cell_files import grid_of, summarise, write_cell, write_study
from tests.support.figures import (
    curve_axes,
    legend_words,
    read_words,
    save_bytes,
    tick_texts,
    write_summary,
)


def test_curves_stand_at_the_logarithm_of_epsilon(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)
    grid = read_grid([summary])
    axes = curve_axes(summary)
    curves = [line for line in axes.get_lines() if len(line.get_xdata()) == 3]
    assert len(curves) == 4
    wanted = {
        tuple(grid.entries["digits", e, backbone, method].mean for e in (0.5, 1.0, 8.0))
        for backbone in ("pixels", "scattering")
        for method in ("sgd", "sgd_full")
    }
    for line in curves:
        assert np.allclose(line.get_xdata(), np.log10([0.5, 1, 8]))
        assert tuple(line.get_ydata()) in wanted
    assert [label.get_text() for label in axes.get_xticklabels()][:3] == ["0.5", "1", "8"]
    assert axes.get_xticklabels()[3].get_text() == "∞\n(no noise)"
    assert axes.get_xticks()[3] > math.log10(8)


def test_infinity_has_no_place_where_the_baseline_alone_stands(tmp_path: Path) -> None:
    cells = [
        write_cell(tmp_path, method=method, epsilon=epsilon)
        for method, epsilon in (("sgd", "1"), ("sgd", "8"), ("nonprivate", "inf"))
    ]
    axes = curve_axes(summarise(tmp_path / "one.parquet", *cells))
    assert tick_texts(axes) == ["1", "8"]
    assert axes.get_xlim()[1] < 1


def test_each_backbone_has_its_ceiling_and_its_bands(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)
    grid = read_grid([summary])
    axes = curve_axes(summary)
    ceilings = {
        to_hex(line.get_color()): line.get_ydata()[0]
        for line in axes.get_lines()
        if list(line.get_xdata()) == [0, 1] and line.get_ydata()[0] == line.get_ydata()[1]
    }
    expected = [
        grid.entries["digits", math.inf, backbone, "nonprivate"].mean
        for backbone in ("pixels", "scattering")
    ]
    assert list(ceilings) == [colour.lower() for colour in style.COLOURS[:2]]
    assert list(ceilings.values()) == expected
    bands = [item for item in axes.collections if len(item.get_paths()[0].vertices) > 6]
    entry = grid.entries["digits", 0.5, "pixels", "sgd"]
    heights = bands[0].get_paths()[0].vertices[:, 1]
    assert len(bands) == 4
    assert heights.min() == pytest.approx(entry.low)


def test_a_mean_that_rounding_puts_past_its_interval_is_drawn(tmp_path: Path) -> None:
    cell = write_cell(tmp_path, epsilon="inf")
    record = read_json(cell)
    mean = float(np.mean([100 * seed["accuracy"] for seed in record["seeds"]])) / 100
    record["summary"]["accuracy"] |= {"low": mean + 1e-12, "high": mean + 1e-12}
    write_json(cell, record)
    save_bytes(epsilon_accuracy(summarise(tmp_path / "summary.parquet", cell)), tmp_path / "a")


def test_delta_is_written_as_a_power_of_ten() -> None:
    assert curves._format_power(1e-5) == "10⁻⁵"
    assert curves._format_power(8e-7) == "8 × 10⁻⁷"
    assert curves._format_power(1.25e-10) == "1.25 × 10⁻¹⁰"


def test_a_delta_above_one_over_n_is_marked_in_the_title(tmp_path: Path) -> None:
    cell = write_cell(tmp_path)
    for n, title in ((1000, "digits, δ = 10⁻⁵"), (200_000, "digits, δ = 10⁻⁵ (above 1/n)")):
        write_json(cell, read_json(cell) | {"n": n})
        assert curves._write_captions(grid_of(tmp_path, cell), "digits")[0] == title


def test_the_axis_names_the_metric_that_is_drawn(tmp_path: Path) -> None:
    assert curve_axes(write_summary(tmp_path / "a")).get_ylabel() == "test accuracy (%)"
    names = ("round", "even", "absent")
    cells = write_study(tmp_path / "b", methods=["sgd"], multi_label=True, class_names=names)
    axes = curve_axes(summarise(tmp_path / "summary.parquet", *cells))
    assert axes.get_ylabel() == "test mean AUC over 2 of 3 labels (%)"
    record = read_json(cells[0])
    drawn = [value for line in axes.get_lines() for value in line.get_ydata()]
    assert any(value == pytest.approx(100 * record["summary"]["auc"]["mean"]) for value in drawn)


@pytest.mark.parametrize(("backbones", "methods"), [(1, 27), (1, 10), (5, 3), (2, 1)])
def test_curves_look_different_and_their_legend_fits(
    backbones: int, methods: int, tmp_path: Path
) -> None:
    names = [f"method_{index:02}" for index in range(methods)]
    summary = write_summary(
        tmp_path, backbones=tuple("abcde"[:backbones]), methods=names, epsilons=("1", "8")
    )
    figure: Any = epsilon_accuracy(summary)
    lines = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 2]
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}
    assert len(looks) == len(lines) == backbones * methods
    colours = {line.get_color() for line in lines}
    assert len(colours) == (backbones if backbones > 1 else min(methods, len(style.COLOURS)))
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.y0 >= 0
    assert box.x1 <= figure.bbox.x1 + 1


def test_the_caption_names_the_intervals_and_how_far_test_rows_reach(tmp_path: Path) -> None:
    several = write_cell(tmp_path, method="sgd", seeds=3)
    alone = write_cell(tmp_path, method="sgd_full", seeds=1)
    summaries = []
    for name, cells in (("one", [several]), ("both", [several, alone])):
        summaries.append(summarise(tmp_path / f"{name}.parquet", *cells))
    reaches = []
    for path in (several, alone):
        entry = read_json(path)["summary"]["accuracy"]
        reaches.append(max(entry["mean"] - entry["rows_low"], entry["rows_high"] - entry["mean"]))
    captions = [curves._write_captions(read_grid([path]), "digits")[1] for path in summaries]
    assert f"up to ±{100 * reaches[0]:.1f} points" in captions[0]
    assert f"up to ±{100 * max(reaches):.1f} points" in captions[1]
    assert ["over test rows\n" in caption for caption in captions] == [False, True]


def test_the_interval_of_a_single_cell_is_drawn_though_no_band_can_be(tmp_path: Path) -> None:
    cell = write_cell(tmp_path, seeds=1)
    summary = summarise(tmp_path / "summary.parquet", cell)
    entry = read_json(cell)["summary"]["accuracy"]
    drawn = [list(line.get_ydata()) for line in curve_axes(summary).lines]
    assert any(ends == pytest.approx([100 * entry["low"], 100 * entry["high"]]) for ends in drawn)


def test_options_that_nothing_priced_are_marked(tmp_path: Path) -> None:
    cells = [
        write_cell(tmp_path, method=method, epsilon=epsilon)
        for method in ("sgd", "found")
        for epsilon in ("1", "8")
    ]
    for path in cells[2:]:
        search = {"trials": 2, "space": {"learning_rate": [0.1, 1.0]}, "held_out": 0.2}
        write_json(path, read_json(path) | {"head": "fine_tune", "options": {"search": search}})
    cells.append(write_cell(tmp_path, method="nonprivate", epsilon="inf"))
    figure: Any = epsilon_accuracy(summarise(tmp_path / "digits.parquet", *cells))
    assert {"found †", "sgd"} <= set(legend_words(figure))
    assert "\n† " in read_words(figure)
