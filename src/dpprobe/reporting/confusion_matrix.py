"""The page of a confusion matrix, written as an HTML table without a library.

Tracking writes one page per cell. Pandas' Styler would take about 20 times as long, and add minutes
to the tracking of 2,000 cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

NUMBERED = 20  # largest number of classes for percentages in the squares
NAMED = 70  # largest number of classes for names of rows and columns
_PAGE = """<!doctype html>
<html><head><meta charset="utf-8"/><style>
body {{ font: 12px "DejaVu Sans", sans-serif; color: #222; margin: 16px }}
p {{ color: #555 }}
table {{ border-collapse: collapse; font-size: 11px; line-height: 1 }}
th {{ font-weight: normal; white-space: nowrap; padding: 3px 5px; text-align: right }}
thead th {{ writing-mode: vertical-rl; transform: rotate(180deg); padding: 5px 0 }}
thead th {{ text-align: left }}
td {{ min-width: {side}px; height: {side}px; padding: 0; text-align: center }}
td {{ border: 1px solid #eee }}
</style></head><body><div>{title}</div>
<p>percent of the images of each true class; rows true, columns predicted</p>
<table><thead><tr><th></th>{columns}</tr></thead><tbody>
{rows}
</tbody></table>
<p>Test results, computed without noise.</p></body></html>
"""


def confusion_html(counts: np.ndarray, names: Sequence[str], *, title: str) -> str:
    """Shows `counts` [true class, predicted class] as shares of true classes, in shades of blue."""
    classes = len(names)
    total = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)
    short = [escape(name if len(name) <= 16 else f"{name[:15]}…") for name in names]
    heads = [f"<th>{name}</th>" if classes <= NAMED else "<th></th>" for name in short]
    squares = [
        "".join(_write_square(share, numbered=classes <= NUMBERED) for share in row)
        for row in shares.tolist()
    ]
    return _PAGE.format(
        side=max(4, min(28, 640 // classes)),
        title=escape(title),
        columns="".join(heads),
        rows="\n".join(f"<tr>{h}{row}</tr>" for h, row in zip(heads, squares, strict=True)),
    )


def _write_square(share: float, *, numbered: bool) -> str:
    if share == 0:
        return "<td></td>"
    style = f"background: rgb(0 70 130 / {share:.3f}); color: {'#fff' if share > 0.5 else '#222'}"
    return f'<td style="{style}">{f"{100 * share:.0f}" if numbered and share >= 0.005 else ""}</td>'
