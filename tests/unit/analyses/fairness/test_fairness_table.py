"""Table and section of subgroups: order of rows, gaps beyond chance in bold, and notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dpprobe.analyses.fairness import fairness_table
from dpprobe.analyses.fairness.fairness_record import ALL_LABELS, FairnessRecord
from tests.support.fairness_records import APART, NO_INTERVAL, made_record, write_fairness
from tests.support.report_page import section_page
from tests.support.shown import rows_of

METRIC = "cells.{}.attributes.{}.gaps.{}"
AUC = METRIC.format(0, 0, "auc")


def _rows(*paths: Path) -> list[dict[str, str]]:
    return rows_of(fairness_table.make_fairness_table(paths))


def _section(folder: Path, *paths: Path) -> Any:
    page = replace(section_page("other", "digits"), folder=folder)
    (part,) = fairness_table.make_section(paths, page)
    return part


def test_groups_have_the_values_of_the_record_s_table(tmp_path: Path) -> None:
    path = write_fairness(tmp_path)
    table = pq.read_table(path.with_suffix(".parquet")).to_pylist()
    values = {
        (row["method"], row["epsilon"], row["attribute"], row["group"]): row["value"]
        for row in table
        if row["label"] == ALL_LABELS and row["metric"] == "auc"
    }
    rows = [row for row in _rows(path) if "gap" not in row["group"]]
    assert rows
    columns = [name for name in rows[0] if name.startswith("ε")]
    assert columns == ["ε = 0.5", "ε = 2", "ε = inf"]
    other = write_fairness(tmp_path, backbone="b", names={"2": "4"})
    assert [*_rows(path, other)[0]][-4:] == ["ε = 0.5", "ε = 2", "ε = 4", "ε = inf"], "of all"
    for row in rows:
        assert row["metric"] == "AUC", "the other metrics show gaps alone"
        for column in columns:
            epsilon = column.removeprefix("ε = ")
            value = values.get((row["method"], epsilon, row["attribute"], row["group"]))
            shown = row[column]
            assert shown == "" if value is None else shown.startswith(f"{100 * value:.1f}"), row


def _gaps(path: Path, attribute: str = "ink", metric: str = "AUC") -> dict[str, str]:
    """Returns the gaps of sgd at ε = 0.5, by group."""
    return {
        row["group"]: row["ε = 0.5"]
        for row in _rows(path)
        if (row["method"], row["attribute"], row["metric"]) == ("sgd", attribute, metric)
        and row["group"].startswith("gap")
    }


def test_the_fairness_table_shows_gap_and_gap_by_chance_and_reference_difference(
    tmp_path: Path,
) -> None:
    assert _gaps(write_fairness(tmp_path / "apart", gap=APART)) == {
        "gap, best to worst": "6.0 (2.5 to 9.0)",
        "gap by chance alone (95%)": "3.0",
        "gap minus the gap of nonprivate at ∞": "+3.0 ± 2.0",
    }
    free = {
        (row["ε = 0.5"], row["ε = inf"])
        for row in _rows(tmp_path / "apart/fairness/digits/pixels.json")
        if row["method"] == "nonprivate" and "best to worst" in row["group"]
    }
    assert free == {("", "6.0 (2.5 to 9.0)")}, "at its own epsilon alone"
    narrower = {"difference": -0.03, "difference_low": -0.05, "difference_high": -0.01}
    path = write_fairness(tmp_path / "narrower", gap=APART | narrower)
    assert _gaps(path)["gap minus the gap of nonprivate at ∞"] == "-3.0 ± 2.0"
    alone = write_fairness(tmp_path / "alone", gap=APART | NO_INTERVAL, reference=False)
    assert _gaps(alone) == {"gap, best to worst": "6.0", "gap by chance alone (95%)": ""}


def test_a_gap_that_cannot_be_measured_is_reported(tmp_path: Path) -> None:
    changes = {METRIC.format(k, 0, "auc") + ".gap": None for k in (0, 1)}
    path = write_fairness(tmp_path, changes=changes)
    assert _gaps(path)["gap, best to worst"] == "not measurable"
    record = FairnessRecord.read(path)
    assert fairness_table.shown_metric(record, "ink") == "auc", "the reference has one"
    every = {METRIC.format(k, 0, "auc") + ".gap": None for k in range(len(made_record().cells))}
    record = FairnessRecord.read(write_fairness(tmp_path / "none", changes=every))
    assert fairness_table.shown_metric(record, "ink") != "auc"
    assert fairness_table.shown_metric(record, "gone") is None
    assert fairness_table.shown_metrics(record, "gone") == []


def _is_bold(path: Path, title: str) -> bool:
    """Returns True if the value of sgd at ε = 0.5 is bold in a row of gaps in ink's AUC."""
    return any(
        row[6].bold
        for row in fairness_table.make_fairness_table([path]).rows
        if [cell.text for cell in row[1:4]] == ["sgd", "ink", "AUC"] and title in row[4].text
    )


def _gap(**changes: float | None) -> Any:
    gap = made_record().cells[0].find_gap("ink", "auc")
    assert gap is not None
    return gap.model_copy(update={**APART, **changes})


