"""Records show if they were changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.files import json_files, plain_files


def test_each_changed_byte_of_a_record_shows(tmp_path: Path) -> None:
    table, path = tmp_path / "rows.parquet", tmp_path / "record.json"
    table.write_bytes(b"rows")
    values = {"format": "dpprobe-few-shot", "results": [{"mean": 0.25}], "note": "ε"}
    json_files.write_record(path, values, table)
    assert json_files.read_json(path) == values
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in (1, 4, 32):
            changed = bytearray(content)
            changed[place] ^= bit
            with pytest.raises(ValueError, match="not valid JSON|changed after it was written"):
                json_files.parse_values(bytes(changed))
    for cut in range(len(content)):
        with pytest.raises(ValueError, match="not valid JSON|changed after it was written"):
            json_files.parse_values(content[:cut])


def test_a_record_of_before_is_read_without_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for values in ({"mean": 0.25}, [1, 2]):
        json_files.write_json(path, values)
        assert json_files.read_json(path) == json_files.read_whole_record(path) == values


def test_the_sizes_of_the_files_next_to_a_record(tmp_path: Path) -> None:
    table, path = tmp_path / "rows.parquet", tmp_path / "record.json"
    other = tmp_path / "more.npy"
    for file in (table, other):
        file.write_bytes(b"rows")
    json_files.write_record(path, {"x": 1}, table, other)
    whole = json_files.read_whole_record(path)
    assert whole["file_bytes"] == {"rows.parquet": 4, "more.npy": 4}
    assert whole["file_sha256"] == {
        each.name: plain_files.sha256_file(each) for each in (table, other)
    }
    other.write_bytes(b"")
    with pytest.raises(ValueError, match=r"^more\.npy has 0 bytes, not 4$"):
        json_files.read_whole_record(path)
    json_files.write_record(path, {"files": {"rows.parquet": "0" * 64}}, table)
    # a record's own hashes are not listed twice
    assert list(json_files.read_whole_record(path)) == ["files", "file_bytes", "record_sha256"]
    table.write_bytes(b"row")
    with pytest.raises(ValueError, match=r"^rows\.parquet has 3 bytes, not 4$"):
        json_files.read_whole_record(path)
