"""Explains full disks and files that cannot be written; waits for space."""

from __future__ import annotations

import errno
import logging
import os
import re
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpprobe.errors import DataError, DiskError

logger = logging.getLogger("dpprobe")

MEGABYTE = 1_000_000
ROOM = "free space or have the quota raised, and run again"
DISK_REMEDY = "free space, or choose a data_dir on another disk"
WAIT = 3600  # seconds to wait for disk space before finished work is lost
PAUSE = 60  # seconds between two attempts
# The system's errors for files that cannot be written, with the user's remedies.
UNWRITABLE = {
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EFBIG: "lift the limit on sizes of files (`ulimit -f unlimited`), and run again",
    errno.ELOOP: "delete the link, which leads to itself, and run again",
    errno.EROFS: "mount the disk for writing, and run again",
    errno.EACCES: "correct the permissions of the file and its folder, and run again",
    errno.EPERM: "correct the permissions of the file and its folder, and run again",
}


def find_error_number(error: Exception) -> int:
    """Returns an error's errno, if need be from a library's message; 0 if there is none."""
    pattern = r"(?:errno = |os error |os { code: |\[Errno )(\d+)"
    printed = re.search(pattern, str(error), re.IGNORECASE)
    return getattr(error, "errno", None) or (int(printed[1]) if printed else 0)


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def format_size(size: int) -> str:
    return f"{size / MEGABYTE:.1f} MB" if size >= MEGABYTE / 10 else f"{size} bytes"


def file_system(path: Path) -> Path:
    """Returns the mount point of a path."""
    folder = path.resolve()
    while not folder.is_mount():
        folder = folder.parent
    return folder


def explain_unwritable(error: Exception) -> DiskError | None:
    """Returns an error with file and remedy if the system refuses access; None for other errors."""
    number = find_error_number(error)
    if number not in UNWRITABLE:
        return None
    named = getattr(error, "filename", None) or "a file"
    refused = number in (errno.EACCES, errno.EPERM)  # the system may refuse reading or writing
    what = "no access" if refused or number == errno.ELOOP else "cannot be written"
    explained = DiskError(f"{named}: {what} ({os.strerror(number)}); {UNWRITABLE[number]}")
    explained.passes = number != errno.ELOOP
    return explained


def when_there_is_room(folder: Path, needed: int, write: Callable[[], None]) -> None:
    """Retries `write` each minute while the disk is full; raises DiskError after an hour.

    `write` must leave no files behind if it fails. `needed` is the approximate size in bytes.
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
                f"{folder}: disk full on {file_system(folder)} ({os.strerror(error.errno or 0)}): "
                f"about {format_size(needed)} are needed, "
                f"{format_size(shutil.disk_usage(folder).free)} are free"
            )
            left = deadline - time.monotonic()
            if left <= 0:
                raise DiskError(f"{lacking}; {ROOM}") from error
        logger.warning(
            "%s; waiting up to %.0f more minutes; free space or have the quota raised",
            lacking,
            left / 60,
        )
        time.sleep(min(PAUSE, left))


def require_room(folder: Path, needed: int) -> None:
    """Raises the system's error if `needed` bytes are not free, or exceed the file size limit.

    HDF5 would end the whole process on a full disk or at a limit of file sizes. `folder` need not
    exist yet.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < needed + MEGABYTE:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(folder))
    above = (folder, *folder.absolute().parents)
    usage = shutil.disk_usage(next(each for each in above if each.exists()))
    if usage.total and usage.free < needed:  # some network file systems report sizes of 0
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


@contextmanager
def explain_full_disk(folder: Path, doing: str) -> Iterator[None]:
    """Raises DataError if the disk fills up in the `with` block; `doing` describes the work."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise DataError(f"{folder}: the disk filled up while {doing}; {DISK_REMEDY}") from error
