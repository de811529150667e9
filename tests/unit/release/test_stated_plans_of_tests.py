"""Values that are computed again agree with those stated up to the last digits of numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import DataError
from dpprobe.release.stated_plans import agree

NUMBERS = st.floats(1e-3, 1e6) | st.integers(1, 10**6)
VALUES = st.recursive(
    NUMBERS | st.none() | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=6,
)


def scaled(values: Any, factor: float) -> Any:
    if isinstance(values, dict):
        return {key: scaled(value, factor) for key, value in values.items()}
    if isinstance(values, list):
        return [scaled(value, factor) for value in values]
    return values if isinstance(values, str | None) else values * factor


def numbers(values: Any) -> int:
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list):
        return sum(map(numbers, values))
    return not isinstance(values, str | None)


@given(VALUES)
def test_values_agree_with_themselves_and_with_other_last_digits(values: Any) -> None:
    assert agree(values, values)
    assert agree(values, scaled(values, 1 + 9e-5))
    assert agree(scaled(values, 1 + 9e-5), values)
    assert agree(values, scaled(values, 1 + 2e-4)) == (numbers(values) == 0)
    assert agree(values, scaled(values, 1.05), tolerance=0.1)


@pytest.mark.parametrize(
    ("value", "stated"),
    [
        ([1, 2], [1]),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": 1}),
        ("a", "b"),
        ("1", 1),
        (1, "1"),
        (None, 0),
        (0.0, None),
        (0.0, 2e-9),
        ([[1.0]], [[1.1]]),
    ],
)
def test_what_differs_in_form_or_value_does_not_agree(value: Any, stated: Any) -> None:
    assert not agree(value, stated)


def test_tuples_are_lists_and_a_nothing_is_zero() -> None:
    assert agree((1, (2.0,)), [1, [2]])
    assert agree(0.0, 9e-10)


@pytest.mark.parametrize("stated", [True, math.nan, math.inf, {"a": 1}, [1]])
def test_what_is_no_number_is_refused(stated: Any) -> None:
    with pytest.raises(DataError, match="is not a number"):
        agree(1.0, stated)
