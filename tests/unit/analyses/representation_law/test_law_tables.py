"""The tables of representation laws."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from dpprobe.analyses.representation_law.law_record import LAW_TABLES, law_path
from dpprobe.analyses.representation_law.law_tables import (
    NOT_PRIVATE,
    accuracy_by_blocks,
    make_law_tables,
    published_laws,
)
from dpprobe.artifacts import read_json, write_json
from dpprobe.exhibits import published
from dpprobe.exhibits.tables import comma_separated
from dpprobe.results.summary import Grid, read_grid, summarise_cells
from tests.support.cell_files import write_cell
from tests.support.law_records import law_record


def _grid(root: Path) -> Grid:
    cells = [
        write_cell(root, method=method, epsilon=epsilon)
        for method in ("constant_0", "constant_1", "searched_2", "feature_covariance")
        for epsilon in ("1", "8")
    ]
    cells.append(write_cell(root, method="nonprivate", epsilon="inf"))
    summarise_cells(cells, root / "digits.parquet", study="study")
    return read_grid([root / "digits.parquet"])


def test_both_tables_have_their_rows(tmp_path: Path) -> None:
    _grid(tmp_path)
    record = law_path(tmp_path / "layers", "digits", "pixels")
    law_record().write(record)
    made, accuracy = make_law_tables(
        records=[record], summary=tmp_path / "digits.parquet", published=published.read_published(),
        name="digits", dataset="digits",
    )  # fmt: skip
    laws = list(csv.DictReader(io.StringIO(comma_separated(made))))
    assert len(laws) == 13 * 2
    assert laws[0]["options"] == "frozen"
    last = laws[-1]
    assert (last["method"], last["ε"], last["rows"]) == ("searched_2", "8", "test")
    assert float(last["ρ fuzziness"]) == pytest.approx(0.69)
    assert float(last["ρ fuzziness low"]) == pytest.approx(0.69 * 0.98, abs=1e-5)
    assert float(last["ρ separability"]) == pytest.approx(1 / 0.69, abs=1e-4)
    assert float(last["ρ shuffled fuzziness"]) == 1
    assert [made.name, accuracy.name] == [f"digits_{name}" for name in LAW_TABLES]
    assert made.notes[0].startswith(NOT_PRIVATE)


def test_results_stand_by_what_was_tuned_with_linear_heads_below(tmp_path: Path) -> None:
    grid = _grid(tmp_path)
    table = accuracy_by_blocks([law_record()], grid, dataset="digits")
    titles = [column.title for column in table.columns]
    assert titles[4:] == ["ε = 1", "ε = 8", "ε = ∞"]
    names = [row[1].text for row in table.rows]
    assert names[:3] == ["constant_0", "constant_1", "constant_2"]
    assert set(names[6:]) == {"feature_covariance", "nonprivate"}
    one = table.rows[names.index("searched_2")]
    assert (one[2].text, one[3].text) == ("tuned, unpriced", "last 2 blocks")
    assert one[5].value == pytest.approx(grid.entries["digits", 8.0, "pixels", "searched_2"].mean)
    assert table.rows[names.index("constant_2")][4].value is None, "a cell that is not there"


def test_the_paper_s_results_stand_above_where_the_rows_are_as_many(tmp_path: Path) -> None:
    grid = _grid(tmp_path)
    record, fewer = (law_record().model_copy(update={"train_rows": n}) for n in (1000, 500))
    numbers = published_laws(published.read_published(), "cifar10", [record])
    assert published_laws(published.read_published(), "cifar10", [fewer]) == []
    assert published_laws(published.read_published(), "digits", [record]) == []
    table = accuracy_by_blocks([record], grid, dataset="digits", published=numbers)
    rows = [[cell.text for cell in row] for row in table.rows[:2]]
    assert rows == [
        ["ViT, 12 blocks", "published", "constant", "12 blocks", "11.5", "95.8", ""],
        ["ViT, 12 blocks", "published", "tuned, unpriced", "1 to 12 blocks", "92.83 to 93.57",
         "92.83 to 93.56", ""],
    ]  # fmt: skip
    assert any(note.startswith("Published") for note in table.notes)


def test_networks_without_a_law_are_no_linear_heads(tmp_path: Path) -> None:
    path = write_cell(tmp_path, method="searched_9")
    search = {"trials": 2, "space": {"learning_rate": [0.1, 1.0]}, "held_out": 0.2}
    write_json(path, read_json(path) | {"head": "fine_tune", "options": {"search": search}})
    cells = [path, write_cell(tmp_path, method="feature_covariance")]
    summarise_cells(cells, tmp_path / "digits.parquet", study="study")
    grid = read_grid([tmp_path / "digits.parquet"])
    table = accuracy_by_blocks([law_record()], grid, dataset="digits")
    words = {row[1].text: (row[2].text, row[3].text) for row in table.rows}
    assert words["searched_9"] == ("tuned, unpriced", "laws not measured")
    assert words["feature_covariance"] == ("linear head", "stored features")
