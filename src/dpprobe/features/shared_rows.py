"""Estimates the share of public rows that are also private rows, in any order and scale.

Rows are compared as vectors of unit length. Let s^2 be the mean squared distance of the rows from
their mean. Two rows count as equal if their squared distance is at most 0.002 s^2 (with mean zero,
a cosine above 0.999). A row is recognised even if it was scaled, stored in float16 or bfloat16,
extracted in another order or precision, or changed in any way by up to 4% of s. Pictures that only
look similar give different rows.

To save time, rows are compared only if they are in the same cell of a grid, of width s/4 along ten
random directions. No unchanged row is missed. The search misses 1 in 15 rows that changed by 0.2%
of s, and 3 of 4 rows that changed by 4%. If all rows changed by 4%, the search still finds 1 in 4,
more than `MOST_SHARED`. Rows of one store in the same cell count as one row.

Rows are compared in three forms: unchanged, minus the mean of their own numbers, and minus the mean
of all rows; each with both signs. A row is also recognised if it was negated, if one number was
added to all its numbers, or if one row was added to all rows of a store.

Rows can be hidden on purpose: by larger changes, by rotating, averaging or shortening rows, or by
adding one row to all rows of a part of a store. Rows of fewer than 16 numbers are close by chance,
so they count as equal only if equal in float16. Rows of zeros, NaN or infinities are ignored.

Two public data sets may share some pictures, or almost equal pictures. `MOST_SHARED` is far above
the share between honest data sets, and far below the share of a data set with a part of itself.

Stores are read in blocks. Memory holds two 8-byte numbers per row and form, and `_COMPARED` rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

# The largest accepted share of the smaller store's distinct rows that are in both stores.
MOST_SHARED = 0.05
_NEAR = 2e-3  # largest squared distance of rows that count as equal, over s^2
_DIRECTIONS, _CELL = 10, 0.25  # number of directions of cells, whose width is _CELL * s
_LEAST_SPREAD = 1e-3  # smallest s of unit rows in float32 that is not a rounding error
_FEWEST_NUMBERS = 16
_ROUNDING = 1e-5  # rounding error of float32, relative to the largest number
_COMPARED = 2048
_BLOCK_ROWS = 4096

Array = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]


class RowStore(Protocol):
    """Rows that can be read in blocks or one by one, such as a `FeatureStore`."""

    @property
    def rows(self) -> int: ...

    @property
    def dimension(self) -> int: ...

    def read_blocks(self, rows: int) -> Iterator[tuple[int, Array]]: ...

    def read_rows(self, rows: Index) -> Array: ...


class PublicRows:
    """Rows that are declared public, to compare with private stores one after another."""

    def __init__(self, store: RowStore) -> None:
        self._rows = _Forms(store)
        self._spreads = _measure_spreads(self._rows)
        self._keys = self._keys_of(self._rows)

    def shared_with(self, private: RowStore) -> float:
        """Estimates the share of the smaller store's distinct rows that are in both stores."""
        theirs, most = _Forms(private), 0.0
        for (form, sign), (keys, rows) in self._keys_of(theirs, signs=(1, -1)).items():
            our_keys, our_rows = self._keys[form, 1]
            if not len(keys) or not len(our_keys):
                continue
            _, first, second = np.intersect1d(
                our_keys, keys, assume_unique=True, return_indices=True
            )
            part = len(first) / min(len(keys), len(our_keys))
            if part > max(MOST_SHARED, most):
                chosen = np.linspace(0, len(first) - 1, min(len(first), _COMPARED)).astype(np.int64)
                ours = self._rows.read_units(our_rows[first[chosen]], form)
                others = sign * theirs.read_units(rows[second[chosen]], form)
                near = np.square(ours - others).sum(axis=1) <= _NEAR * self._spreads[form] ** 2
                part *= float(near.mean())
            most = max(most, part)
        return most

    def _keys_of(
        self, store: _Forms, signs: Sequence[int] = (1,)
    ) -> dict[tuple[int, int], tuple[npt.NDArray[np.uint64], Index]]:
        """Returns, by form and sign, the distinct keys in ascending order, and one row per key."""
        width = _DIRECTIONS if store.forms > 1 else store.dimension
        odd = np.random.default_rng(1).integers(2**64, size=width, dtype=np.uint64) | np.uint64(1)
        directions = np.random.default_rng(0).standard_normal((store.dimension, _DIRECTIONS))
        keyed: dict[tuple[int, int], list[tuple[npt.NDArray[np.uint64], Index]]]
        keyed = {(form, sign): [_NONE] for form in range(store.forms) for sign in signs}
        for start, form, block, (kept, units) in store.read_forms():
            if store.forms > 1:
                places = units @ (directions / (_CELL * self._spreads[form])).astype(np.float32)
            else:
                with np.errstate(over="ignore"):  # keys of infinite rows are equal
                    places = block[kept].astype(np.float16)
            for sign in signs:
                if store.forms > 1:
                    cells = np.floor(sign * places).astype(np.int64)
                else:
                    halves = sign * places + np.float16(0)  # -0 becomes 0
                    cells = halves.view(np.int16).astype(np.int64)
                keys = (cells.astype(np.uint64) * odd).sum(axis=1, dtype=np.uint64)
                keyed[form, sign].append((keys, start + kept))
        return {each: _unique_keys(parts) for each, parts in keyed.items()}


