"""Accuracy tables."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.exhibits.tables import comma_separated, write_markdown
from dpprobe.reporting.accuracy_table import LEFT_OUT, PATIENTS, make_accuracy_table
from tests.support.cell_files import summarise, write_cell, write_study


@pytest.fixture
def summary(tmp_path: Path) -> Path:
    """Two backbones, two private methods and the ceiling, with one cell that was not run."""
    cells = write_study(tmp_path)
    absent = "pixels/sgd/eps-0.5"
    kept = [path for path in cells if absent not in path.as_posix()]
    assert len(kept) == len(cells) - 1
    return summarise(tmp_path / "digits.parquet", *kept)


def _read(*summaries: Path) -> tuple[list[list[str]], str, list[dict[str, str]]]:
    """Returns the lines of the Markdown table, its notes, and the rows for programs."""
    table = make_accuracy_table(summaries)
    lines = write_markdown(table).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    numbers = csv.DictReader(io.StringIO(comma_separated(table)))
    return cells, "\n".join(table.notes), list(numbers)


def _markdown(*summaries: Path) -> list[list[str]]:
    return _read(*summaries)[0]


def test_markdown_has_a_row_an_epsilon_and_a_column_a_curve(summary: Path) -> None:
    header, _, *rows = _markdown(summary)
    assert header[:3] == ["dataset", "epsilon", "pixels + nonprivate"]
    assert len(header) == 2 + 6
    assert [row[:2] for row in rows] == [["digits", e] for e in ("0.5", "1", "2", "inf")]
    blank = rows[0][header.index("pixels + sgd")]
    assert blank == ""
    assert rows[0][header.index("pixels + nonprivate")] == ""
    assert rows[3][header.index("pixels + nonprivate")] != ""


def test_entries_are_mean_and_both_intervals_in_percent(tmp_path: Path) -> None:
    cell = write_cell(tmp_path, epsilon="2")
    accuracy = read_json(cell)["summary"]["accuracy"]
    *_, row = _markdown(summarise(tmp_path / "digits.parquet", cell))
    half = 50 * (accuracy["high"] - accuracy["low"])
    ends = f"[{100 * accuracy['both_low']:.1f}, {100 * accuracy['both_high']:.1f}]"
    assert accuracy["both_low"] < min(accuracy["low"], accuracy["rows_low"])
    assert row[2] == f"{100 * accuracy['mean']:.1f} ± {half:.1f} {ends}"


def test_the_best_private_entry_of_a_row_is_bold(summary: Path) -> None:
    _, _, *rows = _markdown(summary)
    for row in rows[:3]:
        values = {cell: float(cell.strip("*").split(" ")[0]) for cell in row[2:] if cell}
        bold = [cell for cell in values if cell.startswith("**")]
        assert len(bold) == 1
        assert values[bold[0]] == max(values.values())
    assert not any("**" in cell for cell in rows[3]), "nothing at inf is private"


def test_a_delta_above_one_over_n_is_marked_wherever_it_is_printed(tmp_path: Path) -> None:
    cells = [write_cell(tmp_path, epsilon=epsilon) for epsilon in ("1", "inf")]
    cells.append(write_cell(tmp_path, dataset="small"))
    path = tmp_path / "digits.parquet"
    _, notes, rows = _read(summarise(path, *cells))
    assert "1/n" not in notes
    assert "delta above 1/n" not in rows[0]
    for cell in cells[:2]:
        write_json(cell, read_json(cell) | {"n": 200_000})
    _, notes, rows = _read(summarise(path, *cells))
    assert " delta: digits 1e-05 (above 1/n), small 1e-05. " in notes
    assert [row["delta above 1/n"] for row in rows] == ["true", "false", "false"]


def test_options_that_nothing_priced_are_marked_and_never_the_best(tmp_path: Path) -> None:
    cells = [write_cell(tmp_path, method=m, quality=q) for m, q in (("sgd", 1.0), ("found", 9.0))]
    cells.append(write_cell(tmp_path, method="sgd_full", quality=0.5))
    record = read_json(cells[1])
    search = {"trials": 2, "space": {"learning_rate": [0.1, 1.0]}, "held_out": 0.2}
    write_json(cells[1], record | {"head": "fine_tune", "options": {"search": search}})
    (header, _, row), notes, (numbers,) = _read(summarise(tmp_path / "digits.parquet", *cells))
    shown = dict(zip(header, row, strict=True))
    assert shown["pixels + sgd"].startswith("**")
    assert "† " in shown["pixels + found"]
    assert "*" not in shown["pixels + found"]
    assert notes.count("† ") == 1
    assert numbers["pixels + found unpriced"] == "true"
    assert "pixels + sgd unpriced" not in numbers


def test_equal_best_entries_are_all_bold(tmp_path: Path) -> None:
    cells = [write_cell(tmp_path, method=method) for method in ("sgd", "sgd_full")]
    record = read_json(cells[0])
    record["cell"]["method"] = "sgd_full"
    write_json(cells[1], record)
    *_, row = _markdown(summarise(tmp_path / "digits.parquet", *cells))
    assert row[2] == row[3]
    assert row[2].startswith("**")


def test_csv_is_numeric(summary: Path) -> None:
    (header, *_), notes, rows = _read(summary)
    assert "metric" not in {*rows[0], *header}
    assert not any(word in notes for word in ("AUC", "patient"))
    assert [row["epsilon"] for row in rows] == ["0.5", "1", "2", "inf"]
    assert [row["delta"] for row in rows] == ["1e-05"] * 3 + [""]
    assert rows[0]["pixels + sgd"] == ""
    for low, high in (("low", "high"), ("rows low", "rows high")):
        ends = [float(rows[1][f"pixels + sgd {end}"]) for end in (low, high)]
        assert 0 <= ends[0] < float(rows[1]["pixels + sgd"]) < ends[1] <= 100


def _labels(tmp_path: Path) -> Path:
    names = ("round", "even", "absent")
    cell = write_cell(tmp_path, dataset="chest", multi_label=True, class_names=names)
    return summarise(tmp_path / "chest.parquet", cell)


def test_another_metric_is_named_beside_each_dataset(tmp_path: Path, summary: Path) -> None:
    labels = _labels(tmp_path)
    (header, _, *rows), notes, found = _read(summary, labels)
    assert header[:3] == ["dataset", "metric", "epsilon"]
    assert [row[0] for row in rows] == ["digits"] * 4 + ["chest"]
    assert [row[:2] for row in rows[3:]] == [
        ["digits", "accuracy"],
        ["chest", "mean AUC over 2 of 3 labels"],
    ]
    assert [row["metric"] for row in found] == ["accuracy"] * 4 + ["auc"]
    record = read_json(tmp_path / "cells/chest/pixels/sgd/eps-1/metrics.json")
    expected = 100 * record["summary"]["auc"]["mean"]
    assert float(found[4]["pixels + sgd"]) == pytest.approx(expected, abs=1e-3)
    assert notes.startswith("Test accuracy or mean AUC over 2 of 3 labels in percent")
    assert LEFT_OUT in notes


def test_patients_are_named_where_each_counts_once(tmp_path: Path) -> None:
    cells = [write_cell(tmp_path, patients=40, seeds=seeds, method=f"m{seeds}") for seeds in (1, 3)]
    _, notes, _ = _read(summarise(tmp_path / "digits.parquet", *cells))
    assert "over seeds and test patients (bootstrap over test patients)" in notes
    assert PATIENTS in notes


@pytest.mark.parametrize(("seeds", "told"), [(1, False), (3, True)])
def test_a_table_explains_the_signs_that_it_has(tmp_path: Path, seeds: int, told: bool) -> None:
    cell = write_cell(tmp_path, epsilon="2", seeds=seeds)
    (_, _, row), notes, _ = _read(summarise(tmp_path / "digits.parquet", cell))
    assert ("±" in row[2]) is told
    assert ("±" in notes) is told
    assert "[low, high]: 95% CI over" in notes
