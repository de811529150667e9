"""Panels of an option's values: formats of budgets."""

from __future__ import annotations

import math

from dpprobe.privacy.risk import RiskEpsilon
from dpprobe.reporting.figures.option_panels import format_budget


def test_budgets_are_epsilons_or_risks() -> None:
    assert [format_budget(e) for e in (1.0, math.inf, 0.25)] == ["ε = 1", "ε = ∞", "ε = 0.25"]
    rate = RiskEpsilon(1.5, "tpr-0.05-at-0.01", 1e-5)
    assert "(ε ≤ 1.5)" in format_budget(rate)
    assert "\n" not in format_budget(rate)
    advantage = format_budget(RiskEpsilon(1.5, "advantage-0.1", 1e-5))
    # e^1.5 * 0.001 + 1e-5: rare leaks are possible below an advantage, so this rate is added
    assert advantage == "advantage 0.1 (ε ≤ 1.5)\n(TPR at most 0.45% at 0.1% FPR)"