@pytest.mark.parametrize(
    ("changes", "beyond"),
    [
        ({}, True),
        ({"low": 0.0}, False),
        ({"low": -0.1}, False),
        ({"chance_gap": 0.06}, False),
        ({"chance_gap": 0.07}, False),
        ({"chance_gap": None}, True),
        ({"low": None, "high": None}, False),
        ({"gap": None}, False),
    ],
    ids=str,
)
def test_a_gap_is_beyond_chance_above_0_and_above_chance(
    tmp_path: Path, changes: dict[str, float | None], beyond: bool
) -> None:
    assert fairness_table.beyond_chance(_gap(**changes)) is beyond
    assert _is_bold(write_fairness(tmp_path, gap=APART | changes), "gap, best") is beyond


@pytest.mark.parametrize(
    ("low", "high", "apart"),
    [
        (0.01, 0.1, True),
        (-0.1, -0.01, True),
        (0.0, 0.1, False),
        (-0.1, 0.0, False),
        (-0.1, 0.1, False),
        (None, None, False),
    ],
)
def test_a_difference_is_bold_only_if_its_interval_excludes_0(
    tmp_path: Path, low: float | None, high: float | None, apart: bool
) -> None:
    interval = {"difference_low": low, "difference_high": high}
    assert fairness_table.stands_apart(_gap(**interval)) is apart
    assert _is_bold(write_fairness(tmp_path, gap=APART | interval), "gap minus") is apart


def _notes(path: Path) -> str:
    return "\n".join(fairness_table.make_fairness_table([path]).notes)


def test_notes_say_what_was_compared_and_what_left_out(tmp_path: Path) -> None:
    plain = _notes(write_fairness(tmp_path))
    assert "Not private" in plain
    need = made_record().minimum
    assert f"{need.units} test rows, {need.positives} with and {need.negatives} without" in plain
    assert "Left out: side: unknown" in plain
    changes: Mapping[str, Any] = {
        "units": 321,
        "confidence": 0.9,
        "cell_headline": "macro_accuracy",
        "attributes.1.groups.3.left_out": None,
        "attributes.0.compared": {"auc": {"labels": [], "left_out": {"left": "3 rows, 30 needed"}}},
    }
    other = _notes(write_fairness(tmp_path, changes=changes))
    assert "90% intervals over test patients" in other
    assert fairness_table.BY_ACCURACY in other
    assert "Left out: ink, AUC: left (3 rows, 30 needed)." in other
    assert fairness_table.BY_ACCURACY not in plain
    paths = write_fairness(tmp_path / "b", backbone="b"), write_fairness(tmp_path, changes=changes)
    assert fairness_table.BY_ACCURACY in fairness_table.make_fairness_table(paths).notes
    risk = {"cells.0.epsilon": "advantage-0.1", "cells.0.epsilon_at_delta": 0.46}
    assert "0.46" in _notes(write_fairness(tmp_path / "risk", changes=risk))


def test_a_section_counts_the_cells_beyond_chance_and_next_to_their_reference(
    tmp_path: Path,
) -> None:
    path = write_fairness(
        tmp_path,
        gap=APART | {"rate": "selection_rate", "label": "even"},
        changes={
            "confidence": 0.8,
            METRIC.format(1, 0, "auc"): {
                **made_record().cells[1].attributes[0].gaps["auc"].model_dump(),
                **APART,
                "chance_gap": 0.1,
                "difference_low": -0.05,
                "difference_high": -0.01,
                "gap": 0.08,
                "groups": 5,
            },
        },
    )
    part = _section(tmp_path, path)
    told = fairness_table.describe_extreme("bold", 0.314, part["gaps"][1][4])
    assert told == "bold (31.4, share predicted of even)"
    alone = {AUC.replace("0", "1", 1) + ".difference_low": None, "confidence": 0.8}
    less = _section(tmp_path / "b", write_fairness(tmp_path / "b", changes=alone))["summary"]
    assert (less[0]["private"], less[0]["compared"], less[0]["by_chance"]) == (2, 1, "0.1")
    (summary,) = [
        each
        for each in part["summary"]
        if each["attribute"] == "ink" and each["metric"].endswith("AUC over labels")
    ]
    assert summary == {
        "backbone": "pixels",
        "attribute": "ink",
        "metric": "mean AUC over labels",
        "groups": 5,
        "private": 2,
        "wide": 1,
        "compared": 2,
        "larger": 1,
        "smaller": 1,
        "by_chance": "0.2",  # 10% of two
        "widest": "8.0",
    }
    assert (part["units"], part["confidence"]) == ("rows", "80")
    assert part["uncompared"] == []
    places = [(name, cell.method, cell.epsilon) for name, _, _, cell, _ in part["gaps"]]
    assert places[:3] == [("ink", "nonprivate", "inf"), ("ink", "sgd", "0.5"), ("ink", "sgd", "2")]
    assert part["gaps_count"] == len(part["gaps"])
    files = [(kind, link) for _, kind, link in part["files"]]
    assert files == [
        ("JSON", "fairness/digits/pixels.json"),
        ("PARQUET", "fairness/digits/pixels.parquet"),
    ]
