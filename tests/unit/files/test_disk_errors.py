"""Disks that are full, closed or limited: error messages, and how long writers wait."""

from __future__ import annotations

import errno
import logging
import os
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from dpprobe.errors import DataError, DiskError, may_pass
from dpprobe.files import disk_errors


def test_disk_errors_other_than_a_full_disk_are_not_retried(tmp_path: Path) -> None:
    write = Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS)))
    with pytest.raises(DiskError, match="mount the disk for writing"):
        disk_errors.when_there_is_room(tmp_path, 1, write)
    write.side_effect = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        disk_errors.when_there_is_room(tmp_path, 1, write)
    assert write.call_count == 2


REMEDIES = {
    errno.ENOSPC: ("cannot be written", "free space or have the quota raised"),
    errno.EDQUOT: ("cannot be written", "free space or have the quota raised"),
    errno.EFBIG: ("cannot be written", "lift the limit on sizes of files"),
    errno.EROFS: ("cannot be written", "mount the disk for writing"),
    errno.ELOOP: ("no access", "delete the link, which leads to itself"),
    errno.EACCES: ("no access", "correct the permissions"),
    errno.EPERM: ("no access", "correct the permissions"),
}


@pytest.mark.parametrize("number", sorted(disk_errors.UNWRITABLE))
def test_a_file_that_cannot_be_written_is_named_with_the_remedy(number: int) -> None:
    cause, remedy = REMEDIES[number]
    explained = disk_errors.explain_unwritable(OSError(number, "refused", "some/file"))
    assert explained is not None
    assert may_pass(explained) == (number != errno.ELOOP), (
        "only such a link cannot change by itself"
    )
    told = str(explained)
    assert told.startswith(f"some/file: {cause} (")
    assert f"; {remedy}" in told
    assert told.endswith("and run again")
    hdf5 = RuntimeError(f"id (errno = {number}, buf = 0x1)")  # HDF5's error, which names no file
    assert str(disk_errors.explain_unwritable(hdf5)) == told.replace("some/file", "a file")


@pytest.mark.parametrize("number", sorted(disk_errors.UNWRITABLE))
def test_only_full_disk_errors_are_reported_as_a_full_disk(number: int) -> None:
    full = number in (errno.ENOSPC, errno.EDQUOT)
    explained = disk_errors.explain_full_disk(Path("here"), "copying")
    with pytest.raises(DataError if full else OSError) as caught, explained:
        raise OSError(number, "refused", "some/file")
    if full:
        assert str(caught.value).startswith("here: the disk filled up while copying; free space")


def test_sizes_are_in_megabytes_from_a_tenth_on() -> None:
    sizes = [disk_errors.format_size(size) for size in (0, 99_999, 100_000, 1_260_000)]
    assert sizes == ["0 bytes", "99999 bytes", "0.1 MB", "1.3 MB"]


@pytest.mark.parametrize(
    ("limit", "total", "free", "refused"),
    [
        (resource.RLIM_INFINITY, 9, 500, None),
        (resource.RLIM_INFINITY, 9, 499, errno.ENOSPC),
        (resource.RLIM_INFINITY, 0, 0, None),  # a file system that reports no sizes
        (1_000_500, 9, 500, None),  # a megabyte more than needed
        (1_000_499, 9, 500, errno.EFBIG),
        (1_000_499, 0, 0, errno.EFBIG),
    ],
)
def test_room_is_on_the_disk_and_below_the_limit_on_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    total: int,
    free: int,
    refused: int | None,
) -> None:
    asked: list[Path] = []

    def usage(place: Path) -> Any:
        asked.append(place)
        return SimpleNamespace(total=total, free=free)

    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(shutil, "disk_usage", usage)
    folder = tmp_path / "not/there"
    if refused is None:
        disk_errors.require_room(folder, 500)
        assert asked == [tmp_path], "the folder that exists"
        return
    with pytest.raises(OSError, match="not/there") as caught:
        disk_errors.require_room(folder, 500)
    assert caught.value.errno == refused


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Lists the durations of sleeps; waiting ends after 150 s."""
    naps: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: 100 + sum(naps), sleep=naps.append)
    monkeypatch.setattr(disk_errors, "time", clock)
    monkeypatch.setattr(disk_errors, "WAIT", 150)
    monkeypatch.setattr(disk_errors, "file_system", lambda _: "/mount")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=7))
    return naps


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ENOSPC, "No space left on device"), (errno.EDQUOT, "Disk quota exceeded")],
)
def test_a_full_disk_is_waited_for_by_the_minute_until_the_end(
    slept: list[float], caplog: pytest.LogCaptureFixture, number: int, reason: str
) -> None:
    caplog.set_level(logging.INFO, logger="dpprobe")
    write = Mock(side_effect=[OSError(number, "full")] * 9)
    with pytest.raises(DiskError, match=rf"/mount \({reason}\): about 1.0 MB .* 7 bytes are free"):
        disk_errors.when_there_is_room(Path("here"), 10**6, write)
    assert slept == [60, 60, 30]
    assert write.call_count == 4
    minutes = [text.partition("waiting up to ")[2][:1] for text in caplog.messages]
    assert minutes == ["2", "2", "0"], "of 150, 90 and 30 seconds"


def test_a_disk_that_has_room_again_is_written_to(slept: list[float]) -> None:
    write = Mock(side_effect=[OSError(errno.ENOSPC, "full"), OSError(errno.ENOSPC, "full"), None])
    disk_errors.when_there_is_room(Path("here"), 10**6, write)
    assert slept == [60, 60]
