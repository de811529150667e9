"""The small curve on a dataset's card: the best private head against epsilon, as SVG text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from dpprobe.results.best_private import Best

WIDTH, HEIGHT = 480, 270  # of the drawing, in its own units
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 34, 40  # around the axes
_STEPS = (1, 2, 5, 10, 20, 25)  # percentage points between two ticks
_TICKS = 5  # at most


def draw_curve(bests: Sequence[Best]) -> Markup:
    """Draws one dataset's best private results with their 95% intervals.

    A dashed line is the non-private baseline on each result's backbone; a dotted one, where it lies
    within the axis, the majority-class baseline. Colours are the page's.

    Args:
      bests: at rising epsilons.
    """
    values = [best.entry.mean for best in bests]
    ends = [end for b in bests for end in (b.entry.both_low, b.entry.both_high) if end is not None]
    drawn = [*values, *ends, *(best.ceiling.mean for best in bests if best.ceiling is not None)]
    low, high = min(drawn), max(drawn)
    step = next((each for each in _STEPS if high - low <= (_TICKS - 1) * each), _STEPS[-1])
    bottom, top = step * math.floor(low / step), step * math.ceil(high / step)
    top = max(top, bottom + step)
    places = [math.log(best.head_epsilon) for best in bests]
    span = max(places) - min(places)

    def x_of(place: float) -> float:
        part = 0.5 if span == 0 else (place - min(places)) / span
        return round(_LEFT + 14 + part * (WIDTH - _LEFT - _RIGHT - 28), 1)

    def y_of(value: float) -> float:
        part = (value - bottom) / (top - bottom)
        return round(HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM), 1)

    def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
        return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'

    def text(x: float, y: float, anchor: str, words: str) -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'

    parts = []
    for tick in range(bottom, top + 1, step):
        y = y_of(tick)
        parts += [
            line("grid", _LEFT, y, WIDTH - _RIGHT, y),
            text(_LEFT - 6, y + 4, "end", f"{tick}"),
        ]
    xs = [x_of(place) for place in places]
    baseline = [(x, b.ceiling.mean) for x, b in zip(xs, bests, strict=True) if b.ceiling]
    if baseline:
        # Private results rise to the right: the name stands on the left, above them.
        reach = [(_LEFT, baseline[0][1]), *baseline, (WIDTH - _RIGHT, baseline[-1][1])]
        points = " ".join(f"{x},{y_of(value)}" for x, value in reach)
        parts.append(f'<polyline class="baseline" points="{points}"/>')
        parts.append(text(_LEFT + 4, y_of(baseline[0][1]) - 6, "start", "non-private baseline"))
    constant = bests[0].entry.constant
    if constant is not None and bottom <= constant <= top:
        y = y_of(constant)
        parts.append(line("majority", _LEFT, y, WIDTH - _RIGHT, y))
        parts.append(text(WIDTH - _RIGHT, y - 6, "end", "majority-class baseline"))
    known = [
        (x, y_of(b.entry.both_low), y_of(b.entry.both_high or 0.0))
        for x, b in zip(xs, bests, strict=True)
        if b.entry.both_low is not None
    ]
    if known:
        upper = [f"{x},{y}" for x, _, y in known]
        lower = [f"{x},{y}" for x, y, _ in reversed(known)]
        parts.append(f'<polygon class="band" points="{" ".join([*upper, *lower])}"/>')
        parts += [line("bar", x, below, x, above) for x, below, above in known]
    points = " ".join(f"{x},{y_of(value)}" for x, value in zip(xs, values, strict=True))
    parts.append(f'<polyline class="curve" points="{points}"/>')
    for x, best in zip(xs, bests, strict=True):
        parts.append(f'<circle class="point" cx="{x}" cy="{y_of(best.entry.mean)}" r="4"/>')
        parts.append(text(x, HEIGHT - _BOTTOM + 16, "middle", f"{best.head_epsilon:g}"))
    told = "; ".join(f"ε = {best.budget}: {best.entry.mean:.1f}%" for best in bests)
    title = bests[0].measure.title
    return Markup(
        '<svg class="curve-figure" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">{3}'
        '<text x="4" y="14">test {4} (%)</text><text x="{5}" y="{6}" text-anchor="middle">'
        "privacy budget ε (log scale)</text></svg>"
    ).format(
        WIDTH, HEIGHT, f"Best private test {title} by privacy budget. {told}.",
        Markup("".join(parts)), title, (WIDTH + _LEFT) // 2, HEIGHT - 6,
    )  # fmt: skip
