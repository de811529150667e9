"""Accuracy tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpprobe.reporting import accuracy_table
from dpprobe.reporting.accuracy_table import LEFT_OUT
from dpprobe.results.cell_record import Measure
from dpprobe.results.summary import read_grid
from tests.support.cell_files import summarise, write_cell
from tests.support.report_page import section_page


def test_metrics_are_named_and_labels_left_out_where_one_dataset_has_them() -> None:
    grid = section_page("a", "b").grid
    area = Measure(headline="auc", multi_label=True, labels=1, num_classes=2)
    assert not accuracy_table._names_metrics(grid)
    assert LEFT_OUT not in accuracy_table._write_note(grid, [])
    for name in ("a", "b"):
        asked = replace(grid, measures=grid.measures | {name: area})
        assert accuracy_table._names_metrics(asked)
        assert LEFT_OUT in accuracy_table._write_note(asked, [])


def test_the_best_private_number_of_a_row_is_bold_whatever_its_digits(tmp_path: Path) -> None:
    means = (0.098, 1.0, 0.541, 0.999)
    cells = [write_cell(tmp_path, method=f"m{place}", epsilon="2") for place in range(len(means))]
    grid = read_grid([summarise(tmp_path / "digits.parquet", *cells)])
    given = [replace(entry, mean=100 * mean)
             for entry, mean in zip(grid.entries.values(), means, strict=True)]  # fmt: skip
    shown = accuracy_table._show_cells([None, *given])
    assert [cell.bold for cell in shown] == [False, False, True, False, False]
    assert not accuracy_table._show_cells(given[:1])[0].bold, "one alone is not compared"
