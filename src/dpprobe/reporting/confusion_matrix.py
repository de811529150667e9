"""The picture of a confusion matrix, an SVG written by hand.

A study has thousands of them, and matplotlib takes about 70 times as long (ten classes, one figure
used again: 35 ms against 0.5 ms), which adds more than a minute to the tracking of 2,000 cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

NUMBERED = 20  # classes up to which each square has its number
SIDE = 26.0  # of a square
SMALLEST = 4.0


def confusion_svg(counts: np.ndarray, names: Sequence[str], *, title: str) -> str:
    """Draws for each true class the shares of the predicted classes, in shades of blue.

    Args:
      counts: [true class, predicted class].
    """
    classes = len(names)
    side = max(SMALLEST, min(SIDE, 640 / classes))
    total = counts.sum(axis=1, keepdims=True)
    share = np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)
    named = side >= 9
    margin = 12 + 6.2 * min(16, max(map(len, names))) if named else 16.0
    width, height = margin + classes * side + 24, margin + classes * side + 64
    squares = [
        _draw_square(margin + column * side, margin + 34 + row * side, side, share[row, column])
        for row in range(classes)
        for column in range(classes)
        if share[row, column] > 0
    ]
    numbers = []
    if classes <= NUMBERED:
        numbers = [
            _draw_number(margin + column * side, margin + 34 + row * side, side, share[row, column])
            for row in range(classes)
            for column in range(classes)
            if share[row, column] >= 0.005
        ]
    labels = _draw_labels(names, margin, side) if named else []
    end = margin + classes * side
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="DejaVu Sans, sans-serif" '
        'font-size="9.5">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text x="8" y="16" font-size="11.5">{escape(title)}</text>',
        '<text x="8" y="30" fill="#555555">percent of the images of each true class; rows true, '
        "columns predicted</text>",
        f'<rect x="{margin:.1f}" y="{margin + 34:.1f}" width="{classes * side:.1f}" '
        f'height="{classes * side:.1f}" fill="none" stroke="#bbbbbb"/>',
        *squares,
        *numbers,
        *labels,
        f'<text x="{end:.1f}" y="{end + 50:.1f}" text-anchor="end" fill="#555555">'
        "Test results, computed without noise.</text>",
        "</svg>\n",
    ]
    return "\n".join(parts)


def _draw_square(x: float, y: float, side: float, share: float) -> str:
    red, green, blue = (
        round(255 + share * (dark - 255)) for dark in (0, 70, 130)
    )  # white to dark blue
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}" '
        f'fill="#{red:02x}{green:02x}{blue:02x}"/>'
    )


def _draw_number(x: float, y: float, side: float, share: float) -> str:
    colour = "#ffffff" if share > 0.5 else "#222222"
    return (
        f'<text x="{x + side / 2:.1f}" y="{y + side / 2 + 3.5:.1f}" text-anchor="middle" '
        f'fill="{colour}">{100 * share:.0f}</text>'
    )


def _draw_labels(names: Sequence[str], margin: float, side: float) -> list[str]:
    texts = []
    for index, name in enumerate(names):
        text = escape(name if len(name) <= 16 else f"{name[:15]}…")
        middle = margin + (index + 0.5) * side
        texts.append(
            f'<text x="{margin - 5:.1f}" y="{middle + 37.5:.1f}" text-anchor="end">{text}</text>'
        )
        x, y = middle + 3.5, margin + 29
        texts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" transform="rotate(-90 {x:.1f} {y:.1f})">{text}</text>'
        )
    return texts
