"""The compiler of Numba functions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpprobe.devices import jit


def add(a: float, b: float) -> float:
    return a + b


def test_compiled_functions_are_kept_in_the_cache() -> None:
    compiled: Any = jit("f8(f8, f8)")(add)
    assert compiled(1.0, 2.0) == 3.0
    assert compiled._cache.cache_path


def test_where_no_cache_can_be_kept_functions_are_compiled_anyway() -> None:
    """Such as in a read-only installation: here of a function that stands in no file."""
    names: dict[str, Any] = {}
    exec(compile("def twice(a):\n    return 2 * a", "<nowhere>", "exec"), names)
    compiled: Any = jit("f8(f8)")(names["twice"])
    assert compiled(2.0) == 4.0


def test_infinity_and_nan_keep_their_meaning() -> None:
    def least(a: float, b: float) -> float:
        return b if abs(a) <= 1e300 else 0.0

    compiled: Any = jit(fastmath=frozenset({"contract", "reassoc", "nsz"}))(least)
    assert compiled(1.0, 2.0) == 2.0
    assert compiled(math.nan, 2.0) == 0.0
    assert compiled(math.inf, 2.0) == 0.0


def test_other_errors_are_not_swallowed() -> None:
    with pytest.raises(Exception, match="(?i)invalid|unknown|name"):
        jit("no_such_type(f8)")(add)
