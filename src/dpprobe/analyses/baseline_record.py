"""Formats and readers for the records of zero-shot and few-shot baselines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from dpprobe.files.json_files import read_record

ZERO_SHOT: Final = {"format": "dpprobe-zero-shot", "format_version": 1}
FEW_SHOT: Final = {"format": "dpprobe-few-shot", "format_version": 1}


def _read_baseline(path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Reads a baseline's record; raises DataError for another kind of file or another version."""
    return read_record(path, kind=record["format"], version=record["format_version"])


read_zero_shot = partial(_read_baseline, record=ZERO_SHOT)
read_few_shot = partial(_read_baseline, record=FEW_SHOT)
