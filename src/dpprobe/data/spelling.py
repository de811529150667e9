"""Names that a person would take for one: they differ in case, spaces or the coding of accents."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def folded(name: str) -> str:
    """Returns what names that look alike have in common."""
    return " ".join(unicodedata.normalize("NFC", name).casefold().split())


def alike(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Lists the names that another one looks like, each with all that do, in their order."""
    same: dict[str, dict[str, None]] = {}
    for name in names:
        same.setdefault(folded(name), {})[name] = None
    return [tuple(group) for group in same.values() if len(group) > 1]


def in_words(names: Iterable[str]) -> str:
    """Writes names that look alike, so that a space at an end can be seen."""
    return " and ".join(repr(name) for name in names)
