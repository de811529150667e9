"""Ranks that only wait; each rank imports this module."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from dpprobe.finetune.ranks import Ranks


def note_and_wait(ranks: Ranks, folder: Path) -> None:
    (folder / f"{os.getpid()}.pid").touch()
    time.sleep(600 + ranks.rank)


def note_after_ctrl_c(_: Ranks, folder: Path) -> None:
    signal.raise_signal(signal.SIGINT)
    (folder / f"{os.getpid()}.pid").touch()
