"""Columns of subgroups: ranges of numbers, blanks and codes for unknown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.data.people import group_columns
from dpprobe.data.people.group_columns import Group, bin_name


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("17.9", "<18"),
        ("-5", "<18"),
        ("18", "18-39"),
        (" 18 ", "18-39"),
        ("39.9", "18-39"),
        ("1.8e1", "18-39"),
        ("40", ">=40"),
        ("1e30", ">=40"),
        *((blank, "") for blank in ("", "nan", "NaN", "N/A", "None", "unknown", "?", "<NA>")),
    ],
)
def test_a_number_has_the_name_of_its_range(value: str, name: str) -> None:
    assert bin_name(value, (18.0, 40.0)) == name


def test_ranges_of_fractions_name_both_limits() -> None:
    limits = (0.0, 12.5, 20.0, 21.0, 1000.0)
    found = [bin_name(each, limits) for each in ("0", "12.5", "20", "21", "-1", "1000")]
    assert found == ["0 to <12.5", "12.5 to <20", "20-20", "21-999", "<0", ">=1000"]


@given(st.floats(-100, 100), st.lists(st.integers(-50, 50), min_size=1, max_size=5, unique=True))
def test_a_range_has_its_number(number: float, limits: list[int]) -> None:
    bins = [float(each) for each in sorted(limits)]
    name = bin_name(repr(number), bins)
    below = [each for each in bins if each <= number]
    above = [each for each in bins if each > number]
    if not below:
        assert name == f"<{above[0]:g}"
    elif not above:
        assert name == f">={below[-1]:g}"
    else:
        assert name == f"{below[-1]:g}-{above[0] - 1:g}", f"{number} in {bins}"


@pytest.mark.parametrize("value", ["inf", "-1e999", "old", "1,5", "12x", "#REF!"])
def test_a_value_that_is_not_a_number_is_reported_and_assigned_to_no_range(value: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        bin_name(value, (18.0,))
    faults: list[list[tuple[str, str]]] = [[], []]
    group = Group(column="age", bins=(18.0,))
    assert group.read_values(["20", value], faults) == [">=18", ""]
    assert faults == [[], [("value", f"age is {value!r}, which is not a number")]]


def test_cases_are_merged_where_they_are_ignored() -> None:
    values = ["F", "f", "STRA\u00dfE", None, math.nan]
    assert Group(column="a").read_values(values, []) is values
    ignored = Group(column="a", ignore_case=True)
    assert ignored.read_values(values, []) == ["f", "f", "strasse", "", ""]
    both = Group(column="a", bins=(1.0,), ignore_case=True)
    assert both.read_values(["NaN", "2"], [[], []]) == ["", ">=1"]


def test_groups_are_named_once() -> None:
    given: dict[str, str | Group] = {"years": "age", "group_b": Group(column="b", bins=(1.0,))}
    listed = group_columns.list_groups(given)
    assert listed == {"group_years": Group(column="age"), "group_b": given["group_b"]}
    assert [*group_columns.list_groups(("age", "group_sex"))] == ["group_age", "group_sex"]
    assert group_columns.list_groups(("group_sex",))["group_sex"].column == "group_sex"
    assert group_columns.group_name("group_sex") == "sex"


def test_groups_in_two_spellings_are_found() -> None:
    found = group_columns.find_spellings({"group_sex": ["f", "m", "F"], "group_age": ["1", "2"]})
    assert [*found] == ["sex: 'f' and 'F' are separate groups"]
