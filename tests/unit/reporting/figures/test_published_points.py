"""Published points: each has the right position, and none is hidden."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from dpprobe.exhibits.epsilon_axis import EpsilonScale
from dpprobe.exhibits.published import Number, read_published
from dpprobe.reporting.figures.curves import epsilon_accuracy
from dpprobe.reporting.figures.published_points import Mark, draw_marks, number_points
from tests.support.figures import legend_texts, write_summary

SCALE = EpsilonScale(finite=(1.0, 8.0), infinite=True, curves=2)


def _points(*changes: dict[str, Any]) -> list[Number]:
    one = read_published().mark_points("cifar10", "accuracy")[0]
    return [one.model_copy(update={"inferred": ()} | change) for change in changes]


def test_points_of_one_source_share_a_number_unless_their_epsilon_needs_words() -> None:
    points = _points(
        {"epsilon": 1.0},
        {"epsilon": 2.0},
        {"epsilon": (1.0, 2.0)},
        {"epsilon": (1.0, 2.0)},
        {"epsilon": 4.0, "model": "alone"},
        {"epsilon": 4.0, "inferred": ("epsilon",)},
    )
    published = read_published()
    source = f"{published.citations[points[0].citation].short}, {points[0].model_or_column}"
    short = published.citations[points[0].citation].short
    marks = number_points(published, points)
    assert [(mark.number, mark.label) for mark in marks] == [
        (1, source),
        (1, source),
        (2, f"{source} (ε 1 to 2)"),
        (2, f"{source} (ε 1 to 2)"),
        (3, f"{short}, alone (ε 4)"),
        (4, f"{source} (ε 4, inferred)"),
    ]
    assert [mark.inferred for mark in marks] == [False] * 5 + [True]
    assert [mark.circle_epsilon for mark in marks[:3]] == [1.0, 2.0, pytest.approx(2**0.5)]
    assert marks[2].reach == (1.0, 2.0)
    turned = number_points(published, points[::-1])
    assert {mark.label: mark.number for mark in turned}[source] == 4, "numbers by appearance"


def _mark(percent: float, reach: tuple[float, float] = (2.0, 2.0), **changes: Any) -> Mark:
    facts: dict[str, Any] = {"number": 1, "label": "a"}
    return Mark(**facts | changes, percent=percent, reach=reach)


def _draw(*marks: Mark) -> Any:
    axes = Figure().add_subplot()
    axes.set_ylim(50, 90)
    draw_marks(axes, SCALE, marks)
    return axes


def _circles(axes: Any) -> list[tuple[float, float]]:
    lines = [line for line in axes.get_lines() if line.get_markersize() == 9.5]
    dashed = [each for each in axes.collections if isinstance(each, PathCollection)]
    places = [np.asarray(line.get_xydata())[:1] for line in lines]
    places += [np.asarray(each.get_offsets()) for each in dashed]
    return [(float(x), float(y)) for x, y in np.concatenate(places)]


def _leads(axes: Any) -> dict[tuple[float, float], tuple[float, float]]:
    """Maps each displaced circle to its true position."""
    lines = [
        np.asarray(line.get_xydata()) for line in axes.get_lines() if line.get_markersize() == 3
    ]
    return {(float(x), float(y)): (float(a), float(b)) for (a, b), (x, y) in lines}


def test_a_range_has_a_bar_and_an_inferred_epsilon_a_dashed_circle() -> None:
    axes = _draw(_mark(70.0, (1.0, 4.0), number=7), _mark(60.0, inferred=True))
    (bar,) = [line for line in axes.get_lines() if line.get_marker() == "|"]
    assert np.asarray(bar.get_xydata()).tolist() == [
        pytest.approx((0, 70)),
        pytest.approx((math.log10(4), 70)),
    ]
    assert sorted(_circles(axes)) == [pytest.approx((math.log10(2), y)) for y in (60, 70)]
    dashed: list[Any] = [each for each in axes.collections if isinstance(each, PathCollection)]
    ((_, pattern),) = [line for each in dashed for line in each.get_linestyle()]
    assert pattern, "a solid line has no pattern"
    assert {text.get_text() for text in axes.texts} == {"1", "7"}


def test_published_points_are_drawn_at_their_published_epsilon_and_accuracy(tmp_path: Path) -> None:
    results = read_published()
    figure = epsilon_accuracy(write_summary(tmp_path), published=results, name="cifar10")
    (axes,) = figure.axes
    leads = _leads(axes)
    points = results.mark_points("cifar10", "accuracy")
    assert sorted(leads.get(place, place) for place in _circles(axes)) == sorted(
        (math.log10(point.single_epsilon or 0), point.value) for point in points
    )
    texts = legend_texts(figure)
    assert "Published" in texts
    assert "1  Luo et al. 2021, CNN (ε 0.5)" in texts
    assert any(
        text.endswith("Abadi et al. 2016, CNN of three layers (ε 2, inferred)") for text in texts
    )
    curve = sum(point.citation == "de_2022" for point in points)  # its points share a number
    assert curve > 1
    assert sum(text[0].isdigit() for text in texts if text) == len(points) - curve + 1
    low, high = axes.get_ylim()
    assert low < 44.3
    assert high >= 94
    unknown = epsilon_accuracy(write_summary(tmp_path / "b"), published=results, name="nobody")
    assert "Published" not in legend_texts(unknown)
