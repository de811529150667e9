"""Accuracy tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpprobe.artifacts import read_json
from dpprobe.exhibits.tables import write_markdown
from dpprobe.reporting import accuracy_table
from dpprobe.reporting.accuracy_table import make_accuracy_table
from dpprobe.results.summary import read_grid
from tests.support.cell_files import summarise, write_cell


def _markdown(summary: Path) -> list[list[str]]:
    """Returns the cells of the Markdown table, line by line."""
    lines = write_markdown(make_accuracy_table([summary])).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]


def test_entries_are_mean_and_both_intervals_in_percent(tmp_path: Path) -> None:
    cell = write_cell(tmp_path, epsilon="2")
    accuracy = read_json(cell)["summary"]["accuracy"]
    *_, row = _markdown(summarise(tmp_path / "digits.parquet", cell))
    half = 50 * (accuracy["high"] - accuracy["low"])
    ends = f"[{100 * accuracy['both_low']:.1f}, {100 * accuracy['both_high']:.1f}]"
    assert accuracy["both_low"] < min(accuracy["low"], accuracy["rows_low"])
    assert row[2] == f"{100 * accuracy['mean']:.1f} ± {half:.1f} {ends}"


def test_the_best_private_number_of_a_row_is_bold_whatever_its_digits(tmp_path: Path) -> None:
    means = (0.098, 1.0, 0.541, 0.999)
    cells = [write_cell(tmp_path, method=f"m{place}", epsilon="2") for place in range(len(means))]
    grid = read_grid([summarise(tmp_path / "digits.parquet", *cells)])
    given = [replace(entry, mean=100 * mean)
             for entry, mean in zip(grid.entries.values(), means, strict=True)]  # fmt: skip
    shown = accuracy_table._show_cells([None, *given])
    assert [cell.bold for cell in shown] == [False, False, True, False, False]
    assert not accuracy_table._show_cells(given[:1])[0].bold, "one alone is not compared"
