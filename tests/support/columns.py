"""Long lists of rows, as one array or one text per column, to be held against stored ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import numpy as np
from pydantic import BaseModel

from tests.support.stored_records import answer_of

NOTHING, ENDLESS = -9.0, 99.0  # stand in for None or NaN, and for infinity


def by_column(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Turns rows into columns; texts that follow each other are counted."""
    listed = [flatten(row) for row in rows]
    names = dict.fromkeys(name for row in listed for name in row)
    return {name: _join_column([row.get(name, "absent") for row in listed]) for name in names}


def flatten(value: Any, place: str = "") -> dict[str, Any]:
    """Returns all values of nested parts, by their paths."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        pairs: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list | tuple):
        pairs = enumerate(value)
    else:
        return {place: value}
    found: dict[str, Any] = {}
    for name, part in pairs:
        found |= flatten(part, f"{place}.{name}" if place else str(name))
    return found


def or_error(make: Any, *given: Any, **named: Any) -> Any:
    """Returns what a function returns, or the error that it raises in one line."""
    answer = answer_of(make, *given, **named)
    if not isinstance(answer, Exception):
        return answer
    words = str(answer).partition(" [type=")[0]  # without the version of pydantic
    return f"{type(answer).__name__}: {words}"


def _join_column(values: list[Any]) -> Any:
    if all(each is None or isinstance(each, int | float | np.number) for each in values):
        numbers = np.array([_as_number(each) for each in values])
        turns = np.cos(1e3 * np.arange(1, len(numbers) + 1))
        # the sums notice another number, and another order
        return numbers if len(numbers) <= 8 else [len(numbers), numbers.sum(), turns @ numbers]
    return ", ".join(f"{len([*same])} {text}" for text, same in groupby(map(str, values)))


def _as_number(value: Any) -> float:
    if value is None or math.isnan(value):
        return NOTHING
    return math.copysign(ENDLESS, value) if math.isinf(value) else float(value)
