"""The typed record of a cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.errors import DataError
from dpprobe.results.cell_record import read_cell, read_statement, record_paths
from tests.support.cell_files import write_cell


def test_a_record_is_written_as_it_was_read(tmp_path: Path) -> None:
    path = write_cell(tmp_path, class_names=("no", "yes"))
    read_cell(path).write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"headline": "top5_accuracy"}, "headline: "),
        ({"rows": {"train": 1.5, "test": 2}}, "rows.train: "),
        ({"surprise": 1}, "surprise: "),
    ],
)
def test_a_fault_is_named_by_its_place(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = write_cell(tmp_path)
    write_json(path, {**read_json(path), **change})
    with pytest.raises(DataError, match=rf"metrics\.json: {message}.*; delete it and run"):
        read_cell(path)


def test_the_records_of_cells_are_where_cells_lie(tmp_path: Path) -> None:
    names = [("digits", "pixels", "sgd", "0.5"), ("digits", "pixels", "ceiling", "inf")]
    record = write_cell(tmp_path, epsilon="0.5")
    paths = record_paths(tmp_path, names)
    assert paths == [record, tmp_path / "cells/digits/pixels/ceiling/eps-inf/metrics.json"]


@pytest.mark.parametrize("text", ['{"release": "no', "[1]", None])
def test_a_statement_that_cannot_be_read_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "privacy.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=r"privacy\.json: cannot be read .*; delete it and run"):
        read_statement(path)
