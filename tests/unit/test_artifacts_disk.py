"""A disk that is full or read-only is told in one line, and waited for."""

from __future__ import annotations

import errno
import logging
import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from safetensors.numpy import save_file

from dpprobe import artifacts
from dpprobe.artifacts import atomic_path, write_text
from dpprobe.errors import DiskError


def failing(path: Path, number: int, times: int) -> tuple[Callable[[], None], list[int]]:
    """A function that writes a file after so many errors, and a list with an entry a call."""
    calls: list[int] = []

    def write() -> None:
        calls.append(1)
        if len(calls) <= times:
            raise OSError(number, os.strerror(number))
        path.write_text("whole")

    return write, calls


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_waited_for(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(artifacts, "PAUSE", 0)
    write, calls = failing(tmp_path / "cell", number, 3)
    with caplog.at_level(logging.WARNING, "dpprobe"):
        artifacts.when_there_is_room(tmp_path, 2_500_000, write)
    assert (tmp_path / "cell").read_text() == "whole"
    assert len(calls) == 4
    assert len(caplog.messages) == 3
    assert (
        f"disk full on {artifacts.file_system(tmp_path)} ({os.strerror(number)})"
        in caplog.messages[0]
    )
    assert "about 2.5 MB are needed" in caplog.messages[0]


def test_the_wait_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "WAIT", 0)
    write, calls = failing(tmp_path / "cell", errno.ENOSPC, 10)
    with pytest.raises(DiskError, match="free space or have the quota raised, and run again"):
        artifacts.when_there_is_room(tmp_path, 1, write)
    assert len(calls) == 1


def test_other_errors_are_not_waited_for(tmp_path: Path) -> None:
    write, calls = failing(tmp_path / "cell", errno.EROFS, 10)
    with pytest.raises(DiskError, match="mount the disk for writing"):
        artifacts.when_there_is_room(tmp_path, 1, write)
    write, calls = failing(tmp_path / "cell", errno.EIO, 10)
    with pytest.raises(OSError, match="Input/output error"):
        artifacts.when_there_is_room(tmp_path, 1, write)
    assert len(calls) == 1


@pytest.mark.parametrize("place", ["", "data", "data/not/there/yet"])
def test_too_little_room_is_the_systems_error(place: str, tmp_path: Path) -> None:
    artifacts.require_room(tmp_path / place, 1)
    with pytest.raises(OSError, match="No space left on device"):
        artifacts.require_room(tmp_path / place, 1 << 60)


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


def write_numpy(path: Path) -> None:
    save_file({"x": np.zeros(9000)}, path)


def write_parquet(path: Path) -> None:
    pq.write_table(pa.table({"x": np.random.default_rng(0).random(90_000)}), path)


def write_words(path: Path) -> None:
    path.write_text("x" * 100_000)


def write_picture(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (300, 300), np.uint8)
    Image.fromarray(noise).save(path, format="PNG")


@pytest.mark.parametrize("write", [write_numpy, write_parquet, write_words, write_picture])
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


@pytest.mark.parametrize("number", artifacts.UNWRITABLE)
def test_each_error_of_access_names_file_cause_and_remedy(number: int) -> None:
    for error in (
        OSError(number, os.strerror(number), "some/file"),
        RuntimeError(f"Can't decrement id ref count (errno = {number}, buf = 0x1)"),
    ):
        line = str(artifacts.explain_unwritable(error))
        assert line.startswith(getattr(error, "filename", "a file"))
        assert os.strerror(number) in line
        assert line.endswith("run again")
    assert artifacts.explain_unwritable(OSError(errno.EIO, "x")) is None
    assert artifacts.explain_unwritable(KeyError("x")) is None
