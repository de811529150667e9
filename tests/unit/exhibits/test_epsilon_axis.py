"""The epsilon axis: logarithmic, infinity at a separate position, and labels without overlaps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpprobe.exhibits.epsilon_axis import EpsilonScale, draw_epsilon_axis


def _scale(*finite: float, infinite: bool = False, curves: int = 1) -> EpsilonScale:
    return EpsilonScale(finite=finite, infinite=infinite, curves=curves)


def _draw(scale: EpsilonScale, *given: Any, **options: Any) -> tuple[Axes, dict[float, str]]:
    """Draws an axis; returns it with its tick labels by rounded position."""
    axes = Figure().add_subplot()
    draw_epsilon_axis(axes, scale, *given, **options)
    texts = [label.get_text() for label in axes.get_xticklabels()]
    places = [round(float(place), 9) for place in axes.get_xticks()]
    return axes, dict(zip(places, texts, strict=True))


def test_epsilons_are_at_their_logarithm_and_infinity_behind_a_gap() -> None:
    scale = _scale(0.1, 1.0, 10.0, infinite=True)
    assert [scale.place_of(each) for each in (0.1, 1.0, 10.0, 100.0)] == [-1.0, 0.0, 1.0, 2.0]
    assert scale.place_of(math.inf) == 1.0 + scale.gap
    assert scale.gap == pytest.approx(0.18 * 2), "18% of the axis"
    assert _scale(2.0).gap == _scale().gap == 0.12
    assert _scale().place_of(math.inf) == 0.12


def test_ticks_are_at_the_epsilons_and_a_line_parts_infinity() -> None:
    scale = _scale(0.1, 1.0, 10.0, infinite=True)
    axes, ticks = _draw(scale)
    assert ticks == {-1.0: "0.1", 0.0: "1", 1.0: "10", 1.36: "∞\n(no noise)"}
    (line,) = axes.lines
    assert np.asarray(line.get_xdata()).tolist() == pytest.approx([1.18, 1.18])
    low, high = axes.get_xlim()
    assert (low, high) == pytest.approx((-1 - 0.144, 1.36 + 0.144))
    assert axes.get_xlabel() == "privacy budget ε (log scale)"
    axes, ticks = _draw(_scale(0.1, 1.0, 10.0))
    assert ticks == {-1.0: "0.1", 0.0: "1", 1.0: "10"}
    assert len(axes.lines) == 0
