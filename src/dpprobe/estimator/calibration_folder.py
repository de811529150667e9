"""The folder in which a process caches calibrated noise multipliers."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path


@cache
def _make_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="dpprobe-")


def calibration_folder() -> Path:
    """Returns a folder for calibrated noise, which is deleted when this process ends."""
    return Path(_make_folder().name)
