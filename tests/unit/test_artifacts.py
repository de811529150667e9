"""Files are whole or absent."""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from safetensors.numpy import save_file

from dpprobe import artifacts
from dpprobe.artifacts import (
    atomic_path,
    pack_tensors,
    read_arrays,
    require_short_header,
    write_text,
)
from dpprobe.errors import DiskError


def write_half(path: Path) -> None:
    with artifacts.atomic_path(path) as temporary:
        temporary.write_text("half")
        raise TypeError("something went wrong in the middle")


def test_a_failed_write_keeps_the_earlier_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    artifacts.write_json(path, {"value": 1})
    before = path.read_text()
    with pytest.raises(TypeError):
        write_half(path)
    assert path.read_text() == before
    with pytest.raises(ValueError, match="not JSON compliant"):
        artifacts.write_json(tmp_path / "b.json", {"value": float("nan")})
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_write_removes_what_ended_writers_left_of_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signal(process: int, number: int, send: Any = os.kill) -> None:
        if process == 1:  # as of another user
            raise PermissionError(errno.EPERM, "Operation not permitted")
        send(process, number)

    monkeypatch.setattr(os, "kill", signal)
    path = tmp_path / "a[1].json"
    with subprocess.Popen(["true"]) as ended:
        pass
    with artifacts.atomic_path(path) as living:
        living.write_text("living")
        machine = living.name.removeprefix(".a[1].json.").partition("-")[0]
        names = {
            "ended": f".a[1].json.{machine}-{ended.pid}.00000000.partial",
            "of another user": f".a[1].json.{machine}-1.00000000.partial",
            "of an earlier version, old": ".a[1].json.00000000.partial",
            "of another machine, old": ".a[1].json.00000000-1.00000000.partial",
            "of another machine": ".a[1].json.00000000-2.00000000.partial",
            "of another file": f".a1.json.{machine}-{ended.pid}.00000000.partial",
        }
        for meaning, name in names.items():
            (tmp_path / name).touch()
            if meaning.endswith("old"):
                day_ago = time.time() - 86_400 - 60
                os.utime(tmp_path / name, (day_ago, day_ago))
        artifacts.write_text(path, "whole")
        others = {names[f"of another {each}"] for each in ("machine", "file", "user")}
        assert {each.name for each in tmp_path.iterdir()} == {path.name, living.name, *others}
        assert living.read_text() == "living"


def test_processes_of_another_start_or_container_are_of_another_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A number of a process may stand for another one there."""
    names = {artifacts._this_machine.__wrapped__()}
    for place, name, stub in (
        (socket, "gethostname", lambda: "far"),
        (Path, "read_text", lambda *_, **__: "another start"),
        (Path, "stat", lambda *_: SimpleNamespace(st_ino=7)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, stub)
            names.add(artifacts._this_machine.__wrapped__())
    assert len(names) == 4


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "new/a.json", []
    monkeypatch.setattr(
        artifacts, "flush_to_disk", lambda flushed: seen.append((flushed.suffix, path.exists()))
    )
    artifacts.write_json(path, {"value": 1})
    assert seen == [(".partial", False), ("", True)]
    synced: list[int] = []
    monkeypatch.undo()
    monkeypatch.setattr("os.fsync", synced.append)
    artifacts.write_private(path, b"x")
    assert len(synced) == 2
    assert path.stat().st_mode & 0o777 == 0o600


def test_equal_values_have_equal_fingerprints() -> None:
    assert artifacts.hash_value({"a": 1, "b": [0.5]}) == artifacts.hash_value({"b": [0.5], "a": 1})
    assert artifacts.hash_value({"a": 1}) != artifacts.hash_value({"a": 2})
    assert artifacts.canonical_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'
    first, second = np.arange(6), np.ones(6)
    alike: list[dict[str, np.ndarray]] = [{"a": first, "b": second}, {"b": second, "a": first}]
    others: list[dict[str, np.ndarray]] = [
        {"a": second, "b": first},
        {"a": first.astype(np.int32), "b": second},
        {"a": first.reshape(2, 3), "b": second},
        {"a": first},
    ]
    assert len({artifacts.hash_arrays(arrays) for arrays in alike}) == 1
    assert len({artifacts.hash_arrays(arrays) for arrays in [*alike, *others]}) == 5


def test_the_commit_says_when_files_differ(tmp_path: Path) -> None:
    assert artifacts.git_commit(tmp_path / "nowhere") is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "file").write_text("1")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    (tmp_path / "untracked").touch()
    commit = artifacts.git_commit(tmp_path)
    assert commit is not None
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (tmp_path / "file").write_text("2")
    assert artifacts.git_commit(tmp_path) == f"{commit} with local changes"


WHOLE = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("array", [WHOLE.T, WHOLE[:, ::2], WHOLE[::-1], WHOLE[:0], WHOLE[0]])
def test_views_of_arrays_are_packed_by_their_numbers(tmp_path: Path, array: np.ndarray) -> None:
    (tmp_path / "a").write_bytes(artifacts.pack_arrays({"a": array}, {"format": "f"}))
    _, arrays = artifacts.read_arrays(tmp_path / "a", kind="f", version=1)
    assert np.array_equal(arrays["a"], array)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 2]}}, None),
        ({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 4}, ("a.b", 1, 3)),
        ({"a": 1}, {"a": 1, "b": 2}, ("b", artifacts.ABSENT, 2)),
        ({"a": 1, "b": 2}, {"a": 1}, ("b", 2, artifacts.ABSENT)),
        ({"a": [1]}, {"a": [2]}, ("a", [1], [2])),
        ({"a": None}, {"a": {"b": 1}}, ("a", None, {"b": 1})),
        ({"a": {"b": 1}}, {"a": None}, ("a", {"b": 1}, None)),
        ({"a": {"b": artifacts.ABSENT}}, {"a": {}}, ("a", {"b": artifacts.ABSENT}, {})),
    ],
)
def test_the_place_and_both_values(first: Any, second: Any, expected: Any) -> None:
    assert artifacts.first_difference(first, second) == expected


def test_each_changed_byte_of_a_record_shows(tmp_path: Path) -> None:
    table, path = tmp_path / "rows.parquet", tmp_path / "record.json"
    table.write_bytes(b"rows")
    values = {"format": "dpprobe-few-shot", "results": [{"mean": 0.25}], "note": "ε"}
    artifacts.write_record(path, values, table)
    assert artifacts.read_json(path) == values
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in (1, 4, 32):
            changed = bytearray(content)
            changed[place] ^= bit
            with pytest.raises(ValueError, match="not valid JSON|changed after it was written"):
                artifacts.parse_values(bytes(changed))
    for cut in range(len(content)):
        with pytest.raises(ValueError, match="not valid JSON|changed after it was written"):
            artifacts.parse_values(content[:cut])


def test_a_long_header_of_safetensors_is_not_read(tmp_path: Path) -> None:
    """The library would take minutes; a header longer than its file is the library's to refuse."""
    path = tmp_path / "x.safetensors"
    path.write_bytes((2**22 + 1).to_bytes(8, "little") + b" " * (2**22 + 1))
    for read in (require_short_header, partial(read_arrays, kind="x", version=1)):
        with pytest.raises(OSError, match="a header of 4,194,305 bytes"):
            read(path)
    path.write_bytes(pack_tensors({"x": np.zeros(3)}, {}))
    require_short_header(path)


