"""Records of small real runs, for tests of what reads such records: they take them, and edit them.

The runs are those of `tests/workflow`: its tests call `check_stored`, which holds the record that a
run wrote against the stored one. `RENEW_RECORDS=1 python -m pytest` with these tests stores the
records anew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dpprobe.artifacts import read_json
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "tests/support/records"
# What differs from run to run, and with the code that runs.
VARYING = {"seconds", "shadows_per_second", "date", "code", "fingerprint", "seeds"}


def read_stored(name: str) -> dict[str, Any]:
    """Reads a stored record."""
    values: dict[str, Any] = read_json(FOLDER / name)
    return values


def check_stored(path: Path, name: str) -> None:
    """Asserts that a run wrote the stored record, or stores it where it is to be renewed."""
    if os.environ.get("RENEW_RECORDS"):
        FOLDER.mkdir(exist_ok=True)
        shutil.copyfile(path, FOLDER / name)
    found = list(find_differences(_read_values(path), _read_values(FOLDER / name)))
    assert not found, f"{path} is not as stored; RENEW_RECORDS=1 stores it anew: {found[:5]}"


def find_differences(first: Any, second: Any, place: str = "") -> Iterator[str]:
    """Finds where two records differ by more than rounding and the words of sentences."""
    if _is_prose(first) and _is_prose(second):
        return
    if isinstance(first, dict) and isinstance(second, dict):
        if first.keys() != second.keys():
            yield f"{place}: {sorted(first.keys() ^ second.keys())} in one alone"
        for key in (first.keys() & second.keys()) - VARYING:
            yield from find_differences(first[key], second[key], f"{place}.{key}")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, pair in enumerate(zip(first, second, strict=True)):
            yield from find_differences(*pair, f"{place}.{index}")
    elif isinstance(first, float) and isinstance(second, float):
        if first != pytest.approx(second, rel=1e-3, abs=1e-4):
            yield f"{place}: {first} and {second}"
    elif first != second:
        yield f"{place}: {first} and {second}"


def _is_prose(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_prose, value))
    return isinstance(value, str) and " " in value


def _read_values(path: Path) -> Any:
    return pq.read_table(path).to_pylist() if path.suffix == ".parquet" else read_json(path)
