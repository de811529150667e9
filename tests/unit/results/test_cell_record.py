"""The typed record of a cell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpprobe.artifacts import sha256_file
from dpprobe.errors import DataError
from dpprobe.results.cell_record import check_file, read_cell, read_statement
from tests.support.cell_files import write_cell


def test_a_record_is_written_as_it_was_read(tmp_path: Path) -> None:
    path = write_cell(tmp_path, class_names=("no", "yes"))
    read_cell(path).write(tmp_path / "again.json")
    again, written = (json.loads(each.read_bytes()) for each in (tmp_path / "again.json", path))
    assert list(again.items())[:-1] == list(written.items())
    assert list(again)[-1] == "record_sha256"


def test_a_file_is_held_against_the_record_beside_it(tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    statement, heads = path.with_name("privacy.json"), path.with_name("heads.safetensors")
    assert check_file(statement) == statement  # nothing is recorded of it
    files = {file.name: sha256_file(file) for file in (statement, heads)}
    read_cell(path).model_copy(update={"files": files}).write(path, statement, heads)
    assert check_file(heads) == heads
    content = heads.read_bytes()
    heads.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"heads\.safetensors"):
        check_file(heads)
    heads.unlink()
    with pytest.raises(DataError, match=r"heads\.safetensors: .*doctor --fix"):
        check_file(heads)
    statement.write_text(statement.read_text().replace("0.996", "0.5"))
    with pytest.raises(DataError, match=r"privacy\.json"):
        read_statement(statement)
    path.write_text(path.read_text().replace('"seconds": 1.5', '"seconds": 9.5'))
    with pytest.raises(DataError, match=r"metrics\.json"):
        check_file(heads)
