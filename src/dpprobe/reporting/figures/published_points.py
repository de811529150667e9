"""Published results as numbered circles in a figure of accuracy against epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from dpprobe.reporting.figures import style
from dpprobe.reporting.figures.epsilon_axis import EpsilonScale
from dpprobe.reporting.published import Number, Published
from dpprobe.study.ablations import unique


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A published point: its number in the figure, its place, and the legend's text."""

    number: int
    epsilon: float
    percent: float
    label: str


def number_points(published: Published, points: Sequence[Number]) -> list[Mark]:
    """Numbers points for the legend; points of one source and column share a number."""
    labels = [
        ", ".join(filter(None, (published.citations[point.citation].short, point.model_or_column)))
        for point in points
    ]
    for index, (label, point) in enumerate(zip(tuple(labels), points, strict=True)):
        if labels.count(label) == 1:
            labels[index] = f"{label} (ε {point.single_epsilon:g})"
    numbers = {label: number for number, label in enumerate(unique(labels), start=1)}
    return [
        Mark(
            number=numbers[label], epsilon=point.single_epsilon or 0.0, percent=point.percent,
            label=label,
        )
        for label, point in zip(labels, points, strict=True)
    ]  # fmt: skip


def draw_marks(axes: Axes, scale: EpsilonScale, marks: Sequence[Mark]) -> None:
    """Draws numbered circles; those that would hide each other stand side by side."""
    if not marks:
        return
    values = [mark.percent for mark in marks]
    low, high = axes.get_ylim()
    low, high = min(low, *values), max(high, *values)
    pad = 0.05 * (high - low)
    axes.set_ylim(low - pad, high + pad)
    width = 0.033 * (scale.end - scale.start + 2 * scale.gap)
    placed: list[tuple[float, float]] = []
    for mark in sorted(marks, key=lambda mark: (mark.epsilon, mark.percent)):
        true = scale.position(mark.epsilon), mark.percent
        place = _free_place(true, placed, (width, 0.8 * pad), top=100.0)
        placed.append(place)
        if place != true:  # a line leads to where it belongs
            axes.plot(
                [true[0], place[0]], [true[1], place[1]], color=style.NEUTRAL, linewidth=0.6,
                marker=".", markersize=3, markevery=[0], zorder=3.5,
            )  # fmt: skip
        axes.plot(
            *place, marker="o", markersize=9.5, linestyle="none", color="white",
            markeredgecolor=style.NEUTRAL, markeredgewidth=0.9, zorder=4,
        )  # fmt: skip
        axes.annotate(
            f"{mark.number}", place, ha="center", va="center_baseline", fontsize=6.5,
            color=style.NEUTRAL, zorder=5,
        )  # fmt: skip


# Steps away from the true place of a circle, nearest first.
_STEPS = sorted(
    ((across, up) for across in range(-12, 13) for up in range(-12, 13)),
    key=lambda step: (step[0] ** 2 + step[1] ** 2, step),
)


def _free_place(
    true: tuple[float, float],
    placed: Sequence[tuple[float, float]],
    size: tuple[float, float],
    *,
    top: float,
) -> tuple[float, float]:
    """Finds the place nearest to the true one at which a circle hides none of those placed.

    Args:
      size: of a circle, in the units of both axes.
      top: no circle is moved above it.
    """
    for across, up in _STEPS:
        x, y = true[0] + across * size[0], true[1] + up * size[1]
        free = all(
            abs(x - px) >= 0.95 * size[0] or abs(y - py) >= 0.95 * size[1] for px, py in placed
        )
        if free and (y <= top or up == 0):
            return x, y
    return true
