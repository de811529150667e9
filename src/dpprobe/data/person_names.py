"""Normalizes names of people, equally for sources of data, the estimator and ledgers' hashes.

Two spellings are one name if they differ only in spaces at an end, or in type (text or bytes). A
dataset may not have several names of one number, such as 12, 12.0 and 0012. Names that look alike,
such as P1 and p1, count as two people, with a warning. A split with P1 in train and p1 in test is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from dpprobe.data.alike_names import find_alike, fold_name, in_words
from dpprobe.data.group_columns import BLANKS, SHEET_ERRORS

_WHOLE = re.compile(r"[+-]?\d{1,300}")
# An exponent needs a sign, as in printed floats: 1e16 may be a hash.
_NUMBER = re.compile(r"[+-]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})(e[+-]\d{1,3})?")

# Spreadsheets round long numbers to texts such as 1.23E+12, which several people may share.
_ROUNDED = re.compile(r"\d(\.\d{1,20})?E\+\d\d")


def person_name(value: Any) -> str:
    """Returns a person's name as text; empty if it is missing: None, "nan", "#N/A", "1.23E+12"."""
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    text = text.strip()
    missing = text.casefold() in BLANKS | SHEET_ERRORS or _ROUNDED.fullmatch(text)
    return "" if missing else text


def list_spellings(name: str) -> set[str]:
    """Lists a name and its standard spelling, which equal numbers and similar names share."""
    text = fold_name(name)
    if _WHOLE.fullmatch(text):
        text = str(int(text))
    elif _NUMBER.fullmatch(text):
        value = float(text)
        text = str(int(value) if value.is_integer() else value)
    return {name, text}


def find_equal_numbers(names: Collection[str]) -> dict[str, str]:
    """Maps each name that is a number to the shortest other name of that number, if one exists."""
    texts = {name: text for name in names if _NUMBER.fullmatch(text := fold_name(name))}
    # If floats occur, whole numbers are compared as floats, which may have lost last digits.
    rounded = {float(text) for text in texts.values() if not _WHOLE.fullmatch(text)}
    same: dict[float, list[str]] = {}
    for name, text in texts.items():
        value = float(text)
        same.setdefault(value if value in rounded else int(text), []).append(name)
    shortest = dict[str, str]()
    for group in same.values():
        first = min(group, key=lambda name: (len(name), name))
        shortest |= {name: first for name in group if name != first}
    return shortest


def describe_alike(names: Iterable[str]) -> str:
    """Returns a warning about names that look alike; empty if no names look alike."""
    if not (alike := find_alike(names)):
        return ""
    more = f" (and {len(alike) - 1} more such groups of names)" if len(alike) > 1 else ""
    return (
        f"people: {in_words(alike[0])} differ only in case, spaces or the coding of characters, "
        f"but count as {len(alike[0])} people{more}; use one spelling per person"
    )
