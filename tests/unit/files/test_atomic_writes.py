"""Files are complete or absent."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from safetensors.numpy import save_file

from dpprobe.errors import DiskError
from dpprobe.files import atomic_writes, disk_errors, json_files
from dpprobe.files.atomic_writes import atomic_path, write_text


def write_half(path: Path) -> None:
    with atomic_writes.atomic_path(path) as temporary:
        temporary.write_text("half")
        raise TypeError("something went wrong in the middle")


def test_a_failed_write_keeps_the_earlier_file_and_adds_no_other_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.json"
    json_files.write_json(path, {"value": 1})
    before = path.read_text()
    with pytest.raises(TypeError):
        write_half(path)
    assert path.read_text() == before
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_files.write_json(tmp_path / "b.json", {"value": float("nan")})
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_write_removes_partial_files_of_ended_writers_of_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signal(process: int, number: int, send: Any = os.kill) -> None:
        if process == 1:  # belongs to another user
            raise PermissionError(errno.EPERM, "Operation not permitted")
        send(process, number)

    monkeypatch.setattr(os, "kill", signal)
    path = tmp_path / "a[1].json"
    with subprocess.Popen(["true"]) as ended:
        pass
    with atomic_writes.atomic_path(path) as living:
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
        atomic_writes.write_text(path, "whole")
        others = {names[f"of another {each}"] for each in ("machine", "file", "user")}
        assert {each.name for each in tmp_path.iterdir()} == {path.name, living.name, *others}
        assert living.read_text() == "living"


def test_processes_of_another_start_or_container_are_of_another_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a restart or in a container, a process number may belong to another process."""
    names = {atomic_writes.name_machine.__wrapped__()}
    for place, name, stub in (
        (socket, "gethostname", lambda: "far"),
        (Path, "read_text", lambda *_, **__: "another start"),
        (Path, "stat", lambda *_: SimpleNamespace(st_ino=7)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, stub)
            names.add(atomic_writes.name_machine.__wrapped__())
    assert len(names) == 4


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "new/a.json", []
    monkeypatch.setattr(
        atomic_writes, "flush_to_disk", lambda flushed: seen.append((flushed.suffix, path.exists()))
    )
    json_files.write_json(path, {"value": 1})
    assert seen == [(".partial", False), ("", True)]
    synced: list[int] = []
    monkeypatch.undo()
    monkeypatch.setattr("os.fsync", synced.append)
    atomic_writes.write_private(path, b"x")
    assert len(synced) == 2
    assert path.stat().st_mode & 0o777 == 0o600


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
            disk_errors.when_there_is_room(
                tmp_path, 30_000, lambda: disk_errors.require_room(tmp_path, 30_000)
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []
