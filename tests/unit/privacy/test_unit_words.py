"""The words for units of privacy, in sentences about images and about vectors."""

from __future__ import annotations

import pytest

from dpprobe.privacy.plan import Plan
from dpprobe.privacy.unit_words import unit_words, words_of_statement
from tests.support.statements import OUTSIDE, of_backbone, state_with

# The unit, one unit with all its rows, and what a head classifies, for images and for vectors.
WORDS = [
    ("image", False, "image", "one training image", "image", "picture"),
    ("image", True, "row", "one training row", "row", "vector"),
    ("row", False, "row", "one training row", "row", "vector"),
    ("row", True, "row", "one training row", "row", "vector"),
    (
        "patient",
        False,
        "patient",
        "one patient (all of their training images together)",
        "image",
        "picture",
    ),
    (
        "patient",
        True,
        "patient",
        "one patient (all of their training rows together)",
        "row",
        "vector",
    ),
    ("group", False, "group", "one group (all of its training rows together)", "row", "vector"),
    ("group", True, "group", "one group (all of its training rows together)", "row", "vector"),
]


@pytest.mark.parametrize(("unit", "vectors", "one", "whole", "item", "picture"), WORDS)
def test_a_unit_has_words(
    unit: str, vectors: bool, one: str, whole: str, item: str, picture: str
) -> None:
    words = unit_words(unit, vectors=vectors)
    assert (words.one, words.many, words.whole) == (one, f"{one}s", whole)
    assert (words.item, words.items, words.picture) == (item, f"{item}s", picture)
    assert words.whole_short == whole.removeprefix("one ").replace("training ", "")
    assert words.person == ("group" if unit == "group" else "person")
    assert words.who == ("who" if unit == "patient" else "that")


def test_every_unit_of_a_plan_has_words() -> None:
    assert {unit for unit, *_ in WORDS} == set(Plan.UNITS)


@pytest.mark.parametrize("unit", Plan.UNITS)
def test_a_statement_has_the_words_of_its_unit_and_of_its_features(unit: str) -> None:
    assert words_of_statement(state_with(unit=unit)) == unit_words(unit)
    outside = state_with(unit=unit, **of_backbone(**OUTSIDE))
    assert words_of_statement(outside) == unit_words(unit, vectors=True)


def test_unit_words_take_precedence_over_values_in_a_template() -> None:
    words = unit_words("patient")
    assert words.fill("{one} of {n} {items}", {"n": 3}) == "patient of 3 images"
    assert words.fill("{one}", {"one": "head"}) == "patient"
