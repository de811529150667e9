"""Counts rows that repeat the content of an earlier row, by row and by unit of privacy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable


class CopyCounter:
    """Counts copies: rows with the content of an earlier row.

    In `by_row`, `rows` counts all copies, and `most` is the largest number of rows with equal
    content. In `by_unit`, `rows` counts copies of another unit's row, and `most` is the largest
    number of units with equal content.
    """

    def __init__(self) -> None:
        # content -> number of copies, at least 1
        self._copies: Counter[bytes] = Counter()
        self._units: dict[bytes, set[Hashable]] = {}
        self._of_others = 0

    def add_copy(self, content: bytes, unit: Hashable, *, first_unit: Hashable) -> None:
        """Adds a copy; `first_unit` is the unit of the first row with `content`."""
        self._copies[content] += 1
        units = self._units.setdefault(content, {first_unit})
        self._of_others += unit not in units
        units.add(unit)

    @property
    def by_row(self) -> dict[str, int]:
        most = max(self._copies.values(), default=0) + 1
        return {"rows": self._copies.total(), "most": most}

    @property
    def by_unit(self) -> dict[str, int]:
        return {"rows": self._of_others, "most": max(map(len, self._units.values()), default=1)}
