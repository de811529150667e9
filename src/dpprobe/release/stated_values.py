"""Reads numbers, hashes and JSON of untrusted files strictly, so that all readers agree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpprobe.errors import DataError
from dpprobe.json_values import canonical_json, parse_strict

Values = Mapping[str, Any]

# Larger numbers of units are refused before any epsilon is computed.
LARGEST_N = 10**10


def require_true(holds: bool, fault: str) -> None:
    """Raises DataError with the message `fault` unless a condition holds."""
    if not holds:
        raise DataError(fault)


def is_hash(text: Any) -> bool:
    """Returns True for a SHA-256 of lower-case hexadecimal digits."""
    return isinstance(text, str) and re.fullmatch(r"[0-9a-f]{64}", text) is not None


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object as `parse_strict` does; raises DataError that names the file."""
    try:
        values = parse_strict(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path.name}: {error}") from None
    require_true(isinstance(values, dict), f"{path.name}: not a JSON object")
    return dict(values)


def read_real(name: str, value: Any) -> float:
    """Returns a number; raises DataError for any other value."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    require_true(number and abs(value) < 1e300, f"{name}: {value!r} is not a number")
    return float(value)


def read_whole(name: str, value: Any, largest: int = LARGEST_N) -> int:
    """Returns a whole number from 1 to the largest; raises DataError for any other value."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    require_true(whole and 0 < value <= largest, f"{name}: {value!r} is not from 1 to {largest}")
    return int(value)


def require_same(name: str, expected: Any, stated: Any) -> None:
    """Raises DataError unless two JSON values are equal, including the types of numbers."""
    require_true(
        canonical_json(expected) == canonical_json(stated),
        f"{name}: {_shorten_value(stated)} is stated, but {_shorten_value(expected)} is computed",
    )


def _shorten_value(value: Any) -> str:
    text = canonical_json(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def read_block(name: str, values: Any, keys: set[str]) -> Values:
    """Returns a JSON object; raises DataError unless the object has exactly these keys."""
    has_keys = isinstance(values, dict) and set(values) == keys
    require_true(has_keys, f"{name}: must have the keys {sorted(keys)}")
    return dict(values)