def test_a_record_of_before_is_read_without_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for values in ({"mean": 0.25}, [1, 2]):
        artifacts.write_json(path, values)
        assert artifacts.read_json(path) == artifacts.read_whole_record(path) == values


def test_the_sizes_of_the_files_beside_a_record(tmp_path: Path) -> None:
    table, path = tmp_path / "rows.parquet", tmp_path / "record.json"
    other = tmp_path / "more.npy"
    for file in (table, other):
        file.write_bytes(b"rows")
    artifacts.write_record(path, {"x": 1}, table, other)
    whole = artifacts.read_whole_record(path)
    assert whole["file_bytes"] == {"rows.parquet": 4, "more.npy": 4}
    assert whole["file_sha256"] == {
        each.name: artifacts.sha256_file(each) for each in (table, other)
    }
    other.write_bytes(b"")
    with pytest.raises(ValueError, match=r"^more\.npy has 0 bytes, not 4$"):
        artifacts.read_whole_record(path)
    artifacts.write_record(path, {"files": {"rows.parquet": "0" * 64}}, table)
    # a record's own hashes are not doubled
    assert list(artifacts.read_whole_record(path)) == ["files", "file_bytes", "record_sha256"]
    table.write_bytes(b"row")
    with pytest.raises(ValueError, match=r"^rows\.parquet has 3 bytes, not 4$"):
        artifacts.read_whole_record(path)


def test_other_errors_are_not_waited_for(tmp_path: Path) -> None:
    write = Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS)))
    with pytest.raises(DiskError, match="mount the disk for writing"):
        artifacts.when_there_is_room(tmp_path, 1, write)
    write.side_effect = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        artifacts.when_there_is_room(tmp_path, 1, write)
    assert write.call_count == 2


def test_a_read_only_disk_names_the_file_that_was_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    for name in ("write_text", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    with pytest.raises(OSError, match="Read-only") as caught:
        write_text(tmp_path / "metrics.json", "x")
    assert caught.value.filename == str(tmp_path / "metrics.json")


def test_an_error_names_the_file_that_was_wanted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(OSError, match="No space") as caught,
        atomic_path(path),
    ):
        full.write(b"x")
    assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


NOISE = np.random.default_rng(0).integers(0, 255, (300, 300), np.uint8)
WRITES: list[Callable[[Path], Any]] = [
    lambda path: save_file({"x": np.zeros(9000)}, path),
    lambda path: path.write_text("x" * 99_999),
    lambda path: pq.write_table(pa.table({"x": NOISE.reshape(-1)}), path, compression="none"),
    lambda path: Image.fromarray(NOISE).save(path, format="PNG"),
]


@pytest.mark.parametrize("write", WRITES)
def test_a_limit_on_sizes_of_files_names_the_file(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "result"
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught, atomic_path(path) as temporary:
            write(temporary)
        with pytest.raises(DiskError, match="ulimit"):  # HDF5 would end the process
            artifacts.when_there_is_room(
                tmp_path, 30_000, lambda: artifacts.require_room(tmp_path, 30_000)
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []
