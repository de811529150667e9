"""Limits and precedence of guesses for columns; tests with tables cover the resulting studies."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.draft import column_guesses as guesses
from dpprobe.draft.column_guesses import Column
from dpprobe.errors import ConfigError


def column_of(values: Iterable[str]) -> Column:
    column = Column()
    for value in values:
        column.add_value(value)
    return column


def columns_of(**values: str) -> dict[str, Column]:
    """Returns columns by name, from values that are joined by spaces; `_` is a blank."""
    return {
        name: column_of(one.replace("_", "") for one in words.split())
        for name, words in values.items()
    }


@given(st.lists(st.sampled_from(["", "a", "b", "c", "1", "2.5"]), max_size=40))
def test_a_column_collects_its_values_blank_count_and_first_20_rows(values: list[str]) -> None:
    column = column_of(values)
    assert column.values == {*values} - {""}
    assert column.blanks == values.count("")
    assert column.first == values[:20]
    numbers = column.values <= {"1", "2.5"}
    assert column.holds_numbers == (numbers and column.values != set())


@pytest.mark.parametrize("count", [1000, 1001])
def test_classes_are_at_most_a_thousand(count: int) -> None:
    """A usual column with more classes is skipped; one that the user names is refused."""
    columns = {"label": column_of(map(str, range(count))), "y": column_of("ab")}
    assert columns["label"].many == (count > 1000)
    assert guesses.guess_label(columns) == ("label" if count == 1000 else "y")
    if count == 1000:
        names = guesses.class_names(columns["label"], "label", "t.csv")
        assert names == [*map(str, range(1000))], "in the order of numbers"
    else:
        with pytest.raises(ConfigError, match=r"t\.csv: column label has more than 1000 .*--label"):
            guesses.class_names(columns["label"], "label", "t.csv")


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ({"a": "0 1", "b": "1.0 -1", "c": "True false"}, "a b"),
        ({"a": "0 1", "c": "TRUE -1.0", "d": "false _"}, "c d"),
        ({"a": "0 2", "b": "0 1"}, ""),
        ({"a": "0 1", "b": "_ _"}, ""),
        ({"b": "1", "a": "0"}, "b a"),
        ({"a": "0 1", "patient": "0 1", "case": "0 1", "set": "0 1", "sex": "0 1"}, ""),
    ],
)
def test_labels_are_two_columns_or_more_of_one_notation(
    values: dict[str, str], labels: str
) -> None:
    assert guesses.guess_labels(columns_of(**values)) == labels.split()


@pytest.mark.parametrize("ages", ["3-9 10-19", "old young", "1 2 inf", "nan _", "1 2"])
def test_ages_are_ranges_only_if_a_run_can_read_numbers(ages: str) -> None:
    binned = {"column": "age", "bins": [18, 40, 60, 80]}
    groups = {"1 2": {"age": binned}, "nan _": {}}.get(ages, {"age": "age"})
    assert guesses.guess_groups(columns_of(age=ages)) == groups


@pytest.mark.parametrize("words", ["train other", "one two", "train", "test val"])
def test_a_column_without_train_and_test_values_is_not_used_as_split(words: str) -> None:
    assert guesses.guess_split(columns_of(split=words)) is None
