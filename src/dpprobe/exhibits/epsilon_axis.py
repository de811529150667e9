"""The axis of epsilons: logarithmic, with infinity on the right after a gap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from dpprobe.privacy.risk import RiskEpsilon, explain_risks


@dataclass(frozen=True, kw_only=True)
class EpsilonScale:
    """Positions of epsilons on an axis: at their logarithm, with infinity to the right."""

    finite: tuple[float, ...]  # in rising order
    infinite: bool
    curves: int

    @property
    def end_place(self) -> float:
        return math.log10(self.finite[-1]) if self.finite else 0.0

    @property
    def start_place(self) -> float:
        return math.log10(self.finite[0]) if self.finite else 0.0

    @property
    def gap(self) -> float:
        """The distance on the axis from the largest finite epsilon to infinity."""
        # Many results at infinity are drawn side by side and need a wider gap.
        share = 0.18 + 0.012 * max(0, self.curves - 4)
        return max(share * (self.end_place - self.start_place), 0.12)

    def place_of(self, epsilon: float) -> float:
        return math.log10(epsilon) if math.isfinite(epsilon) else self.end_place + self.gap


def draw_epsilon_axis(
    axes: Axes,
    scale: EpsilonScale,
    shown: Sequence[float] | None = None,
    *,
    others: Sequence[float] = (),
    width: float = 1.0,
) -> None:
    """Draws ticks at the shown epsilons, and at other epsilons where space allows.

    Args:
      shown: the epsilons with ticks; None means all finite epsilons of the scale.
      width: the length of the axis in units of 5 inches.
    """
    texts: dict[float, str] = {}
    taken: list[tuple[float, float]] = []
    # Labels that would overlap an earlier label are omitted, but their ticks in `shown` are drawn.
    character = 0.0175 * (scale.end_place - scale.start_place + scale.gap) / width
    at = scale.finite if shown is None else shown
    # Budgets written as an epsilon get labels before budgets written as a permitted risk.
    for epsilon in sorted(at, key=lambda each: isinstance(each, RiskEpsilon)):
        _place_tick(epsilon, scale, character, texts, taken)
    for epsilon in sorted(set(others) - texts.keys()):
        _place_tick(epsilon, scale, character, texts, taken)
        if not texts[epsilon]:
            del texts[epsilon]
    ticks = [scale.place_of(epsilon) for epsilon in texts]
    labels = list(texts.values())
    if scale.infinite or not ticks:  # without a finite ε, all drawn results are without noise
        ticks.append(scale.place_of(math.inf))
        labels.append("∞\n(no noise)")
        if scale.finite:
            axes.axvline(
                scale.end_place + scale.gap / 2, color="#BBBBBB", linewidth=0.8, zorder=0.5
            )
    axes.set_xticks(ticks, labels)
    margin = 0.4 * scale.gap
    axes.set_xlim(scale.start_place - margin, max(ticks) + margin)
    risks = filter(None, explain_risks(at).split("; "))
    axes.set_xlabel("\n".join(["privacy budget ε (log scale)", *risks]))
    axes.grid(axis="y")


def _place_tick(
    epsilon: float,
    scale: EpsilonScale,
    character: float,
    texts: dict[float, str],
    taken: list[tuple[float, float]],
) -> None:
    """Labels an epsilon; the label is empty if it would overlap an earlier label."""
    text, place = f"{epsilon:g}", scale.place_of(epsilon)
    half = character * len(text) / 2
    low, high = place - half - 0.2 * character, place + half + 0.2 * character
    free = all(high <= left or low >= right for left, right in taken)
    texts[epsilon] = text if free else ""
    if free:
        taken.append((low, high))
