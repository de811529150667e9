"""The tables and the report's section of rare classes."""

from __future__ import annotations

import csv
from pathlib import Path

from dpprobe.analyses.imbalance.imbalance_record import ImbalanceRecord
from dpprobe.analyses.imbalance.imbalance_table import (
    best_table,
    in_words,
    law_words,
    write_imbalance_tables,
)
from dpprobe.analyses.imbalance.rare_classes import fit_law
from dpprobe.analyses.imbalance.show import make_section
from tests.support.imbalance_records import CLIPPING, imbalance_record, lawful_cells, rare_cell
from tests.support.report_page import section_page


def record(**changes: object) -> ImbalanceRecord:
    cells = [
        *lawful_cells(1.0, 1.0, clipping=CLIPPING),
        *lawful_cells(1.0, 1.0, half=20.0, method="prototypes"),
        rare_cell(0.8, method="nonprivate", epsilon="inf", private=False, reference=None,
                  reference_recall=None, drop=None, drop_low=None, drop_high=None, auc=None),
    ]  # fmt: skip
    return imbalance_record(cells, **changes)


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


def test_methods_that_are_their_references_are_named() -> None:
    """Without a ceiling each method is compared with itself at epsilon inf."""
    cells = [
        rare_cell(0.5, epsilon="1", reference=("sgd", "inf"), reference_recall=0.6),
        rare_cell(0.5, epsilon="8", method="prototypes", reference=("prototypes", "inf")),
    ]
    row = best_table([imbalance_record(cells)]).rows[0]
    assert row[-1].text == "60.0 sgd, 80.0 prototypes"


def test_a_half_point_beyond_what_was_tried_says_so() -> None:
    near, far = (fit_law(lawful_cells(1.0, 1.0, half=half), method="sgd") for half in (200, 9))
    assert (near.is_extrapolated, far.is_extrapolated) == (False, True)
    assert "extrapolated" not in law_words(near)
    assert "extrapolated: 50 to 5,000 images and epsilon 0.1 to 8 were tried" in law_words(far)


def test_files_hold_every_number_and_its_words(tmp_path: Path) -> None:
    path = tmp_path / "pixels.json"
    made = record()
    made.write(path)
    files = {"csv": tmp_path / "t.csv", "markdown": tmp_path / "t.md"}
    write_imbalance_tables([path], **files)
    with files["csv"].open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(made.cells)
    first = rows[0]
    assert float(first["recall"]) == round(made.cells[0].recall.mean, 4)
    assert (first["clipped_class"], first["clip_cosine_others"]) == ("0.9000", "0.9900")
    assert rows[-1]["auc"] == rows[-1]["drop"] == rows[-1]["clipped_class"] == ""
    text = files["markdown"].read_text(encoding="utf-8")
    assert "cat by sgd from" in text
    assert "ratio 1 [1, 1]" in text
    assert "nan" not in text.lower()


def test_several_backbones_have_a_law_of_their_dimension() -> None:
    records = [record(), record(backbone="vit", dimension=768)]
    lines = in_words(records)
    assert any(
        line.startswith("All backbones, sgd: ") and "ln(dimension)" in line for line in lines
    )
    assert not any(line.startswith("All backbones") for line in in_words(records[:1]))


def test_the_section_has_a_part_a_dataset(tmp_path: Path) -> None:
    for name in ("pixels", "vit"):
        record(backbone=name).write(tmp_path / f"{name}.json")
    (part,) = make_section(sorted(tmp_path.glob("*.json")), section_page("other", "digits"))
    assert part["dataset"] == "digits"
    assert {row["backbone"] for row in part["break_downs"]} == {"pixels", "vit"}
    assert {(row["backbone"], row["method"]) for row in part["laws"]} == {
        (backbone, method) for backbone in ("pixels", "vit") for method in ("sgd", "prototypes")
    }
    assert {row["method"] for row in part["clipping"]} == {"sgd"}
    assert part["clipping"][0]["numbers"][:2] == ["90.0", "20.0"]
    assert make_section([], section_page("digits")) == []
