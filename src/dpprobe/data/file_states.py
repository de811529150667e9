"""Hashes the state of a source's files, so that a run notices changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from dpprobe.errors import ConfigError


def hash_file_states(files: Iterable[tuple[str, str | os.PathLike[str]]]) -> str | None:
    """Hashes names, sizes and times of files, given as (name, path); returns None without files.

    The hash also changes if an older file replaces a file. Raises ConfigError for a missing file.
    """
    states = []
    for name, path in files:
        try:
            status = os.stat(path)  # noqa: PTH116  # path may be an os.DirEntry
        except OSError as error:
            place = os.fspath(path)
            raise ConfigError(
                f"{place}: {error.strerror}; restore the file, or remove it from the dataset"
            ) from error
        states.append(f"{name}\0{status.st_size}\0{status.st_mtime_ns}")
    if not states:
        return None
    return hashlib.sha256(os.fsencode("\n".join(sorted(states)))).hexdigest()
