"""A deterministic, stratified split for sources without a test set.

The side of a row depends on its id, the seed and the sizes of the strata, on nothing else: not on
the order of the rows, and not on a random generator's version.

Note for the privacy statement: the unit of privacy is a row of the resulting *train* table as it
stands. Adding one row to the source can also move one other row of the same class across the
boundary, as a class's share of the test set is rounded: the guarantee is not for that change.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterable, Sequence


def count_test(rows: int, fraction: float) -> int:
    """Counts the rows of a class that are tested on: the fraction, rounded to the nearest.

    At least one row and at most all but one; a class of one row is trained on.
    One more row raises the count by at most one.
    """
    if rows < 2:
        return 0
    return min(max(math.floor(fraction * rows + 0.5), 1), rows - 1)


def count_rows(class_rows: Iterable[int], fraction: float) -> tuple[int, int]:
    """Counts training and test rows of `choose_test`, from the sizes of the classes."""
    sizes = list(class_rows)
    tested = sum(count_test(rows, fraction) for rows in sizes)
    return sum(sizes) - tested, tested


def choose_test(
    ids: Sequence[str], strata: Sequence[Hashable], *, fraction: float, seed: int
) -> list[bool]:
    """Chooses the rows that are tested on.

    Within each stratum rows are ranked by SHA-256 of (seed, id), and the smallest are taken: as
    many as `count_test` says.

    Args:
      ids: the rows' ids, each once.
      strata: the rows' classes, or one constant for a split that ignores them.
      fraction: the part to test on, in (0, 1).
      seed: another seed gives another split.

    Returns:
      True for a test row, False for a training row, in the order of `ids`.
    """
    members: dict[Hashable, list[int]] = {}
    for row, stratum in enumerate(strata):
        members.setdefault(stratum, []).append(row)
    tested = [False] * len(ids)
    for rows in members.values():
        rows.sort(key=lambda row: _rank(seed, ids[row]))
        for row in rows[: count_test(len(rows), fraction)]:
            tested[row] = True
    return tested


def _rank(seed: int, row_id: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{row_id}".encode()).digest()
