"""Opens features of public examples: a manifest of stored features, or an .npy file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore


class ArrayFile:
    """Rows of an .npy file, [rows, dimension] real numbers, read in blocks as float32.

    Raises DataError, with a remedy, for any other file.
    """

    def __init__(self, path: Path) -> None:
        remedy = "use np.save(path, rows) with one row of numbers per image"
        try:
            values = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            raise DataError(f"{path}: not an .npy file of numbers; {remedy}") from None
        if not isinstance(values, np.ndarray) or values.ndim != 2 or not values.size:
            shape = getattr(values, "shape", None)
            raise DataError(f"{path}: array of shape {shape}, not [rows, dimension]; {remedy}")
        if values.dtype.kind not in "fiu":
            raise DataError(f"{path}: numbers of type {values.dtype}, not real; {remedy}")
        self._values = values
        self.rows, self.dimension = values.shape

    def read_blocks(self, rows: int) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yields consecutive blocks of at most `rows` rows: (first row, [m, dimension])."""
        for start in range(0, self.rows, rows):
            yield start, np.array(self._values[start : start + rows], dtype=np.float32)

    def read_rows(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return np.array(self._values[rows], dtype=np.float32)


def open_rows(path: Path) -> FeatureStore | ArrayFile:
    """Opens rows by the kind of their file.

    Raises DataError for an .npy file without rows of numbers, StoreError for a damaged manifest or
    shard.
    """
    return ArrayFile(path) if path.suffix == ".npy" else FeatureStore(path)
