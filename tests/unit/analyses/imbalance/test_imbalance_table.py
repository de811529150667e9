"""Tables of rare classes: the best private method for each class, share and epsilon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.analyses.imbalance.imbalance_record import RareCell
from dpprobe.analyses.imbalance.imbalance_table import (
    best_methods,
    best_table,
    make_imbalance_tables,
    numbers_table,
)
from tests.support.imbalance_records import imbalance_record, rare_cell
from tests.support.shown import rows_of

NONE: dict[str, Any] = dict.fromkeys(
    ("reference", "reference_recall", "drop", "drop_low", "drop_high", "auc")
)


def _row(*cells: RareCell) -> dict[str, str]:
    (row,) = rows_of(best_table([imbalance_record(cells)]))
    return row


def test_the_best_method_is_the_private_one_with_the_largest_recall() -> None:
    cells = [
        rare_cell(0.2),
        rare_cell(0.5, method="newton"),
        rare_cell(0.5, method="later"),
        rare_cell(0.9, method="free", epsilon="inf"),
        rare_cell(0.7, epsilon="2"),
        rare_cell(0.9, class_name="ant"),
    ]
    best = best_methods(cells)
    assert best["cat", 0.02, "1"].method == "newton", "the first of two alike"
    assert best["cat", 0.02, "2"].recall.mean == 0.7
    assert best["ant", 0.02, "1"].recall.mean == 0.9
    assert not [key for key in best if key[2] == "inf"]


def test_a_row_has_a_cell_for_each_epsilon() -> None:
    row = _row(rare_cell(0.5, epsilon="10", never_predicted=2), rare_cell(0.2, epsilon="1"))
    assert ", ".join(row) == "backbone, class, images, % kept, epsilon 1, epsilon 10, reference"
    assert [*row.values()][:4] == ["pixels", "cat", "100", "2"]
    assert row["epsilon 1"] == "20.0 sgd, macro 75.0"
    assert row["epsilon 10"] == "50.0 sgd, macro 75.0 (2/5 never)"
    assert row["reference"] == "80.0"


def test_numbers_are_the_record_s(tmp_path: Path) -> None:
    cells = [rare_cell(0.25, never_predicted=1), rare_cell(0.7, epsilon="inf", **NONE)]
    private, free = rows_of(numbers_table([imbalance_record(cells)]))
    shown = {
        "recall": "0.2500",
        "recall_low": "0.2300",
        "recall_high": "0.2700",
        "recall_std": "0.0100",
        "auc": "0.9000",
        "auc_low": "0.8800",
        "never_predicted": "1",
        "drop": "0.5500",
        "drop_low": "0.5000",
        "drop_high": "0.6000",
        "private": "yes",
        "epsilon": "1",
        "seeds": "5",
        "class_rows": "100",
        "rows": "45100",
        "fraction": "0.02",
        "reference_recall": "0.8000",
        "macro_accuracy": "0.7500",
    }
    assert shown.items() <= private.items()
    assert (free["private"], free["epsilon"]) == ("no", "inf")
    assert [free[name] for name in ("reference_recall", "drop", "drop_low", "auc", "auc_low")] == [
        ""
    ] * 5
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, backbone in zip(paths, ("a", "b"), strict=True):
        imbalance_record(cells).model_copy(update={"backbone": backbone}).write(path)
    table = make_imbalance_tables(paths)
    assert [row["backbone"] for row in rows_of(table)] == ["a", "b"]
    assert table.numbers is not None
    assert len(table.numbers.rows) == 4
    assert len(table.notes) == 3, "what is shown, and the break-downs of each"
