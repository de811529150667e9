"""A disk that is full or cannot be written, told in one line; waiting until there is room."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpprobe.errors import DataError, DiskError

logger = logging.getLogger("dpprobe")

MEGABYTE = 1_000_000
ROOM = "make room or have the quota raised, and run again"
REMEDY = "make room, or choose a data_dir on another disk"
WAIT = 3600  # seconds that finished work waits for room
PAUSE = 60  # seconds between two tries


def is_full(error: OSError) -> bool:
    """Returns True if the disk is full, or this user's share of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def megabytes(size: int) -> str:
    """Returns a size for a person to read."""
    return f"{size / MEGABYTE:.1f} MB" if size >= MEGABYTE / 10 else f"{size} bytes"


def file_system(path: Path) -> Path:
    """Returns the folder on which the file system of a path is mounted."""
    folder = path.resolve()
    while not folder.is_mount():
        folder = folder.parent
    return folder


def unwritable(error: OSError) -> DiskError | None:
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
      folder: the place of the files.
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
                if refused := unwritable(error):
                    raise refused from error
                raise
            lacking = (
                f"{folder}: no room on {file_system(folder)} ({os.strerror(error.errno or 0)}): "
                f"about {megabytes(needed)} are needed, "
                f"{megabytes(shutil.disk_usage(folder).free)} are free"
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
def explained(folder: Path, doing: str) -> Iterator[None]:
    """Turns the error of a full disk into one line.

    Args:
      folder: the place of the files.
      doing: the work, such as "the split tables were written".

    Raises:
      DataError: when the disk fills up inside.
    """
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise DataError(f"{folder}: the disk filled up while {doing}; {REMEDY}") from error
