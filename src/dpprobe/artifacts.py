"""Writes files whole or not at all, such as records; hashes, git commits, full disks."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpprobe.errors import DataError, DiskError

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("dpprobe")

# A temporary file carries this suffix and a random token: it never matches a pattern of finished
# files, and two processes never share one.
PARTIAL_SUFFIX = ".partial"
ABSENT = "nothing"

MEGABYTE = 1_000_000
ROOM = "make room or have the quota raised, and run again"
DISK_REMEDY = "make room, or choose a data_dir on another disk"
WAIT = 3600  # seconds that finished work waits for room
PAUSE = 60  # seconds between two tries


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success it is synced and renamed to `path`.

    On an exception the temporary file is removed and `path` keeps its earlier content, if any.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
    try:
        yield temporary
        flush_to_disk(temporary)
        temporary.replace(path)
        flush_to_disk(path.parent)
    except OSError as error:
        if explain_unwritable(error) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):  # a read-only disk refuses this too
            temporary.unlink()


def flush_to_disk(path: Path) -> None:
    """Flushes a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def canonical_json(value: Any) -> str:
    """Returns JSON with sorted keys and no spaces: equal values give equal text, NaN an error."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )


def hash_value(value: Any) -> str:
    """Returns the SHA-256 (hex) of a JSON-compatible value's canonical text."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """Returns the SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Writes text as UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes readable JSON; NaN and infinity are refused, as JSON has neither."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def read_record(path: Path, *, kind: str, version: int) -> dict[str, Any]:
    """Reads a JSON object that has the keys `format` and `format_version`.

    Args:
      kind: the value that `format` must have.
      version: the value that `format_version` must have.

    Raises:
      DataError: for a file that is not such an object, or is of another format or version.
    """
    try:
        record = read_json(path)
        written = record.get("format"), record.get("format_version")
        if written != (kind, version):
            check_not_newer(path, record, kind=kind, version=version)
            raise ValueError(f"{written[0]} {written[1]}, not {kind} {version}")
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: unreadable ({error}); delete it and run again") from error
    return dict(record)


def check_not_newer(
    where: Path | str, record: Mapping[str, Any], *, kind: str, version: int
) -> None:
    """Refuses what a newer dpprobe wrote: it may be whole, and is not to be deleted unread.

    Raises:
      DataError: for a version of the format `kind` above `version`.
    """
    written = record.get("format_version")
    if record.get("format") == kind and isinstance(written, Integral) and int(written) > version:
        raise DataError(
            f"{where}: {kind} of version {written}, newer than this dpprobe's {version}; "
            "use the newer dpprobe that wrote it, or other folders (data_dir, results_dir)"
        )


class Difference(NamedTuple):
    """A place, as dotted keys, and the two values that stand there."""

    place: str
    first: Any
    second: Any


def first_difference(first: Any, second: Any, place: str = "") -> Difference | None:
    """Returns the first place where two JSON-compatible values differ; None where they are equal.

    A key that one side lacks has the value `ABSENT` there.
    """
    if first == second:
        return None
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return Difference(place, first, second)
    for key in dict.fromkeys([*first, *second]):
        inner = f"{place}.{key}" if place else str(key)
        pair = first.get(key, ABSENT), second.get(key, ABSENT)
        if difference := first_difference(*pair, inner):
            return difference
    return Difference(place, first, second)  # one lacks a key where the other has "nothing"


def write_table(path: Path, table: pa.Table) -> None:
    """Writes an Arrow table as parquet (zstd)."""
    import pyarrow.parquet as pq  # heavy: a start of Snakemake imports this module

    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_table(path: Path) -> pa.Table:
    """Reads a table of results that is made again where it is missing.

    Raises:
      DataError: for a file that is missing, damaged or cut short.
    """
    import pyarrow as pa  # as above
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        line = str(error).splitlines()[0]
        raise DataError(f"{path}: cannot be read ({line}); delete it and run again") from error


def is_full(error: OSError) -> bool:
    """Returns True if the disk is full, or this user's share of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def format_size(size: int) -> str:
    """Returns a size for a person to read."""
    return f"{size / MEGABYTE:.1f} MB" if size >= MEGABYTE / 10 else f"{size} bytes"


def file_system(path: Path) -> Path:
    """Returns the folder on which the file system of a path is mounted."""
    folder = path.resolve()
    while not folder.is_mount():
        folder = folder.parent
    return folder


def explain_unwritable(error: OSError) -> DiskError | None:
    """Returns the one line for a file that could not be written; None for other errors."""
    place = f"{error.filename or 'a file'}: cannot be written ({os.strerror(error.errno or 0)})"
    if is_full(error):
        return DiskError(f"{place}; {ROOM}")
    if error.errno == errno.EROFS:
        return DiskError(f"{place}; have it mounted for writing, and run again")
    return None


def when_there_is_room(folder: Path, needed: int, write: Callable[[], None]) -> None:
    """Writes, and while the disk is full tries again every minute, for an hour.

    Args:
      needed: roughly how many bytes they take.
      write: the function that writes, and leaves nothing behind when it fails.

    Raises:
      DiskError: when there is no room after an hour, or the disk is read-only.
    """
    deadline = time.monotonic() + WAIT
    while True:
        try:
            write()
            return
        except OSError as error:
            if not is_full(error):
                if refused := explain_unwritable(error):
                    raise refused from error
                raise
            lacking = (
                f"{folder}: no room on {file_system(folder)} ({os.strerror(error.errno or 0)}): "
                f"about {format_size(needed)} are needed, "
                f"{format_size(shutil.disk_usage(folder).free)} are free"
            )
            left = deadline - time.monotonic()
            if left <= 0:
                raise DiskError(f"{lacking}; {ROOM}") from error
        logger.warning("%s; what is computed is kept for %.0f minutes more", lacking, left / 60)
        time.sleep(min(PAUSE, left))


def require_room(folder: Path, needed: int) -> None:
    """Raises the system's error of a full disk where fewer bytes are free.

    Raises:
      OSError: ENOSPC.
    """
    usage = shutil.disk_usage(folder)
    if usage.total and usage.free < needed:  # some network file systems say 0 to both
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


@contextmanager
def explain_full_disk(folder: Path, doing: str) -> Iterator[None]:
    """Turns the error of a full disk into one line.

    Args:
      doing: the work, such as "the split tables were written".

    Raises:
      DataError: when the disk fills up inside.
    """
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise DataError(f"{folder}: the disk filled up while {doing}; {DISK_REMEDY}") from error


def git_commit(folder: Path) -> str | None:
    """Returns the commit checked out in a folder, marked where files differ; None without git."""
    try:
        commit = _run_git(folder, "rev-parse", "HEAD")
        changed = _run_git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit} with local changes" if changed else commit


def _run_git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True, text=True, check=True, timeout=30,
    ).stdout.strip()  # fmt: skip
