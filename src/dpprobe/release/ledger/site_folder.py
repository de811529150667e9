"""A site's private folder for one release: its path, its lock, and whether sums were sent.

An entry whose sums were sent counts permanently. The ledger records the sending, and also looks for
messages in this folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpprobe.errors import PrivacyError

LOCK_FILE = "lock"


def site_folder(folder: Path, release: str) -> Path:
    """Returns a site's private folder for a release, in the folder of the dataset's ledger."""
    return folder / f"site-{release}"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Locks a private folder; raises PrivacyError if another process of the site has the lock."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PrivacyError(
                f"{folder}: another process of this site is at work for this release; wait for it"
            ) from error
        yield
    finally:
        os.close(lock)


def has_sent(folder: Path) -> bool:
    """Returns True if the private folder has a message, which other sites may have received."""
    return any(folder.glob("sums-*.safetensors"))
