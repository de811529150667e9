"""Published results as numbered circles in a figure of accuracy against epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from matplotlib.axes import Axes

from dpprobe.exhibits import style
from dpprobe.exhibits.epsilon_axis import EpsilonScale
from dpprobe.exhibits.published import Number, Published
from dpprobe.study.ablations import keep_unique

INFERRED_EDGE = (0, (1.6, 1.1))


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A published point: its number in the figure, its position, and its text in the legend.

    Attributes:
      reach: the ends of the point's range of epsilons, equal for a single epsilon.
      inferred: True if the paper does not state the point's epsilon.
    """

    number: int
    reach: tuple[float, float]
    percent: float
    label: str
    inferred: bool = False

    @property
    def circle_epsilon(self) -> float:
        """The epsilon at which the circle is drawn; for a range, the geometric mean."""
        low, high = self.reach
        return low if low == high else math.sqrt(low * high)


def number_points(published: Published, points: Sequence[Number]) -> list[Mark]:
    """Numbers points for the legend; points of one source and column share a number."""
    labels = [
        ", ".join(filter(None, (published.citations[point.citation].short, point.model_or_column)))
        for point in points
    ]
    exact = [not (isinstance(point.epsilon, tuple) or point.inferred) for point in points]
    shared = [*compress(labels, exact)]
    for index, (label, point) in enumerate(zip(tuple(labels), points, strict=True)):
        if not exact[index] or shared.count(label) == 1:
            labels[index] = f"{label} ({_format_epsilons(point)})"
    numbers = {label: number for number, label in enumerate(keep_unique(labels), start=1)}
    return [
        Mark(
            number=numbers[label],
            reach=point.epsilon_range or (0.0, 0.0),
            percent=point.percent,
            label=label,
            inferred="epsilon" in point.inferred,
        )
        for label, point in zip(labels, points, strict=True)
    ]


def _format_epsilons(point: Number) -> str:
    low, high = point.epsilon_range or (0.0, 0.0)
    text = f"ε {low:g}" if low == high else f"ε {low:g} to {high:g}"
    return f"{text}, inferred" if "epsilon" in point.inferred else text


def draw_marks(axes: Axes, scale: EpsilonScale, marks: Sequence[Mark]) -> None:
    """Draws numbered circles, side by side where they would overlap.

    A bar joins the ends of a range of epsilons; a dashed circle has an inferred epsilon.
    """
    if not marks:
        return
    values = [mark.percent for mark in marks]
    low, high = axes.get_ylim()
    low, high = min(low, *values), max(high, *values)
    pad = 0.05 * (high - low)
    axes.set_ylim(low - pad, high + pad)
    width = 0.033 * (scale.end_place - scale.start_place + 2 * scale.gap)
    placed: list[tuple[float, float]] = []
    for mark in sorted(marks, key=lambda mark: (mark.circle_epsilon, mark.percent)):
        true = scale.place_of(mark.circle_epsilon), mark.percent
        place = _free_place(true, placed, (width, 0.8 * pad), top=100.0)
        placed.append(place)
        if mark.reach[0] < mark.reach[1]:
            axes.plot(
                [scale.place_of(end) for end in mark.reach],
                [mark.percent] * 2,
                linewidth=1.0,
                color=style.NEUTRAL,
                marker="|",
                markersize=6,
                zorder=3.4,
            )
        if place != true:  # a line leads from the circle to the true position
            axes.plot(
                [true[0], place[0]],
                [true[1], place[1]],
                color=style.NEUTRAL,
                linewidth=0.6,
                marker=".",
                markersize=3,
                markevery=[0],
                zorder=3.5,
            )
        _draw_circle(axes, place, inferred=mark.inferred)
        axes.annotate(
            f"{mark.number}",
            place,
            ha="center",
            va="center_baseline",
            fontsize=6.5,
            color=style.NEUTRAL,
            zorder=5,
        )


def _draw_circle(axes: Axes, place: tuple[float, float], *, inferred: bool) -> None:
    if inferred:
        axes.scatter(
            *place,
            s=9.5**2,
            color="white",
            edgecolor=style.NEUTRAL,
            linewidth=0.9,
            linestyle=INFERRED_EDGE,
            zorder=4,
        )
        return
    axes.plot(
        *place,
        marker="o",
        markersize=9.5,
        linestyle="none",
        color="white",
        markeredgecolor=style.NEUTRAL,
        markeredgewidth=0.9,
        zorder=4,
    )


# Candidate offsets of a circle from its true position, nearest first.
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
    """Finds the nearest position to `true` at which a circle does not overlap placed circles."""
    for across, up in _STEPS:
        x, y = true[0] + across * size[0], true[1] + up * size[1]
        free = all(
            abs(x - px) >= 0.95 * size[0] or abs(y - py) >= 0.95 * size[1] for px, py in placed
        )
        if free and (y <= top or up == 0):
            return x, y
    return true
