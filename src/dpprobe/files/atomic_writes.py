"""Writes files completely or not at all."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from dpprobe.errors import LASTING
from dpprobe.files.disk_errors import UNWRITABLE, find_error_number

# Names of temporary files contain their process, a random token and PARTIAL_SUFFIX. So these names
# match no pattern of finished files, and two processes never share a temporary file.
PARTIAL_SUFFIX = ".partial"
_TEMPORARY = re.compile(
    r"\.(?P<name>.+?)\.(?:(?P<machine>[0-9a-f]{8})-(?P<process>\d+)\.)?[0-9a-f]{8}\.partial",
    re.DOTALL,
)
_DAY = 86400


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the same folder; on success, syncs it and renames it to `path`.

    After an exception the temporary file is removed, and `path` still has its earlier content.
    Temporary files of killed processes are removed at the next write.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{PARTIAL_SUFFIX}"):
        if is_left_behind(left, path.name):
            with suppress(OSError):
                left.unlink()
    token = f"{name_machine()}-{os.getpid()}.{secrets.token_hex(4)}"
    temporary = path.with_name(f".{path.name}.{token}{PARTIAL_SUFFIX}")
    try:
        yield temporary
        flush_to_disk(temporary)
        temporary.replace(path)
        flush_to_disk(path.parent)
    except Exception as error:
        number = find_error_number(error)
        if number not in {*UNWRITABLE, *LASTING}:
            raise
        named = getattr(error, "filename", None) or str(temporary)
        wanted = str(path) if named == str(temporary) else named
        raise OSError(number, os.strerror(number), wanted) from error
    finally:
        with suppress(OSError):  # a read-only disk refuses the removal
            temporary.unlink()


def is_left_behind(temporary: Path, name: str | None = None) -> bool:
    """Returns True if a file is a temporary file (by default for any name) of an ended process.

    For a file from another machine or an earlier version, returns True after a day without changes.
    """
    parts = _TEMPORARY.fullmatch(temporary.name)
    if parts is None or name not in (None, parts["name"]):
        return False
    try:
        if parts["machine"] != name_machine():
            return time.time() - temporary.lstat().st_mtime > _DAY
        os.kill(int(parts["process"]), 0)
    except (ProcessLookupError, FileNotFoundError):
        return True
    except OSError:  # another user's process
        return False
    return False


@cache
def name_machine() -> str:
    """Identifies this start of this machine, and its container: the scope of process numbers."""
    facts = [socket.gethostname()]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8"))
        facts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.sha256("".join(facts).encode()).hexdigest()[:8]


def flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner may read, completely or not at all."""
    with atomic_path(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
