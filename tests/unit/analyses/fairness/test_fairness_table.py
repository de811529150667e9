"""The table of subgroups."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dpprobe.analyses.fairness.fairness_record import FairnessRecord
from dpprobe.analyses.fairness.fairness_table import (
    BY_ACCURACY,
    fairness_table,
    read_subgroups,
    shown_metric,
    write_fairness_table,
)
from dpprobe.errors import DataError
from dpprobe.exhibits.tables import Table
from tests.support.fairness_records import value, write_fairness


def made(root: Path, **options: object) -> Table:
    return fairness_table([read_subgroups(write_fairness(root, **options))])  # type: ignore[arg-type]


def row(table: Table, *beginning: str) -> list[str]:
    """The texts of the only row that begins so, of its epsilons."""
    (found,) = [
        each
        for each in table.rows
        if [cell.text for cell in each][: len(beginning)] == list(beginning)
    ]
    return [cell.text for cell in found][6:]


def test_every_group_has_a_row_and_every_epsilon_a_column(tmp_path: Path) -> None:
    table = made(tmp_path)
    assert [column.title for column in table.columns][6:] == [
        "ε = 0.5", "ε = 1", "ε = 2", "ε = inf",
    ]  # fmt: skip
    expected = [f"{100 * value('sgd', e, 1):.1f} ± 2.0" for e in ("0.5", "1", "2", "inf")]
    assert row(table, "pixels", "sgd", "sex", "AUC", "male") == expected
    ceiling = row(table, "pixels", "nonprivate", "sex", "AUC", "female")
    assert ceiling[:3] == ["", "", ""]
    assert ceiling[3].startswith("90.0")


def test_a_gap_stands_with_chance_and_with_the_gap_without_privacy(tmp_path: Path) -> None:
    table = made(tmp_path)
    names = ("pixels", "sgd", "sex", "AUC")
    assert row(table, *names, "gap, best to worst")[0] == "6.0 (2.5 to 9.0)"
    assert row(table, *names, "gap by chance alone (95 %)") == ["3.0", "2.5", "2.2", "2.0"]
    less = row(table, *names, "gap less that of nonprivate at ∞")
    assert less[:2] == ["+3.0 ± 2.0", "+1.5 ± 2.0"]
    bold = {
        cells[4].text: [cell.bold for cell in cells[6:]]
        for cells in table.rows
        if [cell.text for cell in cells[:3]] == ["pixels", "sgd", "sex"]
    }
    assert bold["gap, best to worst"] == [True, True, True, False]
    assert bold["gap less that of nonprivate at ∞"] == [True, False, False, False]


def test_a_gap_that_random_groups_show_too_is_not_bold(tmp_path: Path) -> None:
    def bold(**gap: float | None) -> set[bool]:
        rows = made(tmp_path, gap=gap).rows
        gaps = [cells[6:] for cells in rows if cells[4].text.startswith("gap, ")]
        return {cell.bold for cells in gaps for cell in cells if cell.text}

    assert bold(low=0.001, chance_gap=0.5) == {False}
    assert bold(low=0.001, chance_gap=None) == {True}
    assert bold(low=0.0, chance_gap=None) == {False}


def test_groups_that_are_left_out_are_named_with_the_reason(tmp_path: Path) -> None:
    table = made(tmp_path)
    assert not [cells for cells in table.rows if cells[4].text == "unknown"]
    assert "Left out: age: unknown (fewer than 10 units)." in table.notes
    assert table.notes[0].startswith("Not private:")


def test_under_a_macro_accuracy_the_notes_say_that_groups_have_accuracies(tmp_path: Path) -> None:
    assert BY_ACCURACY in made(tmp_path, headline="accuracy", cell_headline="macro_accuracy").notes
    assert BY_ACCURACY not in made(tmp_path, headline="accuracy").notes


def test_without_a_reference_there_is_no_row_of_differences(tmp_path: Path) -> None:
    table = made(tmp_path, reference=None)
    assert not [cells for cells in table.rows if cells[4].text.startswith("gap less")]


def test_where_nothing_can_be_compared_the_table_is_empty(tmp_path: Path) -> None:
    empty = dict.fromkeys(("gap", "low", "high", "chance_gap", "difference"))
    table = made(tmp_path, groups={"sex": {"f": 3}}, gap=empty)
    assert table.rows == []
    assert "sex: f (fewer than 10 units)" in table.notes[-1]


def test_an_attribute_without_the_headline_shows_the_metric_that_it_has(tmp_path: Path) -> None:
    path = write_fairness(tmp_path, headline="accuracy")
    record = FairnessRecord.read(path)
    assert shown_metric(record, "sex") == "accuracy"
    assert shown_metric(record.model_copy(update={"headline": "auc"}), "sex") == "accuracy"
    assert shown_metric(record, "unknown") is None


def test_both_files_hold_the_same_rows(tmp_path: Path) -> None:
    records = [write_fairness(tmp_path, backbone=name) for name in ("pixels", "scattering")]
    files = tmp_path / "t.csv", tmp_path / "t.md"
    write_fairness_table(records, csv=files[0], markdown=files[1])
    with files[0].open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    lines = [line for line in files[1].read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    assert len(rows) == len(lines) - 2
    (first,) = [
        each
        for each in rows
        if (each["backbone"], each["method"], each["group"]) == ("scattering", "newton", "female")
    ]
    assert float(first["ε = 1"]) == pytest.approx(100 * value("newton", "1", 0), rel=1e-5)
    assert float(first["ε = 1 low"]) == pytest.approx(100 * value("newton", "1", 0) - 2, rel=1e-5)


def test_a_table_without_its_columns_is_refused_in_one_line(tmp_path: Path) -> None:
    path = write_fairness(tmp_path)
    table = path.with_suffix(".parquet")
    pq.write_table(pq.read_table(table).drop(["value"]), table)
    with pytest.raises(DataError, match="unreadable") as raised:
        read_subgroups(path)
    assert "\n" not in str(raised.value)


def test_ranges_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    ages = {">=80": 30, "18-39": 300, "<18": 12, "40-79": 200}
    pairs = {f"{age} x f": units for age, units in ages.items()}
    table = made(tmp_path, groups={"age": ages, "age x sex": pairs, "sex": {"f": 40, "m": 500}})
    groups = [each[4].text for each in table.rows if each[1].text == "sgd"]
    named = [group for group in groups if not group.startswith("gap")]
    order = ["<18", "18-39", "40-79", ">=80"]
    assert named == [*order, *(f"{age} x f" for age in order), "m", "f"]
