"""Panels of an option's values: one point per place, and places beside each other."""

from __future__ import annotations

import math

import pytest

from dpprobe.privacy.risk import RiskEpsilon
from dpprobe.reporting.figures.option_panels import Panel, draw_panels, format_budget
from tests.support.figures import drawn_curves
from tests.support.made_grids import made_result


def test_of_several_cells_at_a_place_the_best_is_drawn() -> None:
    cells = [
        (2.0, made_result(0.5)),
        (1.0, made_result(0.4)),
        (1.0, made_result(0.6)),
        (1.0, made_result(0.9, 8.0)),
    ]
    panel = Panel(title="t", subtitle="s", cells=cells, ticks={1.0: "one", 2.0: "two"})
    assert panel.best_by_place(1.0) == [cells[2], cells[0]]
    assert panel.best_by_place(8.0) == [cells[3]]
    assert panel.best_by_place(3.0) == []
    assert panel.most_at_place == 2
    (axes,) = draw_panels([panel], title="a", label="places").axes
    assert drawn_curves(axes, 2) == [[pytest.approx((1, 60)), pytest.approx((2, 50))]]
    assert drawn_curves(axes, 1) == [[pytest.approx((1, 90))]]
    assert axes.get_xlabel() == "places"


def test_budgets_are_epsilons_or_risks() -> None:
    assert [format_budget(e) for e in (1.0, math.inf, 0.25)] == ["ε = 1", "ε = ∞", "ε = 0.25"]
    rate = RiskEpsilon(1.5, "tpr-0.05-at-0.01", 1e-5)
    assert "(ε ≤ 1.5)" in format_budget(rate)
    assert "\n" not in format_budget(rate)
    advantage = format_budget(RiskEpsilon(1.5, "advantage-0.1", 1e-5))
    # e^1.5 * 0.001 + 1e-5: an advantage alone permits rare leaks, so the rate is on its own line
    assert advantage == "advantage 0.1 (ε ≤ 1.5)\n(TPR at most 0.45% at 0.1% FPR)"
