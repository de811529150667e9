"""Equal values have equal texts and hashes; of different values the first difference is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpprobe import json_values
from dpprobe.files import array_files


def test_equal_values_have_equal_fingerprints() -> None:
    assert json_values.hash_value({"a": 1, "b": [0.5]}) == json_values.hash_value(
        {"b": [0.5], "a": 1}
    )
    assert json_values.hash_value({"a": 1}) != json_values.hash_value({"a": 2})
    assert json_values.canonical_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'
    first, second = np.arange(6), np.ones(6)
    alike: list[dict[str, np.ndarray]] = [{"a": first, "b": second}, {"b": second, "a": first}]
    others: list[dict[str, np.ndarray]] = [
        {"a": second, "b": first},
        {"a": first.astype(np.int32), "b": second},
        {"a": first.reshape(2, 3), "b": second},
        {"a": first},
    ]
    assert len({array_files.hash_arrays(arrays) for arrays in alike}) == 1
    assert len({array_files.hash_arrays(arrays) for arrays in [*alike, *others]}) == 5


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 2]}}, None),
        ({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 4}, ("a.b", 1, 3)),
        ({"a": 1}, {"a": 1, "b": 2}, ("b", json_values.ABSENT, 2)),
        ({"a": 1, "b": 2}, {"a": 1}, ("b", 2, json_values.ABSENT)),
        ({"a": [1]}, {"a": [2]}, ("a", [1], [2])),
        ({"a": None}, {"a": {"b": 1}}, ("a", None, {"b": 1})),
        ({"a": {"b": 1}}, {"a": None}, ("a", {"b": 1}, None)),
        ({"a": {"b": json_values.ABSENT}}, {"a": {}}, ("a", {"b": json_values.ABSENT}, {})),
    ],
)
def test_the_place_and_both_values(first: Any, second: Any, expected: Any) -> None:
    assert json_values.first_difference(first, second) == expected
