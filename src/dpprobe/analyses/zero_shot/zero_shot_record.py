"""The format and the reader of the record of a zero-shot classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dpprobe.artifacts import read_record

ZERO_SHOT_FORMAT: Final = "dpprobe-zero-shot"
ZERO_SHOT_FORMAT_VERSION: Final = 1


def read_zero_shot(path: Path) -> dict[str, Any]:
    """Reads the record of a zero-shot classifier.

    Raises:
      DataError: if the file is not such a record of this version.
    """
    return read_record(path, kind=ZERO_SHOT_FORMAT, version=ZERO_SHOT_FORMAT_VERSION)
