"""A GPU of its own for each process of a node that has several.

A scheduler that gives a job one GPU shows it that one alone, and there is nothing to choose. Where
a process sees several (several jobs side by side on one node without a scheduler, or a group of
jobs as one Slurm job) all of them would take the first. Here each takes the one that the fewest
have taken, by a lock that the operating system lets go when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

logger = logging.getLogger("dpprobe")

VISIBLE = "CUDA_VISIBLE_DEVICES"
# More processes than this on one GPU would not fit into its memory.
_LEVELS = 64
# Of this process, for as long as it lives.
_held: list[BinaryIO] = []


def visible_devices(environment: Mapping[str, str], nodes: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of the GPUs that a process sees, as `CUDA_VISIBLE_DEVICES` has them.

    Args:
      environment: of the process.
      nodes: the names in /dev, which count where nothing is said in the environment.
    """
    written = environment.get(VISIBLE)
    if written is None:
        count = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in nodes)
        return tuple(map(str, range(count)))
    names: list[str] = []
    for name in map(str.strip, written.split(",")):
        if not name or name == "-1":  # CUDA takes nothing from here on
            break
        names.append(name)
    return tuple(dict.fromkeys(names))


def slot_names(devices: Sequence[str], environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Lists (file of a lock, device) in the order in which they are tried.

    Each device once, then each a second time, and so on: the first free one is of a device that the
    fewest hold. Two Slurm jobs may call different devices by one name, so theirs are apart.
    """
    job = environment.get("SLURM_JOB_ID", "")
    return [
        (re.sub(r"[^A-Za-z0-9.-]", "_", f"{job}.{device}.{level}"), device)
        for level in range(_LEVELS)
        for device in devices
    ]


def take_device(
    environment: Mapping[str, str] | None = None,
    *,
    nodes: Iterable[str] | None = None,
    folder: Path | None = None,
) -> str | None:
    """Takes a GPU for this process where it sees several, and keeps it until the process ends.

    Args:
      environment: of the process; its own where absent.
      nodes: the names in /dev.
      folder: of the locks, on the node's own disk and the same for all of a user's processes.

    Returns:
      The device, to be written to `CUDA_VISIBLE_DEVICES` before CUDA starts; None where there is
      nothing to choose.
    """
    given = os.environ if environment is None else environment
    devices = visible_devices(given, _device_nodes() if nodes is None else nodes)
    if len(devices) < 2:
        return None
    place = folder or Path(tempfile.gettempdir(), f"dpprobe-gpus-{os.getuid()}")
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, device in slot_names(devices, given):
        if (lock := _locked(place / name)) is not None:
            _held.append(lock)
            return device
    return None


def keep_one_device() -> None:
    """Leaves this process one GPU of several; once, and before CUDA starts."""
    if not _held and (device := take_device()) is not None:
        os.environ[VISIBLE] = device
        logger.info("GPU %s of several", device)


def _locked(path: Path) -> BinaryIO | None:
    """Returns a file that this process has locked; None where another one has."""
    stream = path.open("ab")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        return None
    return stream


def _device_nodes() -> list[str]:
    try:
        return os.listdir("/dev")  # noqa: PTH208 - names are enough
    except OSError:
        return []
