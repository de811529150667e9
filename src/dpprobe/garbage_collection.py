"""Garbage collection for processes in which nearly all objects live until the end."""

from __future__ import annotations

import atexit
import gc
import sys

# The number of new objects after which Python searches for garbage; its default is 700.
_OBJECTS = 100_000


def search_rarely() -> None:
    """Makes Python search for garbage rarely, and never at the end of the process.

    Torch and Snakemake's rules are 350,000 permanent objects. By default Python searches them while
    they are created and at the end, after `atexit`, which takes 0.6 s of a training job.
    """
    gc.set_threshold(_OBJECTS)
    atexit.register(_leave_objects)


def _leave_objects() -> None:
    # Triton would print pages about remaining objects.
    if "triton" not in sys.modules:
        gc.freeze()
