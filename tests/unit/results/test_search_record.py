"""The path of an unpriced search's record."""

from __future__ import annotations

from pathlib import Path

from dpprobe.results.cell_record import CellName
from dpprobe.results.search_record import read_searched_values, search_path


def test_a_cell_has_one_search_and_a_method_without_search_no_values() -> None:
    cell = CellName(dataset="d", backbone="b", method="m", epsilon="0.5")
    assert search_path("r/searches", cell) == Path("r/searches/d/b/m/eps-0.5.json")
    assert read_searched_values(None) == {}
