"""Records: what functions answered over many settings.

`check_values` holds the answers of functions against the stored answers: one test over many
settings then notices a change of any number, name, order or sentence.
`RENEW_RECORDS=1 python -m pytest` with such tests stores the records anew. Read the difference that
git shows before you commit it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Set
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import BaseModel

from dpprobe.errors import DpprobeError
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "tests/support/records"


def check_values(name: str, values: Any, *, rel: float = 1e-6, abs: float = 1e-9) -> None:
    """Asserts that answers equal the stored ones, or stores them where they are to be renewed.

    `values` may hold dictionaries, lists, dataclasses, arrays, tables, paths' names and exceptions.
    Floats may differ by `rel` and `abs`; an array of more than 40 numbers is stored as its shape
    and three weighted sums. Leave out of it what differs from run to run.
    """
    path, plain = FOLDER / f"{name}.json", to_plain(values)
    if os.environ.get("RENEW_RECORDS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(json.dumps(plain, indent=1, ensure_ascii=False) + "\n")
    stored = json.loads(path.read_text())
    found = list(find_differences(plain, stored, rel=rel, abs=abs))
    assert not found, f"not as in {path.name}; RENEW_RECORDS=1 stores it anew: {found[:5]}"


def answer_of(call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Returns what a call answers, or the error for people that it raises instead."""
    try:
        return call(*given, **named)
    except (DpprobeError, ValueError) as error:
        return error


def to_plain(value: Any) -> Any:
    """Returns what JSON can store, and keeps apart what differs: 1, 1.0 and True, None and nan."""
    match value:
        case None | bool() | str() | int():
            return value
        case Enum() | Path():
            return str(value)
        case float():
            return float(value) if np.isfinite(value) else f"float {value}"
        case np.generic():
            return to_plain(value.item())
        case BaseException():
            return f"{type(value).__name__}: {value}"
        case pa.Table():
            return {
                column: {
                    "type": str(value.schema.field(column).type),
                    "values": to_plain(value.column(column).to_pylist()),
                }
                for column in value.column_names
            }
        case BaseModel():
            return to_plain(value.model_dump())
        case bytes():
            return f"bytes {value.hex() if len(value) <= 64 else value[:64].hex()} {len(value)}"
        case Mapping():
            return {str(key): to_plain(each) for key, each in value.items()}
        case Set():
            return ["set", *sorted(map(to_plain, value), key=repr)]
        case list() | tuple():
            return [to_plain(each) for each in value]
    if dataclasses.is_dataclass(value):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return {"is": type(value).__name__, **to_plain(fields)}
    return _digest_array(np.asarray(value.detach().cpu() if hasattr(value, "detach") else value))


def _digest_array(array: np.ndarray) -> Any:
    assert array.dtype != object, "name what is to be compared"
    listed = array.reshape(-1)
    if listed.size <= 40 or array.dtype.kind not in "biuf":
        return {
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "values": [to_plain(each) for each in listed.tolist()],
        }
    numbers = listed.astype(np.float64)
    weights = np.arange(1, listed.size + 1) / listed.size
    # each sees another change: of all, of the order, of single numbers
    sums = [numbers.sum(), weights @ numbers, np.cos(1e3 * weights) @ numbers]
    return {"dtype": str(array.dtype), "shape": list(array.shape), "sums": to_plain(sums)}


def find_differences(
    first: Any, second: Any, place: str = "", *, rel: float, abs: float
) -> Iterator[str]:
    """Finds where two records differ by more than rounding."""
    if isinstance(first, dict) and isinstance(second, dict):
        if first.keys() != second.keys():
            yield f"{place}: {sorted(first.keys() ^ second.keys())} in one alone"
        elif list(first) != list(second):
            yield f"{place}: another order, {list(first)} and {list(second)}"
        for key in sorted(first.keys() & second.keys()):
            yield from find_differences(first[key], second[key], f"{place}.{key}", rel=rel, abs=abs)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, pair in enumerate(zip(first, second, strict=True)):
            yield from find_differences(*pair, f"{place}.{index}", rel=rel, abs=abs)
    elif isinstance(first, float) and isinstance(second, float):
        if first != pytest.approx(second, rel=rel, abs=abs):
            yield f"{place}: {first} and {second}"
    elif first != second or type(first) is not type(second):
        yield f"{place}: {first} and {second}"
