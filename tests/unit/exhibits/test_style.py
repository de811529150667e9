"""The common style of figures: distinct series, names that fit, and drawn intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpprobe.analyses.fairness.show import gap_figure
from dpprobe.analyses.tsne.show import plot_tsne
from dpprobe.exhibits import style
from dpprobe.exhibits.published import read_published
from dpprobe.reporting.figures.curves import epsilon_accuracy
from tests.support.fairness_records import made_record
from tests.support.figures import bar_ends, save_bytes, write_embedding, write_summary


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)
    embedding = write_embedding(tmp_path / "digits/clip/tsne.parquet", classes=4, seed=0)
    for draw in (
        lambda: epsilon_accuracy(summary, published=read_published(), name="mnist"),
        lambda: plot_tsne(embedding=embedding, dataset="digits", backbone="clip", split="test"),
        lambda: gap_figure([made_record()]),
    ):
        first, second = (save_bytes(draw(), tmp_path / "figure") for _ in range(2))
        assert first == second
        assert b"<dc:date>" not in first[0]


VALUES: list[style.Interval] = [
    (0.5, 0.25, 0.75),
    (0.6, None, None),
    (0.7, 0.8, 0.9),
    (0.5, 0, 0.4),
]


@pytest.mark.parametrize("across", [False, True])
def test_error_bars_end_where_intervals_do(across: bool) -> None:
    axes = Figure().add_subplot()
    style.draw_error_bars(axes, [0, 1, 2, 3], VALUES, across=across, linestyle="none")
    container: Any = axes.containers[0]
    ends = bar_ends(container, across=across)
    assert ends == pytest.approx(np.array([(0.25, 0.75), (0.6, 0.6), (0.7, 0.9), (0.0, 0.5)]))
    points = container.lines[0]
    means, places = points.get_ydata(), points.get_xdata()
    if across:
        means, places = places, means
    assert list(means) == [0.5, 0.6, 0.7, 0.5]
    assert list(places) == [0, 1, 2, 3]


def test_a_band_leaves_out_means_without_an_interval() -> None:
    axes = Figure().subplots()
    values: list[style.Interval] = [(50.0, 40.0, 70.0), (60.0, None, None)]
    style.draw_banded(axes, [1.0, 2.0], values, ("#000000", ("-", "o")), alpha=0.3)
    (line,), (band,) = axes.lines, axes.collections
    assert np.asarray(line.get_ydata()).tolist() == [50.0, 60.0]
    places = {tuple(point) for point in np.round(np.asarray(band.get_paths()[0].vertices), 9)}
    assert places == {(1.0, 40.0), (1.0, 70.0)}
    assert band.get_alpha() == 0.3


def test_a_reason_is_written_in_place_of_a_figure() -> None:
    (text,) = style.write_reason("nothing to see here " * 8).texts
    assert text.get_text().split() == ["nothing", "to", "see", "here"] * 8
    assert "\n" in text.get_text()
