"""The first place where two nested values differ."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.artifacts import ABSENT, first_difference


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 2]}}, None),
        ({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 4}, ("a.b", 1, 3)),
        ({"a": 1}, {"a": 1, "b": 2}, ("b", ABSENT, 2)),
        ({"a": 1, "b": 2}, {"a": 1}, ("b", 2, ABSENT)),
        ({"a": [1]}, {"a": [2]}, ("a", [1], [2])),
        ({"a": None}, {"a": {"b": 1}}, ("a", None, {"b": 1})),
        ({"a": {"b": ABSENT}}, {"a": {}}, ("a", {"b": ABSENT}, {})),
    ],
)
def test_the_place_and_both_values(first: Any, second: Any, expected: Any) -> None:
    assert first_difference(first, second) == expected
