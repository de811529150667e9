"""JSON values: canonical text and hash, strict parsing, and the first difference."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

ABSENT = "nothing"
_DEEPEST = 32  # levels of brackets in JSON from outside


def canonical_json(value: Any) -> str:
    """Returns JSON with sorted keys and no spaces: equal values give equal text; refuses NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )


def hash_value(value: Any) -> str:
    """Returns the SHA-256 (hex) of `canonical_json`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def parse_json(text: str | bytes) -> Any:
    """Parses JSON; raises ValueError for repeated keys, and for too deep nesting."""
    try:
        return json.loads(text, object_pairs_hook=_read_pairs)
    except RecursionError:
        raise ValueError("brackets nested too deeply to be read") from None


def _read_pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(items)
    if len(values) < len(items):
        keys = [key for key, _ in items]
        raise ValueError(f"the key {max(values, key=keys.count)!r:.60} appears twice in one object")
    return values


def parse_strict(content: str | bytes) -> Any:
    """Parses JSON from outside; raises ValueError if other parsers may read different values.

    Refuses NaN, infinity, repeated keys, and deep nesting, at which some parsers overflow.
    """

    def read_number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(f"the number {text[:30]}")
        return value

    too_deep = f"more than {_DEEPEST} levels of brackets"
    try:
        values = json.loads(
            content,
            parse_float=read_number,
            parse_constant=read_number,
            object_pairs_hook=_read_pairs,
        )
    except RecursionError:
        raise ValueError(too_deep) from None
    level: list[Any] = [[values]]
    for _ in range(_DEEPEST):
        blocks = [each.values() if isinstance(each, dict) else each for each in level]
        level = [one for block in blocks for one in block if isinstance(one, dict | list)]
    if level:
        raise ValueError(too_deep)
    return values


class Difference(NamedTuple):
    """A position in two JSON values, as dotted keys, and the two values at this position."""

    place: str
    first: Any
    second: Any


def first_difference(first: Any, second: Any, place: str = "") -> Difference | None:
    """Returns the first difference of two JSON values; a missing key has the value `ABSENT`."""
    if first == second:
        return None
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return Difference(place, first, second)
    for key in dict.fromkeys([*first, *second]):
        inner = f"{place}.{key}" if place else str(key)
        pair = first.get(key, ABSENT), second.get(key, ABSENT)
        if difference := first_difference(*pair, inner):
            return difference
    return Difference(place, first, second)  # one value lacks a key, the other has it as `ABSENT`