_NONE = np.zeros(0, np.uint64), np.zeros(0, np.int64)


def _unique_keys(
    parts: Sequence[tuple[npt.NDArray[np.uint64], Index]],
) -> tuple[npt.NDArray[np.uint64], Index]:
    keys, rows = (np.concatenate(each) for each in zip(*parts, strict=True))
    different, places = np.unique(keys, return_index=True)
    return different, rows[places]


class _Forms:
    """The rows of a store in three forms, or only in the original form if rows have few numbers."""

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self.dimension = store.dimension
        self.forms = 3 if store.dimension >= _FEWEST_NUMBERS else 1
        total, count = np.zeros(store.dimension), 0
        for _, block in store.read_blocks(_BLOCK_ROWS):
            kept, _ = _unit_rows(block)
            total += block[kept].sum(axis=0, dtype=np.float64)
            count += len(kept)
        self._mean = (total / max(count, 1)).astype(np.float32)

    def read_forms(self) -> Iterator[tuple[int, int, Array, tuple[Index, Array]]]:
        """Yields a block's first row, a form, the block, and the block's rows at unit length."""
        for start, block in self._store.read_blocks(_BLOCK_ROWS):
            for form in range(self.forms):
                yield start, form, block, _unit_rows(self._shape_rows(block, form))

    def read_units(self, rows: Index, form: int) -> Array:
        """Reads some rows, in any order, in a form and at unit length."""
        order = np.argsort(rows)
        selected = np.empty((len(rows), self.dimension), np.float32)
        shaped = self._shape_rows(self._store.read_rows(rows[order]), form)
        selected[order] = _unit_rows(shaped)[1]
        return selected

    def _shape_rows(self, block: Array, form: int) -> Array:
        if form == 0:
            return block
        with np.errstate(invalid="ignore"):  # rows with infinities are unusable
            shaped = block - (block.mean(axis=1, keepdims=True) if form == 1 else self._mean)
            # Rows of equal numbers, or close to the mean, become rounding errors; set them to 0.
            rounding = np.abs(shaped).max(axis=1) <= _ROUNDING * np.abs(block).max(axis=1)
        shaped[rounding] = 0
        return shaped


def _measure_spreads(rows: _Forms) -> list[float]:
    """Returns the root mean square distances of the unit rows from their mean, by form."""
    totals, counts = np.zeros((rows.forms, rows.dimension)), np.zeros(rows.forms)
    for _, form, _, (kept, units) in rows.read_forms():
        totals[form] += units.sum(axis=0, dtype=np.float64)
        counts[form] += len(kept)
    squares = 1 - np.square(totals / np.maximum(counts, 1)[:, None]).sum(axis=1)
    return [max(float(square), _LEAST_SPREAD**2) ** 0.5 for square in squares]


def _unit_rows(block: Array) -> tuple[Index, Array]:
    """Returns a block's finite nonzero rows: their positions, and the rows at unit length."""
    lengths = np.sqrt(np.einsum("ij,ij->i", block, block, dtype=np.float64))
    kept = np.flatnonzero(np.isfinite(lengths) & (lengths > 0))
    return kept, (block[kept] / lengths[kept, None]).astype(np.float32)
