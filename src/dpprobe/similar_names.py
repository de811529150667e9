"""Suggests the known names that an unknown name may mean."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest_names(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f"write {' or '.join(close)}" if close else "correct it"
