"""The small curve on a dataset's card: the best private head against epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpprobe.results.best_private import Best

WIDTH, HEIGHT = 480, 270  # of the drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 34, 40  # around the axes
_STEPS = (1, 2, 5, 10, 20, 25)  # percentage points between two ticks
_TICKS = 5  # at most


def place_curve(bests: Sequence[Best]) -> dict[str, Any]:
    """Places one dataset's best private results and 95% intervals, as `curve.svg.j2` draws them.

    A dashed line is the non-private baseline on each result's backbone; a dotted one, where it lies
    within the axis, the majority-class baseline.

    Args:
      bests: at rising epsilons.
    """
    entries = [best.entry for best in bests]
    ends = [end for entry in entries for end in (entry.both_low, entry.both_high)]
    ceilings = [best.ceiling.mean if best.ceiling else None for best in bests]
    drawn = [v for v in (*(e.mean for e in entries), *ends, *ceilings) if v is not None]
    low, high = min(drawn), max(drawn)
    step = next((each for each in _STEPS if high - low <= (_TICKS - 1) * each), _STEPS[-1])
    bottom, top = step * math.floor(low / step), step * math.ceil(high / step)
    top = max(top, bottom + step)
    logs = [math.log(best.head_epsilon) for best in bests]
    span = max(logs) - min(logs)
    parts = [0.5 if span == 0 else (log - min(logs)) / span for log in logs]
    xs = [round(LEFT + 14 + part * (WIDTH - LEFT - RIGHT - 28), 1) for part in parts]

    def y_of(value: float | None) -> float | None:
        if value is None:
            return None
        return round(
            HEIGHT - BOTTOM - (value - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM), 1
        )

    baseline = [(x, y) for x, y in zip(xs, map(y_of, ceilings), strict=True) if y is not None]
    if baseline:  # across the axes
        baseline = [(LEFT, baseline[0][1]), *baseline, (WIDTH - RIGHT, baseline[-1][1])]
    constant = entries[0].constant
    shown = constant is not None and bottom <= constant <= top
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "bottom": HEIGHT - BOTTOM,
        "ticks": [(tick, y_of(tick)) for tick in range(bottom, top + 1, step)],
        "baseline": baseline,
        "majority": y_of(constant) if shown else None,
        "bars": [
            (x, y_of(entry.both_low), y_of(entry.both_high))
            for x, entry in zip(xs, entries, strict=True)
            if entry.both_low is not None
        ],
        "points": [(x, y_of(b.entry.mean), b) for x, b in zip(xs, bests, strict=True)],
        "metric": bests[0].measure.title,
    }
