"""Arrays with a header, and disks that are full, closed or limited: what is said and waited for."""

from __future__ import annotations

import errno
import logging
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import save

from dpprobe import artifacts
from dpprobe.errors import DataError, DiskError, may_pass

HEADER = {"format": "f", "format_version": 2}


def write_arrays(path: Path, metadata: dict[str, str] | None) -> int:
    path.write_bytes(save({"a": np.arange(3)}, metadata=metadata))
    return path.stat().st_size


def test_arrays_have_a_header_of_a_version_that_is_known(tmp_path: Path) -> None:
    path = tmp_path / "a"
    size = write_arrays(path, {"dpprobe": artifacts.canonical_json(HEADER)})
    header, arrays = artifacts.read_arrays(path, kind="f", version=2, largest=size)
    assert header == HEADER
    np.testing.assert_array_equal(arrays["a"], np.arange(3))
    with pytest.raises(DataError, match="f of version 2, newer than this dpprobe's 1; use the"):
        artifacts.read_arrays(path, kind="f", version=1, largest=size)
    with pytest.raises(OSError, match=f"{size} bytes, more than {size - 1}"):
        artifacts.read_arrays(path, kind="f", version=2, largest=size - 1)


@pytest.mark.parametrize("metadata", [None, {"x": "y"}, {"dpprobe": "[]"}, {"dpprobe": "3"}])
def test_arrays_without_a_header_are_no_record(
    tmp_path: Path, metadata: dict[str, str] | None
) -> None:
    said = "has no attribute" if "dpprobe" in (metadata or {}) else "^'dpprobe'$"
    size = write_arrays(tmp_path / "a", metadata)
    with pytest.raises(ValueError, match=said):
        artifacts.read_arrays(tmp_path / "a", kind="f", version=2, largest=size)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(5, "Input/output error"), "Input/output error"),
        (OSError("plain\nsecond"), "plain"),
        (pa.ArrowInvalid("bad\nfile"), "bad"),
        (pa.ArrowException(), r"ArrowException\(\)"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"), ".*position 0: odd"),
    ],
)
def test_a_damaged_table_is_told_in_a_line(tmp_path: Path, error: Exception, said: str) -> None:
    (tmp_path / "a").touch()
    explained = artifacts.explain_parquet(tmp_path / "a", DataError, "table")
    with pytest.raises(DataError, match=rf"^table \({said}\); replace it$"), explained:
        raise error
    with pytest.raises(type(error)), artifacts.explain_full_disk(Path("here"), "copying"):
        raise error
    assert artifacts.explain_unwritable(error) is None


def test_a_programmer_s_error_in_a_table_is_not_the_table_s(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(KeyError), artifacts.explain_parquet(tmp_path / "a", DataError, "table"):
        raise KeyError("x")


REMEDIES = {
    errno.ENOSPC: ("cannot be written", "free space or have the quota raised"),
    errno.EDQUOT: ("cannot be written", "free space or have the quota raised"),
    errno.EFBIG: ("cannot be written", "lift the limit on sizes of files"),
    errno.EROFS: ("cannot be written", "mount the disk for writing"),
    errno.ELOOP: ("no access", "delete the link, which leads to itself"),
    errno.EACCES: ("no access", "correct the permissions"),
    errno.EPERM: ("no access", "correct the permissions"),
}


@pytest.mark.parametrize("number", sorted(artifacts.UNWRITABLE))
def test_a_file_that_cannot_be_written_is_named_with_the_remedy(number: int) -> None:
    cause, remedy = REMEDIES[number]
    explained = artifacts.explain_unwritable(OSError(number, "refused", "some/file"))
    assert explained is not None
    assert may_pass(explained) == (number != errno.ELOOP), (
        "only such a link cannot change by itself"
    )
    told = str(explained)
    assert told.startswith(f"some/file: {cause} (")
    assert f"; {remedy}" in told
    assert told.endswith("and run again")
    hdf5 = RuntimeError(f"id (errno = {number}, buf = 0x1)")  # of HDF5, which names no file
    assert str(artifacts.explain_unwritable(hdf5)) == told.replace("some/file", "a file")


@pytest.mark.parametrize("number", sorted(artifacts.UNWRITABLE))
def test_only_a_full_disk_is_told_as_one(number: int) -> None:
    full = number in (errno.ENOSPC, errno.EDQUOT)
    explained = artifacts.explain_full_disk(Path("here"), "copying")
    with pytest.raises(DataError if full else OSError) as caught, explained:
        raise OSError(number, "refused", "some/file")
    if full:
        assert str(caught.value).startswith("here: the disk filled up while copying; free space")


def test_sizes_are_in_megabytes_from_a_tenth_on() -> None:
    sizes = [artifacts.format_size(size) for size in (0, 99_999, 100_000, 1_260_000)]
    assert sizes == ["0 bytes", "99999 bytes", "0.1 MB", "1.3 MB"]


@pytest.mark.parametrize(
    ("limit", "total", "free", "refused"),
    [
        (resource.RLIM_INFINITY, 9, 500, None),
        (resource.RLIM_INFINITY, 9, 499, errno.ENOSPC),
        (resource.RLIM_INFINITY, 0, 0, None),  # a file system that reports no sizes
        (1_000_500, 9, 500, None),  # a megabyte more than is needed
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
        artifacts.require_room(folder, 500)
        assert asked == [tmp_path], "the folder that exists"
        return
    with pytest.raises(OSError, match="not/there") as caught:
        artifacts.require_room(folder, 500)
    assert caught.value.errno == refused


def test_a_machine_without_git_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert artifacts.git_commit(tmp_path) is None


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Lists how long was slept, where at most 150 s are waited for."""
    naps: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: 100 + sum(naps), sleep=naps.append)
    monkeypatch.setattr(artifacts, "time", clock)
    monkeypatch.setattr(artifacts, "WAIT", 150)
    monkeypatch.setattr(artifacts, "file_system", lambda _: "/mount")
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
        artifacts.when_there_is_room(Path("here"), 10**6, write)
    assert slept == [60, 60, 30]
    assert write.call_count == 4
    minutes = [text.partition("waiting up to ")[2][:1] for text in caplog.messages]
    assert minutes == ["2", "2", "0"], "of 150, 90 and 30 seconds"


def test_a_disk_that_has_room_again_is_written_to(slept: list[float]) -> None:
    write = Mock(side_effect=[OSError(errno.ENOSPC, "full"), OSError(errno.ENOSPC, "full"), None])
    artifacts.when_there_is_room(Path("here"), 10**6, write)
    assert slept == [60, 60]
