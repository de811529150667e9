"""The table of test results, for readers and for programs."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import pytest

from dpprobe.exhibits.tables import comma_separated, write_markdown
from dpprobe.privacy.risk import RiskEpsilon
from dpprobe.reporting.accuracy_table import accuracy_table, make_accuracy_table, numbers_table
from dpprobe.results.cell_record import Measure
from dpprobe.results.summary import Choice, Grid
from tests.support.cell_files import summarise, write_cell
from tests.support.made_grids import made_entry, made_grid

SEEDS: dict[str, Any] = {"interval": "t over seeds", "rows_interval": "Wilson over test rows"}


def _entries() -> dict[Any, Any]:
    both = {"both_low": 40.0, "both_high": 65.0}
    drawn = {"rows_interval": "bootstrap over test rows"}
    return {
        ("d", 0.5, "x", "a"): made_entry(50.0, low=47.5, high=52.5, **SEEDS, **both),
        ("d", 2.0, "x", "a"): made_entry(99.0, low=96.0, high=100.0, **SEEDS),
        ("d", 2.0, "x", "b"): made_entry(98.96, low=90.0, high=99.0, interval="Wilson", **drawn),
        ("d", 2.0, "y", "b"): made_entry(60.0),
        ("d", math.inf, "x", "b"): made_entry(99.9, private=False),
    }


def _shown(grid: Grid) -> tuple[list[str], list[list[str]], str]:
    """Returns the column titles, rows and first note of the rendered table."""
    table = accuracy_table(grid)
    rows = [[f"**{c.text}**" if c.bold else c.text for c in row] for row in table.rows]
    return [column.title for column in table.columns], rows, table.notes[0]


def test_people_get_a_row_per_epsilon_and_a_column_per_head() -> None:
    titles, rows, note = _shown(made_grid(_entries()))
    assert titles == ["dataset", "epsilon", "x + a", "x + b", "y + b"]
    assert rows == [
        ["d", "0.5", "50.0 ± 2.5 [40.0, 65.0]", "", ""],
        ["d", "2", "**99.0 (96.0 to 100.0)**", "**99.0**", "60.0"],  # equal as printed
        ["d", "inf", "", "99.9", ""],
    ]
    assert note.startswith("Test accuracy in percent, mean over seeds. [low, high]: 95% CI over")
    assert "seeds and test examples (Wilson over test rows or bootstrap over test rows)." in note
    assert "±: half of the 95% CI over seeds (Student's t)." in note
    assert "(low to high): 95% CI over seeds, where it is asymmetric" in note
    assert "Bold: best private result of a row." in note
    assert "delta: d 1e-05." in note


def test_the_price_of_choosing_the_best_is_reported_of_rows_with_a_choice() -> None:
    choices = {
        ("d", 0.5): Choice(candidates=1, epsilon=None),
        ("d", 2.0): Choice(candidates=3, epsilon=4.12341),
    }
    note = _shown(made_grid(_entries(), choices=choices))[2]
    assert "costs at most as much as publishing all private heads of the row" in note
    assert "That epsilon: d at 2, 3 cells, 4.124." in note, "rounded up"


def test_unpriced_heads_are_marked_and_never_shown_as_the_best() -> None:
    entries = {
        ("d", 1.0, "x", "sgd"): made_entry(50.0),
        ("d", 1.0, "x", "found"): made_entry(90.0, private=False, unpriced=True),
        ("d", 1.0, "x", "other"): made_entry(9.5),
        ("d", 1.0, "x", "same"): made_entry(50.0, private=False, unpriced=True),
        ("d", math.inf, "x", "found"): made_entry(95.0, private=False),
        ("d", 2.0, "x", "sgd"): made_entry(55.0),
    }
    grid = made_grid(entries)
    titles, rows, note = _shown(grid)
    assert dict(zip(titles, rows[0], strict=True)) == {
        "dataset": "d",
        "epsilon": "1",
        "x + found": "90.0†",
        "x + other": "9.5",
        "x + same": "50.0†",
        "x + sgd": "**50.0**",
    }
    assert rows[1][titles.index("x + sgd")] == "55.0", "one private head is no choice"
    assert "† Not private and not for release" in note
    numbers = list(csv.DictReader(io.StringIO(comma_separated(numbers_table(grid)))))
    assert [row["x + found unpriced"] for row in numbers] == ["true", "", "false"]
    assert "x + sgd unpriced" not in numbers[0]


def test_programs_get_numbers_with_both_ends_of_each_interval() -> None:
    known = {"low": 45.5, "high": 54.25, "rows_low": 46.0, "rows_high": 55.0}
    known |= {"both_low": 43.0, "both_high": 56.5}
    entries = {
        ("d", 0.5, "x", "a"): made_entry(
            50.12345, **known, least=8.0, constant=25.0, constant_accuracy=25.0
        ),
        ("d", math.inf, "x", "a"): made_entry(60.0, private=False),
    }
    table = numbers_table(made_grid(entries))
    first, last = csv.DictReader(io.StringIO(comma_separated(table)))
    assert first == {
        "dataset": "d",
        "epsilon": "0.5",
        "delta": "1e-05",
        "accuracy of the most frequent answer": "25.000",
        "x + a": "50.123",
        "x + a low": "45.500",
        "x + a high": "54.250",
        "x + a rows low": "46.000",
        "x + a rows high": "55.000",
        "x + a both low": "43.000",
        "x + a both high": "56.500",
        "x + a least of a class": "8.000",
    }
    assert (last["epsilon"], last["delta"], last["x + a"]) == ("inf", "", "60.000")
    blank = ("accuracy of the most frequent answer", "x + a low", "x + a both high")
    assert [last[name] for name in blank] == [""] * 3


def test_another_metric_is_named_next_to_each_dataset() -> None:
    entries = {
        ("d", 1.0, "x", "a"): made_entry(50.0, constant=25.0, constant_accuracy=25.0),
        ("chest", 1.0, "x", "a"): made_entry(70.0, constant=50.0, constant_accuracy=90.0),
    }
    auc = Measure(headline="auc", multi_label=True, labels=2, num_classes=3)
    grid = made_grid(entries, measures={"chest": auc})
    titles, rows, note = _shown(grid)
    assert titles[:3] == ["dataset", "metric", "epsilon"]
    assert [row[1] for row in rows] == ["accuracy", "mean AUC over 2 of 3 labels"]
    assert note.startswith("Test accuracy or mean AUC over 2 of 3 labels in percent")
    assert note.endswith("and labels that no test example has.")
    numbers = list(csv.DictReader(io.StringIO(comma_separated(numbers_table(grid)))))
    assert [row["metric"] for row in numbers] == ["accuracy", "auc"]
    assert [row["metric of the most frequent answer"] for row in numbers] == ["25.000", "50.000"]
    assert [row["accuracy of the most frequent answer"] for row in numbers] == ["25.000", "90.000"]


def test_a_permitted_risk_has_its_row_and_column() -> None:
    row, own = (RiskEpsilon(value, "advantage-0.1", 1e-5) for value in (1.4, 1.2))
    entries = {
        ("d", row, "x", "a"): made_entry(50.0, epsilon=own),
        ("d", 2.0, "x", "a"): made_entry(60.0),
    }
    grid = made_grid(entries)
    _, rows, note = _shown(grid)
    assert [each[1] for each in rows] == ["advantage 0.1 (ε ≤ 1.4)", "2"]
    assert "a row names the largest: advantage 0.1 is ε 1.2" in note
    numbers = list(csv.DictReader(io.StringIO(comma_separated(numbers_table(grid)))))
    assert [(each["epsilon"], each["risk"]) for each in numbers] == [
        ("1.4", "advantage-0.1"),
        ("2", ""),
    ]


@pytest.mark.parametrize("patients", [None, 40])
def test_files_of_summaries_become_both_tables(patients: int | None, tmp_path: Path) -> None:
    cell = write_cell(tmp_path, patients=patients)
    table = make_accuracy_table([summarise(tmp_path / "d.parquet", cell)])
    assert table.numbers is not None
    note = table.notes[0]
    assert ("each patient counts once" in note) == (patients is not None)
    assert ("seeds and test patients" in note) == (patients is not None)
    assert table.notes[1].startswith("digits: Metric: accuracy")
    assert "| digits | 1 |" in write_markdown(table)
