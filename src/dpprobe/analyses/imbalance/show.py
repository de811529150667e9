"""Figure and report section of rare classes: recall by images and epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpprobe.analyses.analysis import Page
from dpprobe.analyses.imbalance.imbalance_record import ImbalanceRecord, RareCell
from dpprobe.analyses.imbalance.imbalance_table import best_table, break_down_words
from dpprobe.analyses.imbalance.measure import retained_recall
from dpprobe.errors import NothingToShow
from dpprobe.exhibits import style
from dpprobe.exhibits.tables import write_html
from dpprobe.privacy.limits import INFINITE
from dpprobe.privacy.risk import budget_order, budget_words
from dpprobe.study.ablations import keep_unique

_COLOURS = "cividis"  # a colour scale that is also readable in gray
_CELL, _EDGE = 0.42, "#D55E00"


def make_section(paths: Sequence[Path], page: Page) -> list[dict[str, Any]]:
    """Reads records; returns the section's parts, one per dataset with records."""
    records = [ImbalanceRecord.read(path) for path in paths]
    return [
        _make_part(dataset, mine)
        for dataset in page.datasets
        if (mine := [record for record in records if record.dataset == dataset])
    ]


def plot_imbalance(*, record: Path) -> Figure:
    """Draws the recall of each rare class in percent, one panel per (class, private method).

    Each row of a panel is a number of training images, each column an epsilon ("\N{INFINITY}":
    without noise); the last column is the non-private reference on equal training examples. A line
    surrounds cells with at least half of the reference's recall. A small number below a recall is
    the number of seeds whose head never predicts the class.

    Raises:
      NothingToShow: if there is no private cell.
    """
    read = ImbalanceRecord.read(record)
    methods = keep_unique(cell.method for cell in read.cells if cell.private)
    if not methods:
        raise NothingToShow(f"{read.dataset}, {read.backbone}: no private cell to draw")
    epsilons = sorted(
        {cell.epsilon for cell in read.cells if cell.method in methods}, key=budget_order
    )
    levels = 1 + max(
        len({c.fraction for c in read.cells if c.class_name == name}) for name in read.classes
    )
    width = 0.75 + _CELL * (len(epsilons) + 1) * 1.05
    height = 0.55 + _CELL * 0.82 * levels
    figure = Figure(
        figsize=(max(width * len(methods) + 1.5, 5.5), height * len(read.classes) + 1.0),
        layout="constrained",
    )
    grid = figure.subplots(len(read.classes), len(methods), squeeze=False)
    for line, class_name in zip(grid, read.classes, strict=True):
        for axes, method in zip(line, methods, strict=True):
            mine = [c for c in read.cells if c.class_name == class_name]
            drawn = _heat_map(axes, mine, method, epsilons)
            axes.set_title(f"{class_name}, {method}", fontsize=9)
    for axes in grid[:, 0]:
        axes.set_ylabel("training images of the class", fontsize=8.5)
    for axes in grid[-1]:
        axes.set_xlabel("ε", fontsize=8.5)
    figure.colorbar(drawn, ax=grid, shrink=0.6, label="recall of the class, %")
    seeds = style.counted_seeds(sorted({cell.seeds for cell in read.cells}))
    style.title_figure(
        figure,
        f"{read.dataset}, {read.backbone}: recall of a class made rare, % (not private)",
        f"mean of {seeds}; line: at least half of the reference's recall;\n"
        "small: seeds that never predict the class",
        panels=1,
    )
    return figure


def _heat_map(
    axes: Axes, cells: Sequence[RareCell], method: str, epsilons: Sequence[str]
) -> mpl.cm.ScalarMappable:
    # Two fractions may leave equal numbers of rows, so the key contains the fraction.
    rows = sorted({(cell.fraction, cell.class_rows) for cell in cells}, reverse=True)
    shape = (len(rows), len(epsilons) + 1)
    recall, held = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    for cell in cells:
        row = rows.index((cell.fraction, cell.class_rows))
        if cell.method == method:
            column = epsilons.index(cell.epsilon)
            recall[row, column] = 100 * cell.recall.mean
            held[row, column] = (
                cell.private and cell.reference_learnt and retained_recall(cell) >= 0.5
            )
            if cell.never_predicted:
                axes.text(
                    column,
                    row + 0.33,
                    f"{cell.never_predicted}/{cell.seeds}",
                    fontsize=5,
                    ha="center",
                    va="center",
                    color=_choose_ink(cell.recall.mean),
                )
            if cell.reference_recall is not None:
                recall[row, -1] = 100 * cell.reference_recall
    image = axes.imshow(recall, cmap=_COLOURS, vmin=0, vmax=100, aspect="auto")
    for row, column in zip(*np.nonzero(np.isfinite(recall)), strict=True):
        axes.text(
            column,
            row - 0.05,
            f"{recall[row, column]:.0f}",
            fontsize=7.5,
            ha="center",
            va="center",
            color=_choose_ink(recall[row, column] / 100),
        )
    _draw_outline(axes, held)
    names = [budget_words(each).replace(INFINITE, "∞") for each in epsilons]
    axes.set_xticks(range(shape[1]), [*names, "ref."], fontsize=7.5)
    axes.set_yticks(range(shape[0]), [f"{count:,}" for _, count in rows], fontsize=7.5)
    axes.axvline(shape[1] - 1.5, color="white", linewidth=2.5)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def _choose_ink(share: float) -> str:
    return "white" if share < 0.55 else "black"


def _draw_outline(axes: Axes, held: np.ndarray) -> None:
    """Draws a line around the cells of the heat map that are True in `held`."""
    padded = np.pad(held, 1)
    for row, column in zip(*np.nonzero(held), strict=True):
        ends = {
            (0, 1): ((column - 0.5, column + 0.5), (row - 0.5, row - 0.5)),
            (2, 1): ((column - 0.5, column + 0.5), (row + 0.5, row + 0.5)),
            (1, 0): ((column - 0.5, column - 0.5), (row - 0.5, row + 0.5)),
            (1, 2): ((column + 0.5, column + 0.5), (row - 0.5, row + 0.5)),
        }
        for (down, right), (x, y) in ends.items():
            if not padded[row + down, column + right]:
                axes.plot(x, y, color=_EDGE, linewidth=1.8, solid_capstyle="butt", clip_on=False)


def _make_part(dataset: str, records: Sequence[ImbalanceRecord]) -> dict[str, Any]:
    caption = f"Recall of rare classes of {dataset} by the best private method, in percent"
    return {
        "dataset": dataset,
        "best": write_html(best_table(records), caption=caption),
        "break_downs": [
            {
                "backbone": record.backbone,
                "class": point.class_name,
                "method": point.method,
                "words": break_down_words(point),
            }
            for record in records
            for point in record.break_downs
        ],
    }
