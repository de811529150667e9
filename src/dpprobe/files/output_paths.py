"""Checks the output paths that a user names, before any work."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from dpprobe.errors import ConfigError


def check_output_path(path: Path, option: str) -> None:
    """Checks that a plain file or a new folder can be created at a path; leaves nothing behind.

    Raises ConfigError with the option, the path and the cause if the path is a folder, a device or
    a link to itself, or if its folder cannot be written. Raises OSError if the path is too long.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None
    except OSError as error:
        raise _explain(path, option, path, error) from error
    if mode is not None and not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
        raise ConfigError(f"{option} {path}: {kind}; name a file")
    folder = next(each for each in path.absolute().parents if os.path.lexists(each))
    try:
        with tempfile.TemporaryFile(dir=folder):  # on /proc, permissions do not tell
            return
    except OSError as error:
        raise _explain(path, option, folder, error) from error


def _explain(path: Path, option: str, place: Path, error: OSError) -> Exception:
    if error.errno == errno.ENAMETOOLONG:
        return error
    if error.errno == errno.ELOOP:
        cause = "a link that leads to itself"
    elif error.errno == errno.ENOTDIR or not place.is_dir():
        cause = "not a folder"
    else:
        cause = f"cannot be written ({os.strerror(error.errno or 0)})"
    where = "" if place == path else f"{place}: "
    return ConfigError(f"{option} {path}: {where}{cause}; name another path")
