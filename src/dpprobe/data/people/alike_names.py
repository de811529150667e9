"""Finds names that differ only in case, spaces, Unicode normalisation or zeros of numbers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

_NUMBER = re.compile(r"[+]?(-?)0*(\d+)(\.0*)?")
# A list that a program wrote as text: ['a', 'b'] or [3], but not [1, 5], which may be an interval.
_LIST = re.compile(
    r"""[\[({]\s*(['"]).*\1[\s,]*[\])}]|[\[{]\s*\d+(\s+\d+|([\s,]+\d+){2,})?\s*[\]}]""", re.DOTALL
)
_INVISIBLE = ("Cc", "Cf")  # categories: control characters, and marks such as a zero-width space
# Invisible characters of other categories: Unicode's Default_Ignorable_Code_Point.
_IGNORED = (
    (0x34F, 0x34F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2065, 0x2065),
    (0xFE00, 0xFE0F),
    (0xFFF0, 0xFFF8),
    (0xE0000, 0xE0FFF),
)
_BLANKS = 0x2800, 0x3164, 0xFFA0  # a pattern of Braille and fillers of Hangul, as wide as a letter
_VISIBLE: dict[int, str | None] = {
    **{code: None for first, last in _IGNORED for code in range(first, last + 1)},
    **dict.fromkeys(_BLANKS, " "),
}


def text_of(value: Any) -> str:
    """Returns a name as text; null and NaN become empty text."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return "" if value is None or value != value else str(value)


def fold_name(name: str) -> str:
    """Returns one spelling for all names that look alike."""
    return fold_letters(name if name.isascii() else name.translate(_VISIBLE))


def fold_letters(name: str) -> str:
    """Returns one spelling for names that differ in case, spaces, coding or control characters."""
    if not (name.isascii() and name.isprintable()):
        name = "".join(
            each for each in name if each.isspace() or unicodedata.category(each) not in _INVISIBLE
        )
        # Normalises twice, because casefold() may undo the first normalisation.
        name = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join(name.casefold().split())


def find_alike(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Lists groups of names that look alike, such as 1 and 1.0, by the first name of each group."""
    same: dict[str, dict[str, None]] = {}
    for name in names:
        text = fold_name(name)
        number = _NUMBER.fullmatch(text)
        same.setdefault(number[1] + number[2] if number else text, {})[name] = None
    return [tuple(group) for group in same.values() if len(group) > 1]


def find_name_fault(names: Sequence[str]) -> str | None:
    """Explains why class names are refused (equal or similar names, lists); None for good names."""
    if len(set(names)) != len(names):
        return f"{', '.join(names)}: a name appears twice; remove one"
    if same := find_alike(names):
        return f"{in_words(same[0])} are spellings of one name; remove one"
    for name in filter(_LIST.fullmatch, names):
        return (
            f"{name!r} is a list of labels, written as a string; if images have several labels, "
            "use one column of 0 and 1 per label, and list the columns in label_columns; if not, "
            "write a plain name"
        )
    return None


def hint_class(text: str, names: Iterable[str]) -> str:
    """Returns a hint if a label is a differently spelled class; empty for other labels."""
    near = [name for name in names if fold_name(name) == fold_name(text)]
    return f" (write {near[0]!r} in the file, or change the name in class_names)" if near else ""


def joined_labels(labels: Iterable[str], names: Iterable[str] | None = None) -> list[str]:
    """Lists labels that join several names by `;`, `|` or `,`, such as `benign;malignant`.

    By default, any label counts as the name of a class.
    """
    parts = {text: _split_label(text) for text in sorted(labels)}
    known = set(parts if names is None else names)
    return [text for text in parts if len(parts[text]) > 1 and known.issuperset(parts[text])]


def _split_label(text: str) -> list[str]:
    if _LIST.fullmatch(text):
        return [part.strip(" '\"") for part in text[1:-1].split(",")]
    return [part.strip() for part in re.split(r"[;|,]", text)]


def in_words(names: Iterable[str]) -> str:
    """Joins names by "and", quoted to show spaces at their ends."""
    return " and ".join(repr(name) for name in names)


def is_text(name: str) -> bool:
    """Returns False for a file name that is not valid UTF-8, as on old systems."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)
