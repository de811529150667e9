"""A full disk, told as one line."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpprobe.errors import DataError

MEGABYTE = 1_000_000
REMEDY = "make room, or choose a data_dir on another disk"


def is_full(error: OSError) -> bool:
    """Returns True if the disk is full, or this user's share of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def megabytes(size: int) -> str:
    """Returns a size for a person to read."""
    return f"{size / MEGABYTE:.1f} MB" if size >= MEGABYTE / 10 else f"{size} bytes"


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
