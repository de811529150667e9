"""Deterministic splits for sources without a test set, by class or by id.

Neither depends on the order of the rows or on a random generator's version.

By class, a row's side depends on its id, the seed and the ids of its class. Adding one row to the
source can move one other row of the same class across the boundary, as a class's share of the test
set is rounded: a guarantee that starts at the *train* table is not for that change.

By id, a row's side is a public function of its id and the seed: SHA-256 of both, read as a number
in [0, 1), lies below the fraction or not. No other row, label or pixel enters, so whatever is done
to one unit (added, left out, relabelled, replaced by null rows) moves no other one, and train and
test tables of neighbouring sources differ in that unit's rows alone. All rows of a unit that has
several have the unit's name for an id. The number of test units is then random over seeds, by a
binomial distribution, and a class may have none.

This holds where an id is a function of its unit. Ids that are positions in a file are that under
the relation of the guarantee, which puts null rows in a unit's place and keeps all others where
they are; one row more at the front of the file would rename, and so move, all that follow.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Literal

SplitBy = Literal["class", "id"]
_DIGEST_BITS = 256


def count_test(rows: int, fraction: float) -> int:
    """Counts the rows of a class that are tested on: the fraction, rounded to the nearest.

    At least one row and at most all but one; a class of one row is trained on.
    One more row raises the count by at most one.
    """
    if rows < 2:
        return 0
    return min(max(math.floor(fraction * rows + 0.5), 1), rows - 1)


def count_rows(class_rows: Iterable[int], fraction: float) -> tuple[int, int]:
    """Counts training and test rows of a split by class, from the sizes of the classes."""
    sizes = list(class_rows)
    tested = sum(count_test(rows, fraction) for rows in sizes)
    return sum(sizes) - tested, tested


def count_by_id(ids: Iterable[str], *, fraction: float, seed: int) -> tuple[int, int]:
    """Counts training and test rows of a split by id."""
    tested = choose_by_id(ids, fraction=fraction, seed=seed)
    return tested.count(False), tested.count(True)


def choose_by_id(ids: Iterable[str], *, fraction: float, seed: int) -> list[bool]:
    """Chooses each row by its id alone: SHA-256 of (seed, id) is below the fraction.

    Rows of equal ids are on one side.
    """
    # In whole numbers: every digest is compared with exactly the float that the study wrote.
    numerator, denominator = fraction.as_integer_ratio()
    bound = numerator << _DIGEST_BITS
    return [int.from_bytes(_rank(seed, each)) * denominator < bound for each in ids]


def choose_test(
    ids: Sequence[str],
    strata: Sequence[Hashable],
    *,
    fraction: float,
    seed: int,
    by: SplitBy = "class",
) -> list[bool]:
    """Chooses the rows that are tested on.

    By class, within each stratum rows are ranked by SHA-256 of (seed, id), and the smallest are
    taken: as many as `count_test` says. By id, see `choose_by_id`.

    Args:
      ids: the rows' ids, each once.
      strata: the rows' classes, or one constant for a split that ignores them; unused by id.
      fraction: the part to test on, in (0, 1).
      seed: another seed gives another split.
      by: class or id.

    Returns:
      True for a test row, False for a training row, in the order of `ids`.
    """
    if by == "id":
        return choose_by_id(ids, fraction=fraction, seed=seed)
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
