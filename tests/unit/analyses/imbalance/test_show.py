"""The figure of rare classes: each recall at its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dpprobe.analyses.imbalance.imbalance_record import RareCell
from dpprobe.analyses.imbalance.show import plot_imbalance
from dpprobe.errors import NothingToShow
from tests.support.imbalance_records import imbalance_record, rare_cell


def drawn(folder: Path, cells: Sequence[RareCell]) -> Figure:
    imbalance_record(cells).write(folder / "pixels.json")
    return plot_imbalance(record=folder / "pixels.json")


def test_each_recall_stands_at_its_images_and_epsilon(tmp_path: Path) -> None:
    cells = [
        rare_cell(0.7, class_rows=5000, epsilon="1"),
        rare_cell(0.0, class_rows=50, epsilon="1"),
        rare_cell(0.6, class_rows=50, epsilon="8"),
        rare_cell(0.75, class_rows=50, epsilon="inf"),
    ]
    axes = drawn(tmp_path, cells).axes[0]
    texts = {(t.get_position()[0], round(t.get_position()[1])): t.get_text() for t in axes.texts
             if "/" not in t.get_text()}  # fmt: skip
    assert texts == {
        (0, 0): "70", (3, 0): "80",
        (0, 1): "0", (1, 1): "60", (2, 1): "75", (3, 1): "80",
    }  # fmt: skip
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "8", "∞", "ref."]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["5,000", "50"]
    assert [t.get_text() for t in axes.texts if "/" in t.get_text()] == ["5/5"]
    # four sides of each of the two private cells that hold, and the line before the reference
    assert len(axes.lines) == 8 + 1


def test_fractions_that_leave_as_many_images_have_a_row_each(tmp_path: Path) -> None:
    cells = [
        rare_cell(0.7, class_rows=3, fraction=0.02),
        rare_cell(0.1, class_rows=3, fraction=0.01),
    ]
    axes = drawn(tmp_path, cells).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["3", "3"]
    assert [text.get_text() for text in axes.texts] == ["70", "80", "10", "80"]


def test_a_record_without_private_cells_has_no_figure(tmp_path: Path) -> None:
    with pytest.raises(NothingToShow, match="digits, pixels"):
        drawn(tmp_path, [rare_cell(0.4, epsilon="inf")])
