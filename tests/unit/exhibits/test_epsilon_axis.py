"""The axis of epsilons: logarithmic, infinity apart, and labels that do not overlap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpprobe.exhibits.epsilon_axis import EpsilonScale, draw_epsilon_axis
from dpprobe.privacy.risk import RiskEpsilon, explain_risks

RISK = RiskEpsilon(0.46, "advantage-0.1")


def _scale(*finite: float, infinite: bool = False, curves: int = 1) -> EpsilonScale:
    return EpsilonScale(finite=finite, infinite=infinite, curves=curves)


def _draw(scale: EpsilonScale, *given: Any, **options: Any) -> tuple[Axes, dict[float, str]]:
    """Draws an axis; returns also the labels of its ticks by place, rounded."""
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


@pytest.mark.parametrize(("curves", "share"), [(1, 0.18), (4, 0.18), (5, 0.192), (20, 0.372)])
def test_more_than_four_curves_widen_the_gap(curves: int, share: float) -> None:
    assert _scale(1.0, 10.0, curves=curves).gap == pytest.approx(share)


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


@pytest.mark.parametrize("infinite", [False, True])
def test_without_a_finite_epsilon_infinity_stands_alone(infinite: bool) -> None:
    axes, ticks = _draw(_scale(infinite=infinite))
    assert ticks == {0.12: "∞\n(no noise)"}
    assert len(axes.lines) == 0


def test_labels_that_would_overlap_are_left_out_and_their_ticks_stay() -> None:
    scale = _scale(0.01, 1.0, 1.1, 1.2, 10.0)
    assert list(_draw(scale)[1].values()) == ["0.01", "1", "", "", "10"]
    wide = _draw(_scale(1.0, 1.1, 1.2), width=4.0)[1]
    assert list(wide.values()) == ["1", "1.1", "1.2"]


def test_other_epsilons_have_ticks_where_there_is_room() -> None:
    scale = _scale(0.1, 1.0, 10.0)
    ticks = _draw(scale, (1.0,), others=(0.3, 1.05, 1.0, 3.0))[1]
    assert sorted(ticks.values()) == ["0.3", "1", "3"], "1.05 would overlap 1, and has no tick"
    assert ticks[0.0] == "1"
    narrow = _draw(scale, (1.0,), others=(0.3, 1.5, 3.0), width=0.2)[1]
    assert "1.5" not in narrow.values()


def test_an_epsilon_is_labelled_before_a_risk_and_the_risk_is_explained() -> None:
    axes, ticks = _draw(_scale(0.1, float(RISK), 0.5, 8.0), (0.1, RISK, 0.5, 8.0))
    assert ticks[round(math.log10(0.5), 9)] == "0.5"
    assert ticks[round(math.log10(0.46), 9)] == ""
    words = explain_risks([RISK])
    assert words
    assert axes.get_xlabel() == f"privacy budget ε (log scale)\n{words}"
