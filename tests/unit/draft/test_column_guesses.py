"""Limits and precedence of guesses; what they become in a study is tested with tables."""

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
    """Columns by name, whose values are joined by spaces; `_` is blank."""
    return {
        name: column_of(one.replace("_", "") for one in words.split())
        for name, words in values.items()
    }


@given(st.lists(st.sampled_from(["", "a", "b", "c", "1", "2.5"]), max_size=40))
def test_a_column_knows_its_values_blanks_and_first_rows(values: list[str]) -> None:
    column = column_of(values)
    assert column.values == {*values} - {""}
    assert column.blanks == values.count("")
    assert column.first == values[:20]
    numbers = column.values <= {"1", "2.5"}
    assert column.holds_numbers == (numbers and column.values != set())


@pytest.mark.parametrize("count", [1000, 1001])
def test_classes_are_at_most_a_thousand(count: int) -> None:
    """A usual column of more is passed over; one that is named is refused."""
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
    ("values", "label"),
    [
        ({"y": "a b", "dx": "a b"}, "dx"),
        ({"dx": "a b", "Diagnosis": "a b"}, "Diagnosis"),
        ({"dx": "a b", "label": "a a _"}, "dx"),
        ({"label": "_ a"}, None),
        ({"kind": "a b"}, None),
    ],
)
def test_the_label_is_the_first_usual_column_of_two_values(
    values: dict[str, str], label: str | None
) -> None:
    assert guesses.guess_label(columns_of(**values)) == label


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


@pytest.mark.parametrize(
    ("values", "unit", "people"),
    [
        ({"subject": "p q", "patient": "p q", "case": "1 2"}, "patient", True),
        ({"patient": "p p _", "subject": "p q", "case": "1 2"}, "subject", True),
        ({"patient": "p", "exam_id": "1 2", "case": "1 2"}, "case", False),
        ({"patient": "p _", "case": "1 1"}, None, None),
    ],
)
def test_the_unit_is_people_of_whom_there_are_two(
    values: dict[str, str], unit: str | None, people: bool | None
) -> None:
    columns = columns_of(**values)
    found = guesses.find_unit(columns, None)
    assert (found and found.name, found and found.people) == (unit, people)
    named = guesses.find_unit(columns, "patient")
    assert named == ("patient", True, True), "even if it has one value"


def test_two_columns_of_one_group_become_the_first() -> None:
    values = {"sex": "f m", "Sex ": "m w", "s/ex": "f m", "Age": "3 n/a 4", "centre": "x x"}
    columns = columns_of(**values)
    aged = {"column": "Age", "bins": [18, 40, 60, 80]}
    assert guesses.guess_groups(columns) == {"sex": "sex", "age": aged}
    assert guesses.guess_groups(columns, plain=True) == {"sex": "sex", "age": "Age"}
    del columns["sex"], columns["Sex "]
    assert guesses.guess_groups(columns) == {"age": aged}, "no folder is named s/ex"


@pytest.mark.parametrize("more", [997, 999])
def test_a_split_has_at_most_a_thousand_words(more: int) -> None:
    words = ["train", "test", "x", *map(str, range(more))]
    found = guesses.guess_split({"subset": column_of(words)})
    assert found == (("subset", ["train"], ["test"]) if len(words) <= 1000 else None)
