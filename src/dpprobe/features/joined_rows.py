"""Rows of several feature arrays side by side, each scaled to L2 norm 1, as one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import h5py

_SMALLEST = np.finfo(np.float32).tiny


def unit_rows(rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Returns rows [m, d] scaled to norm 1, float32; rows of zeros or NaN do not change."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    # the scale for a smaller length would overflow float32
    scale = (1 / np.where(lengths > _SMALLEST, lengths, 1.0)).astype(np.float32)
    return rows.astype(np.float32) * scale[:, None]


class JoinedRows:
    """Arrays [n, d] of open shards that are read together, like one HDF5 array.

    A row with NaN in one part (a null example) is NaN in all parts.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, parts: Sequence[h5py.Dataset]) -> None:
        self._parts = parts
        self._ends = np.cumsum([part.shape[1] for part in parts]).tolist()
        self.shape = (len(parts[0]), self._ends[-1])
        self.chunks = (max(part.chunks[0] for part in parts), self._ends[-1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> npt.NDArray[np.float32]:
        return _spread_nan(np.hstack([unit_rows(part[rows]) for part in self._parts]))

    def read_direct(self, block: npt.NDArray[np.float32], rows: slice) -> None:
        """Reads consecutive rows into a block, one part after another."""
        for part, end in zip(self._parts, self._ends, strict=True):
            block[:, end - part.shape[1] : end] = unit_rows(part[rows])
        _spread_nan(block)


def _spread_nan(block: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    block[np.isnan(block).any(axis=1)] = np.nan
    return block
