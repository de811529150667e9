"""What the papers' tables have in common."""

from __future__ import annotations

from pathlib import Path

from dpprobe.artifacts import read_json, write_json
from dpprobe.reporting.paper_tables.common import deltas_text
from dpprobe.results.cell_results import read_cell_results
from tests.support.cell_files import write_cell


def test_a_note_marks_a_delta_above_one_over_n(tmp_path: Path) -> None:
    cells = [write_cell(tmp_path, epsilon=epsilon) for epsilon in ("1", "2", "inf")]
    assert deltas_text(read_cell_results(cells)) == ", δ 1e-05"
    for cell in cells:
        write_json(cell, read_json(cell) | {"n": 200_000})
    assert deltas_text(read_cell_results(cells)) == ", δ 1e-05 (above 1/n)"
    assert deltas_text(read_cell_results(cells[2:])) == ""
