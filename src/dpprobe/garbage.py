"""Garbage collection in a process that keeps nearly all of its objects."""

from __future__ import annotations

import atexit
import gc
import sys

# The number of new objects after which Python searches for garbage; its default is 700.
_OBJECTS = 100_000


def search_rarely() -> None:
    """Makes Python search for garbage rarely, and never at the end of the process.

    torch and the rules of Snakemake are 350,000 objects that stay. By default Python searches them
    during their creation and at the end, after `atexit`, which takes 0.6 s of a training job.
    """
    gc.set_threshold(_OBJECTS)
    atexit.register(_leave_objects)


def _leave_objects() -> None:
    # Triton would print pages about objects that are left.
    if "triton" not in sys.modules:
        gc.freeze()
