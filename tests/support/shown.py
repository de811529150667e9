"""Reads tables and figures back as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dpprobe.exhibits.tables import Table


def rows_of(table: Table) -> list[dict[str, str]]:
    """Returns each row as a mapping from the columns' titles to texts."""
    titles = [column.title for column in table.columns]
    assert len(set(titles)) == len(titles)
    return [dict(zip(titles, [cell.text for cell in row], strict=True)) for row in table.rows]


def curves_of(axes: Axes) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
    """Yields each line of more than one point, with its x and y values."""
    for line in axes.lines:
        x, y = (np.asarray(values, dtype=float) for values in line.get_data())
        if len(x) > 1:
            yield line, x, y


def dots_of(axes: Axes) -> list[tuple[Any, float, float]]:
    """Returns each line of a single point, with its x and y."""
    found = []
    for line in axes.lines:
        x, y = (np.asarray(values, dtype=float) for values in line.get_data())
        if len(x) == 1:
            found.append((line, float(x[0]), float(y[0])))
    return found


def texts_of(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def title_of(axes: Axes) -> str:
    """Returns the title, wherever the style puts it."""
    return "".join(axes.get_title(place) for place in ("left", "center", "right"))


def legend_of(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]
