"""What ranks do that are only to be there: a module of its own, as each rank imports it."""

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
