"""The figure of the private images that look most like public ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pyarrow import parquet as pq

from dpprobe.backbones.image_preprocessing import convert_mode
from dpprobe.data.table import SplitTable, decode_image
from dpprobe.exhibits import style

PAIRS, PAIRS_A_ROW = 12, 6  # of each split


def plot_overlap(*, matches: Path, tables: Sequence[Path], svg: Path, png: Path) -> None:
    """Draws the private images that look most like public ones, each above its nearest.

    Args:
      matches: the table that `features.overlap_record.write_near_duplicates` wrote.
      tables: the private split tables of training and test examples, then the public ones.
    """
    train, test, *public = tables
    rows = {"train": SplitTable(train), "test": SplitTable(test)}
    others = {f"{path.parent.name}/{path.stem}": SplitTable(path) for path in public}
    listed = pq.read_table(matches).to_pylist()
    split_pairs = {s: [row for row in listed if row["split"] == s][:PAIRS] for s in rows}
    lines = [
        pairs[start : start + PAIRS_A_ROW]
        for pairs in split_pairs.values()
        for start in range(0, len(pairs), PAIRS_A_ROW)
    ]
    with mpl.rc_context(style.SETTINGS):
        figure = Figure(figsize=(7.2, 2.8 * len(lines)), layout="constrained")
        grid = figure.subplots(2 * len(lines), PAIRS_A_ROW, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for line, pairs in enumerate(lines):
            for column, pair in enumerate(pairs):
                above, below = grid[2 * line, column], grid[2 * line + 1, column]
                source = f"{pair['public_dataset']}/{pair['public_split']}"
                _draw_image(above, rows[pair["split"]], pair["row"])
                _draw_image(below, others[source], pair["public_row"])
                mark = "same file" if pair["exact"] else f"{pair['cosine']:.3f}"
                weight = "bold" if pair["near"] else "normal"
                above.set_title(f"{pair['split']}, {mark}", fontsize=8, fontweight=weight)
                below.set_title(_clip_name(pair["public_id"]), fontsize=6, color=style.SUBTLE)
        items = "rows" if rows["train"].holds_vectors else "images"
        figure.suptitle(
            f"Private {items} of both splits (above) and the public ones nearest to them, by "
            "cosine;\nbold: near-duplicates. Not for publication",
            fontsize=8.5,
        )
        style.save_figure(figure, svg, png)


def _draw_image(axes: Axes, table: SplitTable, row: int) -> None:
    """Draws an image; of a row of vectors, its id alone."""
    image = next(iter(table.read_images(row, row + 1)))
    if table.holds_vectors:
        axes.text(0.5, 0.5, _clip_name(image.id), ha="center", va="center", fontsize=6)
        return
    axes.imshow(convert_mode(decode_image(image, split=table.split), "RGB"))


def _clip_name(name: str) -> str:
    return name if len(name) <= 22 else f"…{name[-21:]}"
