"""Computes the part of public rows that are private ones, in any order and of any length.

Rows are compared as vectors of unit length. With s^2 the mean square of their distances from their
mean, two count as one where their squared distance is at most 0.002 s^2: for rows without a mean in
common, a cosine above 0.999. So a row is known again after it was scaled, stored in float16 or
bfloat16, extracted anew in another order or precision, or changed in any way by up to 4 % of s; and
two pictures that merely look alike are two. Near that limit many are missed: a row falls into cells
of s/4 along ten random directions, and is compared with the row of the other side in the same cells
alone. Of equal rows none is missed, of rows changed by 0.2 % of s one in fifteen, at the limit
three of four, which leaves more than `MOST_SHARED`. Rows in the same cells count as one.

Not known again are rows changed by more, rotated, averaged or with numbers left out: who wants to
hide rows can. Rows of fewer than 16 numbers lie close to each other by chance, and count as one
where they are equal as float16. Rows of zeros, NaN or infinities are nobody's.

Two public data sets share pictures, or contain almost equal ones: `MOST_SHARED` is far above what
honest data has, and far below what a data set shares with a part of itself.

Each side is read in blocks; what stays are eight bytes a row, twice, and `_COMPARED` rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

# The largest part of the smaller side's different rows that both sides may have.
MOST_SHARED = 0.05
_NEAR = 2e-3  # squared distance of rows that count as one, over the squared spread
_DIRECTIONS, _CELL = 10, 0.25  # of the cells, the width over the spread
_LEAST_SPREAD = 1e-3  # of unit rows in float32: below are roundings
_FEWEST_NUMBERS = 16
_COMPARED = 2048
_BLOCK_ROWS = 4096

Array = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]


class RowStore(Protocol):
    """Rows that are read in blocks or one by one, such as a `FeatureStore`."""

    @property
    def dimension(self) -> int: ...

    def read_blocks(self, rows: int) -> Iterator[tuple[int, Array]]: ...

    def read_rows(self, rows: Index) -> Array: ...


class PublicRows:
    """Rows that are declared public, to be compared with those of one private store after another.

    Args:
      store: read twice here.
    """

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self._spread = _measure_spread(store)
        directions = np.random.default_rng(0).standard_normal((store.dimension, _DIRECTIONS))
        self._directions = (directions / (_CELL * self._spread)).astype(np.float32)
        self._keys, self._rows = self._keys_of(store)

    def shared_with(self, private: RowStore) -> float:
        """Estimates the part of the smaller side's different rows that both sides have.

        Of more than `_COMPARED` pairs in the same cells as many are compared.
        """
        keys, rows = self._keys_of(private)
        if not len(keys) or not len(self._keys):
            return 0.0
        _, ours, theirs = np.intersect1d(self._keys, keys, assume_unique=True, return_indices=True)
        part = len(ours) / min(len(keys), len(self._keys))
        if part <= MOST_SHARED:
            return part
        chosen = np.linspace(0, len(ours) - 1, min(len(ours), _COMPARED)).astype(np.int64)
        first = _read_unit_rows(self._store, self._rows[ours[chosen]])
        second = _read_unit_rows(private, rows[theirs[chosen]])
        near = np.square(first - second).sum(axis=1) <= _NEAR * self._spread**2
        return part * float(near.mean())

    def _keys_of(self, store: RowStore) -> tuple[npt.NDArray[np.uint64], Index]:
        """Returns the different keys in rising order, and a row that has each."""
        width = _DIRECTIONS if store.dimension >= _FEWEST_NUMBERS else store.dimension
        odd = np.random.default_rng(1).integers(2**64, size=width, dtype=np.uint64) | np.uint64(1)
        keys, rows = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        for start, block in store.read_blocks(_BLOCK_ROWS):
            kept, units = _unit_rows(block)
            if store.dimension >= _FEWEST_NUMBERS:
                cells = np.floor(units @ self._directions).astype(np.int64)
            else:
                with np.errstate(over="ignore"):  # infinite ones are equal
                    halves = block[kept].astype(np.float16) + np.float16(0)  # -0 becomes 0
                cells = halves.view(np.int16).astype(np.int64)
            keys.append((cells.astype(np.uint64) * odd).sum(axis=1, dtype=np.uint64))
            rows.append(start + kept)
        different, places = np.unique(np.concatenate(keys), return_index=True)
        return different, np.concatenate(rows)[places]


def _measure_spread(store: RowStore) -> float:
    """Returns the root mean square distance of the unit rows from their mean."""
    total, count = np.zeros(store.dimension), 0
    for _, block in store.read_blocks(_BLOCK_ROWS):
        kept, units = _unit_rows(block)
        total += units.sum(axis=0, dtype=np.float64)
        count += len(kept)
    square = 1.0 - float(np.square(total / max(count, 1)).sum())
    return max(square, _LEAST_SPREAD**2) ** 0.5


def _unit_rows(block: Array) -> tuple[Index, Array]:
    """Returns the rows of a block that are finite and not zero: their places, at unit length."""
    lengths = np.sqrt(np.einsum("ij,ij->i", block, block, dtype=np.float64))
    kept = np.flatnonzero(np.isfinite(lengths) & (lengths > 0))
    return kept, (block[kept] / lengths[kept, None]).astype(np.float32)


def _read_unit_rows(store: RowStore, rows: Index) -> Array:
    """Reads some rows, in any order, at unit length."""
    order = np.argsort(rows)
    selected = np.empty((len(rows), store.dimension), np.float32)
    selected[order] = _unit_rows(store.read_rows(rows[order]))[1]
    return selected
