"""The figure of the private images that look most like public ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pyarrow import parquet as pq

from dpprobe.backbones.images import convert
from dpprobe.data.table import SplitTable, decode
from dpprobe.reporting.figures import style

PAIRS, PAIRS_A_ROW = 12, 6


def near_duplicate_figure(
    matches: Path, tables: Mapping[str, Path], *, svg: Path, png: Path
) -> None:
    """Draws the private images that look most like public ones, each above its nearest.

    Args:
      matches: the table that `features.near_duplicates.write_near_duplicates` wrote.
      tables: "<dataset>/<split>" -> split table of the public rows; the private one under "".
    """
    pairs = pq.read_table(matches).slice(0, PAIRS).to_pylist()
    images = {name: SplitTable(path) for name, path in tables.items()}
    with mpl.rc_context(style.SETTINGS):
        figure = Figure(figsize=(7.2, 3.4 * -(-len(pairs) // PAIRS_A_ROW)), layout="constrained")
        grid = figure.subplots(2 * -(-len(pairs) // PAIRS_A_ROW), PAIRS_A_ROW, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for number, pair in enumerate(pairs):
            line, column = divmod(number, PAIRS_A_ROW)
            source = f"{pair['public_dataset']}/{pair['public_split']}"
            mark = "same file" if pair["exact"] else f"{pair['cosine']:.3f}"
            above, below = grid[2 * line, column], grid[2 * line + 1, column]
            _draw_image(above, images[""], pair["row"])
            _draw_image(below, images[source], pair["public_row"])
            above.set_title(mark, fontsize=8, fontweight="bold" if pair["near"] else "normal")
            below.set_title(_clipped(pair["public_id"]), fontsize=6, color=style.SUBTLE)
        figure.suptitle(
            "Private images (above) and the public ones nearest to them, by cosine; bold: above "
            "the threshold. Not for publication",
            fontsize=8.5,
        )
        style.save(figure, svg, png)


def _draw_image(axes: Axes, table: SplitTable, row: int) -> None:
    image = next(iter(table.images(row, row + 1)))
    axes.imshow(convert(decode(image, split=table.split), "RGB"))


def _clipped(name: str) -> str:
    return name if len(name) <= 22 else f"…{name[-21:]}"
