"""Names as text, and names that differ only in case, spaces, the coding of characters or zeros."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

_NUMBER = re.compile(r"[+]?(-?)0*(\d+)(\.0*)?")
_INVISIBLE = ("Cc", "Cf")  # categories: control characters, and marks such as a zero-width space


def text_of(value: Any) -> str:
    """Returns a name as text; empty for null and NaN."""
    return "" if value is None or value != value else str(value)


def fold_name(name: str) -> str:
    """Returns one spelling for all names that look alike."""
    if not (name.isascii() and name.isprintable()):
        name = "".join(
            each for each in name if each.isspace() or unicodedata.category(each) not in _INVISIBLE
        )
        # Twice, because the lower case of a character may have another coding.
        name = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join(name.casefold().split())


def find_alike(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Lists the groups of names that look alike, such as 1 and 1.0, in order of the first names."""
    same: dict[str, dict[str, None]] = {}
    for name in names:
        text = fold_name(name)
        number = _NUMBER.fullmatch(text)
        same.setdefault(number[1] + number[2] if number else text, {})[name] = None
    return [tuple(group) for group in same.values() if len(group) > 1]


def find_name_fault(names: Sequence[str]) -> str | None:
    """Returns the error text for class names that are equal or look alike; None without a fault."""
    if len(set(names)) != len(names):
        return f"{', '.join(names)}: a name appears twice; remove one"
    if same := find_alike(names):
        return f"{in_words(same[0])} are spellings of one name; remove one"
    return None


def hint_class(text: str, names: Iterable[str]) -> str:
    """Returns a hint for a label that is one of the classes in another spelling; empty if not."""
    near = [name for name in names if fold_name(name) == fold_name(text)]
    return f" (write {near[0]!r} in the file, or change the name in class_names)" if near else ""


def joined_labels(labels: Iterable[str], names: Iterable[str] | None = None) -> list[str]:
    """Lists labels that join several names: `benign;malignant`, also with | or a comma.

    Args:
      names: the names of the classes; by default each label counts as a name.
    """
    parts = {text: [part.strip() for part in re.split(r"[;|,]", text)] for text in sorted(labels)}
    known = set(parts if names is None else names)
    return [text for text in parts if len(parts[text]) > 1 and known.issuperset(parts[text])]


def in_words(names: Iterable[str]) -> str:
    """Quotes and joins names that look alike, so that a space at an end is visible."""
    return " and ".join(repr(name) for name in names)


def is_text(name: str) -> bool:
    """Returns False for a file's name with bytes that are not UTF-8, as old systems wrote."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)
