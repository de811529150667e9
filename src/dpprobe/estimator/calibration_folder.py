"""The folder in which one process keeps the noise that it has calibrated."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@cache
def calibration_folder() -> Path:
    """Returns a folder of calibrations that lives as long as this process."""
    _KEPT.append(tempfile.TemporaryDirectory(prefix="dpprobe-"))
    return Path(_KEPT[0].name)
