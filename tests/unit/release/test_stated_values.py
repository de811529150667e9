"""Values in strangers' files are read strictly: numbers are numbers, and nothing else is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import DataError
from dpprobe.release import stated_values
from tests.support.refusals import check_tokens, refusal_of, refuses

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.sampled_from("ab"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=5,
)


@pytest.mark.parametrize("value", [0, 1, -1, 1.5, 9.9e299, -9.9e299])
def test_a_number_is_read_as_a_float(value: float) -> None:
    read = stated_values.read_real("v", value)
    assert (type(read), read) == (float, value)


@pytest.mark.parametrize(
    "value", [True, None, "1", [1], {"a": 1}, 1e300, -1e300, math.inf, math.nan, 10**400]
)
def test_an_error_names_a_stated_value_that_is_not_a_number(value: Any) -> None:
    """Python treats True as 1; other readers do not."""
    with refuses(DataError, "noise", repr(value)):
        stated_values.read_real("noise", value)


@pytest.mark.parametrize(
    ("value", "fits"),
    [(1, True), (10**10, True), (0, False), (-1, False), (10**10 + 1, False), (1.0, False)]
    + [(each, False) for each in (True, None, "1", [1])],
)
def test_a_count_is_a_whole_number_within_its_limits(value: Any, fits: bool) -> None:
    said = refusal_of(stated_values.read_whole, "n", value)
    assert (said is None) == fits
    if said is not None:
        check_tokens(said, "n", repr(value), 1, 10**10)
    if fits:
        assert stated_values.read_whole("n", value) == value
    assert (refusal_of(stated_values.read_whole, "n", 8, 7) is None) is False
    assert stated_values.read_whole("n", 7, 7) == 7


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("ab" * 32, True),
        ("0123456789abcdef" * 4, True),
        ("AB" * 32, False),
        ("ab" * 31, False),
        ("ab" * 33, False),
        ("ab" * 32 + "\n", False),
        ("xy" * 32, False),
        (None, False),
        (["ab" * 32], False),
    ],
)
def test_a_hash_has_64_lower_case_digits(text: Any, is_one: bool) -> None:
    assert stated_values.is_hash(text) == is_one


@given(JSON, JSON)
def test_values_are_equal_if_their_json_is(one: Any, other: Any) -> None:
    """1, 1.0 and true differ; the order of keys does not matter."""
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (refusal_of(stated_values.require_same, "v", one, other) is None) == same
    assert refusal_of(stated_values.require_same, "v", one, one) is None


def test_a_difference_shows_what_is_stated_and_what_is_computed_in_short() -> None:
    said = refusal_of(stated_values.require_same, "price", {"a": 1}, 2)
    check_tokens(str(said), "price", 2, '{"a":1}')
    for length, shown in ((98, f'"{"y" * 98}"'), (99, f'"{"y" * 96}...')):
        said = refusal_of(stated_values.require_same, "v", 1, "y" * length)
        check_tokens(str(said), "v", f"{shown} ", 1)


@pytest.mark.parametrize("value", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, {}, None, "ab", ["a", "b"]])
def test_a_block_has_its_keys_and_no_others(value: Any) -> None:
    with refuses(DataError, "block", "['a', 'b']"):
        stated_values.read_block("block", value, {"b", "a"})
    assert stated_values.read_block("block", {"a": 1, "b": None}, {"a", "b"}) == {"a": 1, "b": None}


@pytest.mark.parametrize("content", ["", "[]", '"x"', "{", '{"a": 1, "a": 2}', '{"a": NaN}', "7"])
def test_a_file_is_one_json_object(tmp_path: Path, content: str) -> None:
    """Of two equal keys, some readers use the first and some the last."""
    path = tmp_path / "privacy.json"
    path.write_text(content)
    with refuses(DataError, "privacy.json"):
        stated_values.read_json(path)
    path.write_text('{"a": 1}')
    assert stated_values.read_json(path) == {"a": 1}
