"""The best private result and its ceiling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpprobe.reporting.headline import best_interval, choice_words, verdict
from dpprobe.results.best_private import best_of_each, best_private
from dpprobe.results.cell_results import read_cell_results
from dpprobe.results.summary import read_grid
from tests.support.cell_files import grid_of, write_cell
from tests.support.paper_tables import LAMB, paper_cell, paper_run, rows_as_text, table_of
from tests.support.report_page import Made


@pytest.mark.parametrize("qualities", [(0.5, 4.0, 1.0), (4.0, 0.5, 1.0), (0.5, 1.0, 4.0)])
def test_of_several_ceilings_every_reader_takes_the_best(
    qualities: tuple[float, ...], tmp_path: Path
) -> None:
    cells = [
        paper_cell(tmp_path, method=f"free_{i}", epsilon="inf", head="nonprivate", quality=quality)
        for i, quality in enumerate(qualities)
    ]
    options = LAMB | {"batch_size": 64}
    cells += [
        paper_cell(tmp_path, method="lamb", epsilon=epsilon, head="lamb", options=options)
        for epsilon in ("8", "inf")
    ]
    best = 100 * max(cell.mean for cell in read_cell_results(cells) if cell.ceiling)
    rows = rows_as_text(table_of(paper_run(cells), "large_scale_transfer_table2"))
    (row,) = [row for row in rows if row["Data"] == "digits" and row["ε"] == "∞"]
    assert row["Best"].startswith(f"{best:.1f} ")
    (result,) = best_private(grid_of(tmp_path, *cells), {})
    assert result.ceiling is not None
    assert result.ceiling.mean == pytest.approx(best)


def test_the_headline_is_the_best_private_result_and_its_gap(tmp_path: Path) -> None:
    made = Made(tmp_path)
    grid = read_grid(made.sources.summaries)
    bests = best_private(grid, {})
    assert [best.epsilon for best in bests] == ["0.5", "1", "2"]
    for best in bests:
        row = (best.dataset, float(best.epsilon))
        others = [entry for c in grid.columns if (entry := grid.get(row, c)) and entry.private]
        assert best.entry.mean == max(entry.mean for entry in others)
        ceiling = grid.get(("digits", float("inf")), (best.backbone, "nonprivate"))
        assert ceiling is not None
        assert best.gap == pytest.approx(ceiling.mean - best.entry.mean)
    words = made.page().words
    assert verdict(bests[1]) in words, "at ε = 1"
    assert choice_words(bests[1]) in words
    assert f"{bests[1].entry.mean:.1f}% tends to be too high" in choice_words(bests[1])
    for best in bests:
        assert f"{best.epsilon}{best.entry.mean:.1f} {best_interval(best)}" in words


def test_the_best_of_each_key_is_the_first_of_equals(tmp_path: Path) -> None:
    paths = [
        write_cell(tmp_path, method=method, epsilon=epsilon, quality=quality)
        for method, epsilon, quality in (
            ("sgd", "2", 1.0), ("sgd", "1", 0.5), ("adam", "1", 4.0), ("lamb", "1", 0.5),
        )
    ]  # fmt: skip
    sgd, *cells = read_cell_results(paths)
    best = best_of_each([sgd, *cells, replace(sgd, method="copy")], lambda cell: cell.epsilon)
    found = [(epsilon, cell.method) for epsilon, cell in best.items()]
    assert found == [(2.0, "sgd"), (1.0, "adam")]


def test_a_method_without_a_ceiling_has_a_blank_gap(tmp_path: Path) -> None:
    cell = write_cell(tmp_path, epsilon="1")
    (best,) = best_private(grid_of(tmp_path, cell), {})
    assert best.ceiling is None
    assert best.gap is None
