"""Accuracy tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpprobe.reporting import accuracy_table
from dpprobe.results.summary import read_grid
from tests.support.cell_files import summarise, write_cell


def test_the_best_private_number_of_a_row_is_bold_whatever_its_digits(tmp_path: Path) -> None:
    means = (0.098, 1.0, 0.541, 0.999)
    cells = [write_cell(tmp_path, method=f"m{place}", epsilon="2") for place in range(len(means))]
    grid = read_grid([summarise(tmp_path / "digits.parquet", *cells)])
    given = [replace(entry, mean=100 * mean)
             for entry, mean in zip(grid.entries.values(), means, strict=True)]  # fmt: skip
    shown = accuracy_table._show_cells([None, *given])
    assert [cell.bold for cell in shown] == [False, False, True, False, False]
    assert not accuracy_table._show_cells(given[:1])[0].bold, "one alone is not compared"
