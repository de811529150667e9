"""Records that tell of damage, and the first place where two nested values differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import (
    ABSENT,
    first_difference,
    parse_values,
    read_json,
    read_whole_record,
    sha256_file,
    write_json,
    write_record,
)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 2]}}, None),
        ({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 4}, ("a.b", 1, 3)),
        ({"a": 1}, {"a": 1, "b": 2}, ("b", ABSENT, 2)),
        ({"a": 1, "b": 2}, {"a": 1}, ("b", 2, ABSENT)),
        ({"a": [1]}, {"a": [2]}, ("a", [1], [2])),
        ({"a": None}, {"a": {"b": 1}}, ("a", None, {"b": 1})),
        ({"a": {"b": 1}}, {"a": None}, ("a", {"b": 1}, None)),
        ({"a": {"b": ABSENT}}, {"a": {}}, ("a", {"b": ABSENT}, {})),
    ],
)
def test_the_place_and_both_values(first: Any, second: Any, expected: Any) -> None:
    assert first_difference(first, second) == expected


def test_each_changed_byte_of_a_record_shows(tmp_path: Path) -> None:
    table, path = tmp_path / "rows.parquet", tmp_path / "record.json"
    table.write_bytes(b"rows")
    values = {"format": "dpprobe-few-shot", "results": [{"mean": 0.25}], "note": "ε"}
    write_record(path, values, table)
    assert read_json(path) == values
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in (1, 4, 32):
            changed = bytearray(content)
            changed[place] ^= bit
            with pytest.raises(ValueError, match="not valid JSON|changed after it was written"):
                parse_values(bytes(changed))
    for cut in range(len(content)):
        with pytest.raises(ValueError, match="not valid JSON|changed after it was written"):
            parse_values(content[:cut])


def test_a_record_of_before_is_read_without_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for values in ({"mean": 0.25}, [1, 2]):
        write_json(path, values)
        assert read_json(path) == read_whole_record(path) == values


def test_the_sizes_of_the_files_beside_a_record(tmp_path: Path) -> None:
    table, path = tmp_path / "rows.parquet", tmp_path / "record.json"
    other = tmp_path / "more.npy"
    for file in (table, other):
        file.write_bytes(b"rows")
    write_record(path, {"x": 1}, table, other)
    whole = read_whole_record(path)
    assert whole["file_bytes"] == {"rows.parquet": 4, "more.npy": 4}
    assert whole["file_sha256"] == {each.name: sha256_file(each) for each in (table, other)}
    other.write_bytes(b"")
    with pytest.raises(ValueError, match=r"^more\.npy has 0 bytes, not 4$"):
        read_whole_record(path)
    write_record(path, {"files": {"rows.parquet": "0" * 64}}, table)
    # a record's own hashes are not doubled
    assert list(read_whole_record(path)) == ["files", "file_bytes", "record_sha256"]
    table.write_bytes(b"row")
    with pytest.raises(ValueError, match=r"^rows\.parquet has 3 bytes, not 4$"):
        read_whole_record(path)
