"""Which classes are taken for which: a table and a picture of a cell's predictions.

The picture is drawn as SVG by hand: a study has thousands, and matplotlib takes a tenth of a second
for each.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LARGEST = 100  # classes; more have no picture that can be read
NUMBERED = 20  # classes up to which each square has its number
SIDE = 26.0  # of a square
SMALLEST = 4.0


def confusion(predictions: Path, num_classes: int) -> np.ndarray:
    """Counts over all seeds, int64 [true class, predicted class].

    Args:
      predictions: `predictions.parquet` of a cell with one label a row.
    """
    table = pq.read_table(predictions, columns=["label", "scores"])
    labels = table["label"].to_numpy()
    scores = _flat(table["scores"]).reshape(len(labels), num_classes)
    pairs = labels * num_classes + scores.argmax(axis=1)
    counts = np.bincount(pairs, minlength=num_classes**2)
    return np.asarray(counts.reshape(num_classes, num_classes), dtype=np.int64)


def label_confusion(predictions: Path, num_classes: int, *, threshold: float) -> np.ndarray:
    """Counts over all seeds, int64 [label, 4]: true and false positives, false and true negatives.

    Args:
      predictions: `predictions.parquet` of a cell with several labels a row.
      threshold: scores above it say that a label is there.
    """
    table = pq.read_table(predictions, columns=["label", "scores"])
    rows = table.num_rows
    labels = _flat(table["label"]).reshape(rows, num_classes) > 0
    found = _flat(table["scores"]).reshape(rows, num_classes) > threshold
    return np.stack(
        [
            (labels & found).sum(0), (~labels & found).sum(0),
            (labels & ~found).sum(0), (~labels & ~found).sum(0),
        ],
        axis=1,
    )  # fmt: skip


def confusion_csv(counts: np.ndarray, names: Sequence[str]) -> str:
    """A line a true class, a column a predicted one."""
    header = ["true \\ predicted", *names]
    return _csv([header, *([name, *row] for name, row in zip(names, counts.tolist(), strict=True))])


def label_confusion_csv(counts: np.ndarray, names: Sequence[str]) -> str:
    """A line a label."""
    header = ["label", "true_positive", "false_positive", "false_negative", "true_negative"]
    return _csv([header, *([name, *row] for name, row in zip(names, counts.tolist(), strict=True))])


def confusion_svg(counts: np.ndarray, names: Sequence[str], *, title: str) -> str:
    """The matrix in shades of blue: the share of each true class that is taken for another."""
    classes = len(names)
    side = max(SMALLEST, min(SIDE, 640 / classes))
    total = counts.sum(axis=1, keepdims=True)
    share = np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)
    named = side >= 9
    margin = 12 + 6.2 * min(16, max(map(len, names))) if named else 16.0
    width, height = margin + classes * side + 24, margin + classes * side + 64
    squares = [
        _square(margin + column * side, margin + 34 + row * side, side, share[row, column])
        for row in range(classes)
        for column in range(classes)
        if share[row, column] > 0
    ]
    numbers = []
    if classes <= NUMBERED:
        numbers = [
            _number(margin + column * side, margin + 34 + row * side, side, share[row, column])
            for row in range(classes)
            for column in range(classes)
            if share[row, column] >= 0.005
        ]
    labels = _labels(names, margin, side) if named else []
    end = margin + classes * side
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="DejaVu Sans, sans-serif" '
        'font-size="9.5">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text x="8" y="16" font-size="11.5">{escape(title)}</text>',
        '<text x="8" y="30" fill="#555555">percent of each true class; rows true, columns '
        "predicted</text>",
        f'<rect x="{margin:.1f}" y="{margin + 34:.1f}" width="{classes * side:.1f}" '
        f'height="{classes * side:.1f}" fill="none" stroke="#bbbbbb"/>',
        *squares,
        *numbers,
        *labels,
        f'<text x="{end:.1f}" y="{end + 50:.1f}" text-anchor="end" fill="#555555">'
        "Test results: not private.</text>",
        "</svg>\n",
    ]
    return "\n".join(parts)


def _square(x: float, y: float, side: float, share: float) -> str:
    red, green, blue = (
        round(255 + share * (dark - 255)) for dark in (0, 70, 130)
    )  # white to dark blue
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}" '
        f'fill="#{red:02x}{green:02x}{blue:02x}"/>'
    )


def _number(x: float, y: float, side: float, share: float) -> str:
    colour = "#ffffff" if share > 0.5 else "#222222"
    return (
        f'<text x="{x + side / 2:.1f}" y="{y + side / 2 + 3.5:.1f}" text-anchor="middle" '
        f'fill="{colour}">{100 * share:.0f}</text>'
    )


def _labels(names: Sequence[str], margin: float, side: float) -> list[str]:
    found = []
    for index, name in enumerate(names):
        text = escape(name if len(name) <= 16 else f"{name[:15]}…")
        middle = margin + (index + 0.5) * side
        found.append(
            f'<text x="{margin - 5:.1f}" y="{middle + 37.5:.1f}" text-anchor="end">{text}</text>'
        )
        x, y = middle + 3.5, margin + 29
        found.append(
            f'<text x="{x:.1f}" y="{y:.1f}" transform="rotate(-90 {x:.1f} {y:.1f})">{text}</text>'
        )
    return found


def _flat(column: pa.ChunkedArray) -> np.ndarray:
    """The values of a column of lists, one after the other."""
    arrays = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return np.concatenate(arrays) if arrays else np.empty(0)


def _csv(rows: Sequence[Sequence[object]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()
