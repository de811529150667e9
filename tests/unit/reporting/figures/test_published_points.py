"""Published points: each in its place, none hidden."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.collections import PathCollection

from dpprobe.exhibits import published
from dpprobe.reporting.figures.curves import epsilon_accuracy
from dpprobe.reporting.figures.published_points import number_points
from tests.support.figures import legend_words, save_bytes, write_summary


def test_published_points_stand_where_they_belong(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)
    results = published.read_published()
    figure: Any = epsilon_accuracy(summary, published=results, name="cifar10")
    (axes,) = figure.axes
    lines = axes.get_lines()
    circles = [line for line in lines if line.get_markersize() == 9.5]
    leads = {
        (line.get_xdata()[1], line.get_ydata()[1]): (line.get_xdata()[0], line.get_ydata()[0])
        for line in lines
        if line.get_markersize() == 3
    }
    places = [(line.get_xdata()[0], line.get_ydata()[0]) for line in circles]
    # of a network from scratch, whose epsilon is inferred
    (dashed,) = (each for each in axes.collections if isinstance(each, PathCollection))
    places += [tuple(place) for place in np.asarray(dashed.get_offsets())]
    points = results.mark_points("cifar10", "accuracy")
    # where one had to give way, a line leads to where it belongs
    assert sorted(leads.get(place, place) for place in places) == sorted(
        (math.log10(point.single_epsilon or 0), point.value) for point in points
    )
    texts = legend_words(figure)
    assert "Published" in texts
    assert "1  Luo et al. 2021, CNN (ε 0.5)" in texts
    assert any(
        text.endswith("Abadi et al. 2016, CNN of three layers (ε 2, inferred)") for text in texts
    )
    assert sum(text[0].isdigit() for text in texts if text) == len(points)
    low, high = axes.get_ylim()
    assert low < 44.3
    assert high >= 94


def test_a_range_has_a_bar_and_an_inferred_epsilon_a_dashed_circle(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)

    def drawn(name: str) -> Any:
        return epsilon_accuracy(summary, published=published.read_published(), name=name)

    figure: Any = drawn("imagenet")
    bars = [line for line in figure.axes[0].get_lines() if line.get_marker() == "|"]
    (bar,) = bars
    assert list(bar.get_xdata()) == [math.log10(4), 1.0]
    assert list(bar.get_ydata()) == [81.7, 81.7]
    texts = legend_words(figure)
    assert any(text.endswith("Mehta et al. 2022, ViT-H/14-4B (ε 4 to 10)") for text in texts)
    figure = drawn("mnist")
    dashed = [c for c in figure.axes[0].collections if isinstance(c, PathCollection)]
    assert len(dashed) == 3, "of the three columns whose epsilon is the row's"
    texts = legend_words(figure)
    assert sum(text.endswith("(ε 1.2, inferred)") for text in texts) == 3


def test_unknown_datasets_have_no_published_points(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)
    known = (None, published.read_published())
    figures = [epsilon_accuracy(summary, published=each) for each in known]
    first, second = (save_bytes(figure, tmp_path / "a") for figure in figures)
    assert first == second


def test_labels_do_not_depend_on_the_order_of_points() -> None:
    results = published.read_published()
    one = results.mark_points("cifar10", "accuracy")[0]
    changes: list[dict[str, Any]] = [
        {"epsilon": 1.0}, {"epsilon": 2.0}, {"epsilon": (1.0, 2.0)},
        {"epsilon": 4.0, "model": "alone"},
    ]  # fmt: skip
    points = [one.model_copy(update={"inferred": (), **change}) for change in changes]
    labels = {mark.reach: mark.label for mark in number_points(results, points)}
    assert ["ε" in label for label in labels.values()] == [False, False, True, True]
    assert {mark.reach: mark.label for mark in number_points(results, points[::-1])} == labels
