"""The folder where a process stores its calibrated noise."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path


@cache
def _make_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="dpprobe-")


def calibration_folder() -> Path:
    """Returns a folder of calibrations that lives as long as this process."""
    return Path(_make_folder().name)
