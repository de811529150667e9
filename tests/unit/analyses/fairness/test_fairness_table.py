"""The table of subgroups."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from dpprobe.analyses.fairness.fairness_table import (
    fairness_table,
    make_fairness_table,
    read_subgroups,
)
from dpprobe.exhibits.tables import Table, comma_separated, mean_cell
from tests.support.fairness_records import APART, RECORD, value_of, write_fairness

INKS, SIDES = ("bold", "thin"), ("left", "middle", "right")


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


def mean_text(row: dict[str, Any]) -> str:
    return mean_cell(row["value"], row["low"], row["high"]).text


def test_every_group_has_a_row_and_every_epsilon_a_column(tmp_path: Path) -> None:
    table = made(tmp_path)
    assert [column.title for column in table.columns][6:] == ["ε = 0.5", "ε = 2", "ε = inf"]
    expected = [mean_text(value_of("sgd", epsilon, "bold")) for epsilon in ("0.5", "2")]
    assert row(table, "pixels", "sgd", "ink", "AUC", "bold") == [*expected, ""]
    thin = mean_text(value_of("nonprivate", "inf", "thin"))
    assert row(table, "pixels", "nonprivate", "ink", "AUC", "thin") == ["", "", thin]


def test_a_gap_stands_with_chance_and_with_the_gap_without_privacy(tmp_path: Path) -> None:
    second = "cells.1.attributes.0.gaps.auc"
    weaker = {
        f"{second}.chance_gap": 0.07, f"{second}.difference_low": -0.01,
        f"{second}.difference_high": 0.07,
    }  # fmt: skip
    table = made(tmp_path, gap=APART, changes=weaker)
    names = ("pixels", "sgd", "ink", "AUC")
    assert row(table, *names, "gap, best to worst") == ["6.0 (2.5 to 9.0)"] * 2 + [""]
    assert row(table, *names, "gap by chance alone (95%)") == ["3.0", "7.0", ""]
    less = row(table, *names, "gap minus the gap of nonprivate at ∞")
    assert less == ["+3.0 ± 2.0", "+3.0 ± 4.0", ""]
    bold = {
        cells[4].text: [cell.bold for cell in cells[6:]]
        for cells in table.rows
        if [cell.text for cell in cells[:3]] == ["pixels", "sgd", "ink"]
    }
    assert bold["gap, best to worst"] == [True, False, False]
    assert bold["gap minus the gap of nonprivate at ∞"] == [True, False, False]


def test_a_gap_that_random_groups_show_too_is_not_bold(tmp_path: Path) -> None:
    def bold(**gap: float | None) -> set[bool]:
        rows = made(tmp_path, gap=gap).rows
        gaps = [cells[6:] for cells in rows if cells[4].text.startswith("gap, ")]
        return {cell.bold for cells in gaps for cell in cells if cell.text}

    assert bold(low=0.001, chance_gap=0.5) == {False}
    assert bold(low=0.001, chance_gap=None) == {True}
    assert bold(low=0.0, chance_gap=None) == {False}


def test_programs_get_the_ends_of_intervals(tmp_path: Path) -> None:
    records = [
        write_fairness(tmp_path, backbone=name, names={"unknown": left})
        for name, left in (("pixels", "one"), ("scattering", "other"))
    ]
    table = make_fairness_table(records)
    assert all(f"{left} (" in table.notes[-1] for left in ("one", "other")), "left out of each"
    rows = list(csv.DictReader(io.StringIO(comma_separated(table))))
    assert len(rows) == len(table.rows)
    (first,) = [
        each
        for each in rows
        if (each["backbone"], each["method"], each["group"]) == ("scattering", "sgd", "thin")
    ]
    thin = value_of("sgd", "2", "thin")
    assert float(first["ε = 2"]) == pytest.approx(100 * thin["value"], rel=1e-5)
    assert float(first["ε = 2 low"]) == pytest.approx(100 * thin["low"], rel=1e-5)


def test_ranges_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Others stand in that of their sizes; a pair has the order of its first column."""
    sizes = {
        group.group: group.units
        for attribute in RECORD.attributes
        for group in attribute.groups
        if not group.left_out
    }
    by_size = sorted(sizes, key=lambda group: -sizes[group])
    sides, inks = ([name for name in by_size if name in own] for own in (SIDES, INKS))
    ranges = dict(zip(sides, (">=80", "18-79", "<18"), strict=True))
    for suffix in ("", " x f"):
        names = {side: f"{ages}{suffix}" for side, ages in ranges.items()}
        table = made(tmp_path, names=names)
        groups = [each[4].text for each in table.rows if each[1].text == "sgd"]
        named = [group for group in groups if not group.startswith("gap")]
        assert named == [*inks, *(f"{ages}{suffix}" for ages in ("<18", "18-79", ">=80"))]
