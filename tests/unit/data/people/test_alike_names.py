"""Names that look alike, and texts that are lists of labels."""

from __future__ import annotations

import unicodedata
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.data.people import alike_names
from dpprobe.data.people.alike_names import find_alike, find_name_fault, fold_name, joined_labels

FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")


@given(st.text(st.characters(max_codepoint=0x24F), max_size=12))
def test_folding_a_name_is_idempotent_and_ignores_case_spaces_and_unicode_forms(name: str) -> None:
    """Folding twice equals folding once; it ignores case, outer spaces and Unicode forms."""
    folded = fold_name(name)
    assert fold_name(folded) == folded, repr(name)
    for other in (f" {name}\t", name.casefold(), f"\u200b{name}"):
        assert fold_name(other) == folded, f"{name!r} and {other!r}"
    for form in FORMS:
        assert fold_name(unicodedata.normalize(form, name)) == folded, f"{name!r} as {form}"


ALIKE = [
    ("cat", "Cat"),
    ("cat", " cat "),
    ("c at", "C  AT"),
    ("cat", "c\u200bat"),
    ("cat", "cat\ufe0f"),
    ("c at", "c\u2800at"),
    ("cat", "\uff43at"),
    ("caf\u00e9", "cafe\u0301"),
    ("STRASSE", "stra\u00dfe"),
    ("1", "1.0"),
    ("1", "01"),
    ("1", "+1"),
    ("-1", "-1.00"),
    ("0012", "12."),
]
DIFFERENT = [
    ("cat", "cats"),
    ("cat", "c at"),
    ("1", "-1"),
    ("1", "1.5"),
    ("10", "1"),
    ("1.5", "1.50"),
    ("1e3", "1000"),
    ("", "0"),
    ("p1", "p01"),
]


def test_names_that_look_alike_are_grouped() -> None:
    for first, other in ALIKE:
        assert find_alike([first, "x", other]) == [(first, other)], (first, other)
        fault = find_name_fault([first, "x", other])
        assert fault == f"{first!r} and {other!r} are spellings of one name; remove one"
    for first, other in DIFFERENT:
        assert find_alike([first, "x", other]) == [], (first, other)
        assert find_name_fault([first, "x", other]) is None
    assert find_alike(["b", "A", "B", "c", "a", "b", "\uff42"]) == [
        ("b", "B", "\uff42"),
        ("A", "a"),
    ]


def test_class_names_occur_once() -> None:
    assert find_name_fault([]) is find_name_fault(["a"]) is None
    assert find_name_fault(["b", "a", "b"]) == "b, a, b: a name appears twice; remove one"


def test_a_label_may_join_several_names() -> None:
    names = ["cat", "dog", "1"]
    good = ["['cat', 'dog']", "cat, dog", "cat;dog", "cat|dog", "dog;1"]
    assert joined_labels([*good, "cat", "cat;owl", "", "cat dog", "cat/dog"], names) == good
    # every label of a list must be a class name
    assert joined_labels(["a", "b", "a;b", "a;c"]) == ["a;b"]
    assert joined_labels(["a;b"]) == []


def test_a_hint_names_the_class_in_another_spelling() -> None:
    names = ["cat", "dog", "1"]
    assert alike_names.hint_class(" CAT", names).startswith(" (write 'cat' in the file")
    assert alike_names.hint_class("owl", names) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (float("nan"), ""), (1, "1"), (1.0, "1.0"), (b"a\xff", "a\\xff"), (True, "True")],
)
def test_missing_values_are_blank_texts(value: Any, text: str) -> None:
    assert alike_names.text_of(value) == text


@given(st.binary(max_size=8))
def test_a_file_name_is_text_if_it_is_utf_8(name: bytes) -> None:
    try:
        name.decode()
        good = True
    except UnicodeDecodeError:
        good = False
    assert alike_names.is_text(name.decode("utf-8", "surrogateescape")) == good
    for letter, text in (("\ud800", False), ("\udfff", False), ("\ud7ff\ue000", True)):
        assert alike_names.is_text(letter) == text
