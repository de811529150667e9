"""The format and the reader of the record of few-shot probes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dpprobe.artifacts import read_record

FEW_SHOT_FORMAT: Final = "dpprobe-few-shot"
FEW_SHOT_FORMAT_VERSION: Final = 1


def read_few_shot(path: Path) -> dict[str, Any]:
    """Reads the record of few-shot probes.

    Raises:
      DataError: if the file is not such a record of this version.
    """
    return read_record(path, kind=FEW_SHOT_FORMAT, version=FEW_SHOT_FORMAT_VERSION)
