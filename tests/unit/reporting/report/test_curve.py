"""The small curve on a card: results with intervals, and both baselines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpprobe.exhibits import style
from dpprobe.reporting.report.curve import draw_curve
from dpprobe.results.best_private import best_private
from dpprobe.results.cell_record import Measure
from tests.support.figures import drawn_bars, drawn_levels, legend_texts, tick_texts
from tests.support.made_grids import made_entry, made_grid

ENDS = {"both_low": 40.0, "both_high": 75.0}


def _draw(monkeypatch: pytest.MonkeyPatch, entries: Any, **changes: Any) -> Any:
    """Draws the best results of a grid; returns the figure."""
    drawn: list[Any] = []

    def keep(figure: Any) -> bytes:
        drawn.append(figure)
        return b"<svg/>"

    monkeypatch.setattr(style, "draw_svg", keep)
    address = draw_curve(best_private(made_grid(entries, **changes), {}))
    assert address.startswith("data:image/svg+xml;base64,")
    return drawn[0]


def test_results_have_intervals_and_the_best_baseline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = {"private": False, "ceiling": True}
    entries = {
        ("d", 1.0, "x", "a"): made_entry(50.0, constant=45.0, **ENDS),
        ("d", 10.0, "y", "a"): made_entry(60.0, **ENDS),
        ("d", math.inf, "x", "free"): made_entry(70.0, **free),
        ("d", math.inf, "y", "free"): made_entry(80.0, **free),
    }
    figure = _draw(monkeypatch, entries)
    (axes,) = figure.axes
    assert drawn_bars(axes) == [(0.0, 50.0, 40.0, 75.0), (1.0, 60.0, 40.0, 75.0)]
    assert drawn_levels(axes) == [80.0, 45.0]  # the best over both backbones, for every epsilon
    assert tick_texts(axes.xaxis) == ["1", "10"]
    assert axes.get_ylabel() == "test accuracy (%)"
    assert legend_texts(figure) == ["best non-private baseline", "majority-class baseline"]
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)
    assert {40.0, 75.0} <= set(band[:, 1])


def test_distant_majority_class_and_missing_baselines_are_not_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = {("d", 1.0, "x", "a"): made_entry(90.0, constant=10.0)}
    figure = _draw(monkeypatch, entries, measures={"d": Measure(headline="auc")})
    (axes,) = figure.axes
    assert drawn_levels(axes) == []
    assert drawn_bars(axes) == [(0.0, 90.0, 90.0, 90.0)]
    assert figure.legends == []
    assert axes.get_ylabel() == "test AUC (%)"
