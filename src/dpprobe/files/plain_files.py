"""Reads plain files of a bounded size, which may come from strangers."""

from __future__ import annotations

import errno
import hashlib
import math
import stat
from pathlib import Path

from dpprobe.files.disk_errors import format_size

LARGEST_TEXT = 1 << 28  # bytes of a JSON file; dpprobe writes no larger files
# Arrays up to ALWAYS_READ bytes are always read; larger ones up to MOST_EXPANSION times the file.
ALWAYS_READ, MOST_EXPANSION = 1 << 28, 100
# First bytes of files that are sometimes saved in place of images or weights.
_KINDS = {
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF document",
    b"<!": "a web page, such as an error or a login page",
    b"<h": "a web page, such as an error or a login page",
    b"version https://git-lfs": "a pointer of Git LFS in place of the file itself",
}
_SPACES = dict.fromkeys(map(ord, "\t\r\n"), " ")
_TOO_LARGE = errno.EOVERFLOW  # a file too large to read; EFBIG is a file too large to write


def sha256_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def require_plain_file(path: Path, largest: float = math.inf) -> None:
    """Raises OSError for files that are too large, and for devices, pipes and sockets (endless).

    Args:
      largest: the largest accepted number of bytes.
    """
    mode, size = (status := path.stat()).st_mode, status.st_size
    if size > largest:
        raise OSError(_TOO_LARGE, f"{size:,} bytes, more than {largest:,}", str(path))
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a folder fails by itself
        raise OSError(errno.EINVAL, "a device, a pipe or a socket, not a plain file", str(path))


def read_bounded(path: Path, largest: float = LARGEST_TEXT) -> bytes:
    """Reads a plain file of at most `largest` bytes; raises OSError for any other file."""
    require_plain_file(path, largest)
    with path.open("rb") as stream:
        content = stream.read(int(largest) + 1)  # the file may have grown meanwhile
    if len(content) > largest:
        raise OSError(_TOO_LARGE, f"more than {largest:,} bytes", str(path))
    return content


def require_proportion(path: Path, name: str, promised: int) -> None:
    """Raises OSError if an array is far larger in memory or on disk than its file's size justifies.

    Args:
      promised: bytes of the array, from the file's header; up to `ALWAYS_READ` are always accepted.
    """
    if promised > max(ALWAYS_READ, MOST_EXPANSION * (size := path.stat().st_size)):
        raise OSError(
            f"{name!r:.60} needs {format_size(promised)}, but the file has {format_size(size)}, "
            f"less than 1/{MOST_EXPANSION}; if the file is right, write it without compression"
        )


def name_kind(start: bytes) -> str | None:
    """Names the kind of a file by its first bytes, without quoting them; None if unknown."""
    known = (words for first, words in _KINDS.items() if start.startswith(first))
    if (kind := next(known, None)) is not None or not start:
        return kind if start else "empty"
    printed = start.isascii() and start.decode().translate(_SPACES).isprintable()
    return "a text" if printed else None
