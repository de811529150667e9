"""What ranks do that are only to be there: a module of its own, as each rank imports it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from dpprobe.finetune.ranks import Ranks


def note_and_wait(ranks: Ranks, folder: Path) -> None:
    (folder / f"{os.getpid()}.pid").touch()
    time.sleep(600 + ranks.rank)
