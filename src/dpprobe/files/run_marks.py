"""Marks folders that a run uses, because two runs would delete and replace each other's files.

Snakemake locks only the working directory, but runs in two working directories may share a
results_dir. So a run puts marks into its results_dir and data_dir, locked until the run ends.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dpprobe.errors import DataError, StoreError

FOLDER = ".runs"
# The environment variable with the folders that a run marked, as JSON, for its jobs.
MARKED = "DPPROBE_MARKED"
_DAYS = 30  # older marks of other machines are removed, because machines may not share locks
_HELD: list[int] = []  # open file descriptors, which keep this process's marks locked
_TURN: list[int] = []  # the open file of this process's turn, if it has one


class OtherRun(NamedTuple):
    """A run that works on the same folder from another working directory."""

    folder: str
    host: str
    process: int
    started: str
    shared: Path

    def describe(self) -> str:
        """Describes the run: folder, process, machine and start, and the folder shared with it."""
        return (
            f"another run works on {self.shared} (in {self.folder}, process {self.process} on "
            f"{self.host}, since {self.started})"
        )


def mark_run(folders: Iterable[Path]) -> None:
    """Marks folders as used by a run in the working directory, until this process ends.

    Folders that cannot be written or locked are not marked, and the run continues.
    """
    known = {
        "folder": str(Path.cwd()),
        "inode": Path().stat().st_ino,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "started": time.strftime("%Y-%m-%d %H:%M"),
    }
    for folder in dict.fromkeys(folders):
        is_new = not folder.exists()
        with suppress(OSError):
            (folder / FOLDER).mkdir(parents=True, exist_ok=True)
            path = folder / FOLDER / f"{secrets.token_hex(8)}.json"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            _HELD.append(descriptor)
            atexit.register(_remove_mark, path, with_folder=is_new)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, json.dumps(known).encode())


def _remove_mark(path: Path, *, with_folder: bool) -> None:
    """Removes a mark, and folders that contained only this mark."""
    with suppress(OSError):
        path.unlink()
        path.parent.rmdir()
        if with_folder:
            path.parent.parent.rmdir()


def take_turn(folder: Path) -> None:
    """Waits for the exclusive right, until `end_turn`, to take or delete Snakemake's locks.

    Without turns, two starting runs could both find no lock, and a run that ends would delete the
    folder of locks of a run that starts. The end of a process also ends its turn.

    Args:
      folder: the folder `.snakemake` of a working directory.
    """
    if not _TURN:
        _TURN.append(os.open(folder / "starting", os.O_WRONLY | os.O_CREAT))
        with suppress(OSError):  # the disk may not support locks
            fcntl.flock(_TURN[0], fcntl.LOCK_EX)
        (folder / "locks").mkdir(exist_ok=True)


def end_turn() -> None:
    """Lets the next run take Snakemake's locks."""
    while _TURN:
        os.close(_TURN.pop())


def find_other_runs(folders: Iterable[Path]) -> list[OtherRun]:
    """Lists the runs in other working directories that use these folders now."""
    # nodes of a cluster may have different names for the same folder
    name, inode, runs = str(Path.cwd()), Path().stat().st_ino, []
    for folder in dict.fromkeys(folders):
        for path in sorted((folder / FOLDER).glob("*.json")):
            with suppress(OSError, ValueError, KeyError, TypeError):
                known = json.loads(path.read_text(encoding="utf-8"))
                run = OtherRun(
                    known["folder"], known["host"], known["process"], known["started"], folder
                )
                is_own = run.folder == name or known["inode"] == inode
                if not is_own and _is_alive(path, run):
                    runs.append(run)
    return runs


def _is_alive(path: Path, run: OtherRun) -> bool:
    """Returns True if a mark's run is still alive; otherwise removes the mark."""
    with path.open() as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        old = time.time() - path.stat().st_mtime > _DAYS * 86400
        if run.host == socket.gethostname() or old:
            path.unlink(missing_ok=True)
    return False


def explain_missing_file(error: BaseException) -> str | None:
    """Returns a hint if an error is about a missing file that another run may have replaced.

    Returns None if the error has another cause, or if no other run works on this run's folders.
    """
    if not isinstance(error, FileNotFoundError | StoreError | DataError):
        return None
    marked = json.loads(os.environ.get(MARKED, "[]"))
    others = find_other_runs(map(Path, marked))
    if not others:
        return None
    return (
        f"{others[0].describe()} and may have been writing this file: wait for that run to end "
        "and run again, or give each study a results_dir and a data_dir of its own"
    )
