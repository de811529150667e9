"""Results against epsilon: curves, bands and ceilings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.exhibits import style
from dpprobe.reporting.figures.curves import epsilon_accuracy
from dpprobe.results.summary import read_grid
from tests.support.cell_files import summarise, write_cell
from tests.support.figures import curve_axes, save_bytes, write_summary


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


def test_a_mean_that_rounding_puts_past_its_interval_is_drawn(tmp_path: Path) -> None:
    cell = write_cell(tmp_path, epsilon="inf")
    record = read_json(cell)
    mean = float(np.mean([100 * seed["accuracy"] for seed in record["seeds"]])) / 100
    record["summary"]["accuracy"] |= {"low": mean + 1e-12, "high": mean + 1e-12}
    write_json(cell, record)
    save_bytes(epsilon_accuracy(summarise(tmp_path / "summary.parquet", cell)), tmp_path / "a")


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
