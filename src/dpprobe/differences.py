"""Finds where two nested values differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

ABSENT = "nothing"


class Difference(NamedTuple):
    """A place, as dotted keys, and the two values that stand there."""

    place: str
    first: Any
    second: Any


def first_difference(first: Any, second: Any, place: str = "") -> Difference | None:
    """Returns the first place where two JSON-compatible values differ; None where they are equal.

    A key that one side lacks has the value `ABSENT` there.
    """
    if first == second:
        return None
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return Difference(place, first, second)
    for key in dict.fromkeys([*first, *second]):
        inner = f"{place}.{key}" if place else str(key)
        pair = first.get(key, ABSENT), second.get(key, ABSENT)
        if difference := first_difference(*pair, inner):
            return difference
    return Difference(place, first, second)  # one lacks a key where the other has "nothing"
