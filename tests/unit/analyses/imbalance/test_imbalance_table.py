"""The tables and the report's section of rare classes."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from dpprobe.analyses.imbalance.imbalance_record import ImbalanceRecord
from dpprobe.analyses.imbalance.imbalance_table import best_table, make_imbalance_tables
from dpprobe.exhibits.tables import comma_separated, write_markdown
from tests.support.imbalance_records import imbalance_record, lawful_cells, rare_cell


def record() -> ImbalanceRecord:
    cells = [
        *lawful_cells(),
        *lawful_cells(20.0, method="prototypes"),
        rare_cell(0.8, method="nonprivate", epsilon="inf", private=False, reference=None,
                  reference_recall=None, drop=None, drop_low=None, drop_high=None, auc=None),
    ]  # fmt: skip
    return imbalance_record(cells)


def test_the_table_names_the_best_private_method_and_who_never_predicts() -> None:
    cells = [
        rare_cell(0.2, epsilon="1"),
        rare_cell(0.5, epsilon="1", method="prototypes", never_predicted=2),
        rare_cell(0.0, epsilon="8"),
        rare_cell(0.0, epsilon="8", method="prototypes"),
    ]
    table = best_table([imbalance_record(cells)])
    texts = [cell.text for cell in table.rows[0]]
    assert texts == [
        "pixels", "cat", "100", "2", "50.0 prototypes, macro 80.0 (2/5 never)",
        "0.0 every method", "80.0",
    ]  # fmt: skip
    assert [column.title for column in table.columns][4:6] == ["epsilon 1", "epsilon 8"]
    assert "Not private" in table.notes[0]


def test_files_hold_every_number_and_its_words(tmp_path: Path) -> None:
    path = tmp_path / "pixels.json"
    made = record()
    made.write(path)
    table = make_imbalance_tables([path])
    rows = list(csv.DictReader(io.StringIO(comma_separated(table))))
    assert len(rows) == len(made.cells)
    first = rows[0]
    assert float(first["recall"]) == round(made.cells[0].recall.mean, 4)
    assert rows[-1]["auc"] == rows[-1]["drop"] == ""
    text = write_markdown(table)
    assert "cat by sgd from" in text
    assert "nan" not in text.lower()
