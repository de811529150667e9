"""The vectors of a row in a split table, stored as bytes in place of an image's bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from dpprobe.data.table import EncodedImage, SplitTable
from dpprobe.errors import DataError
from dpprobe.progress import Progress

Array = npt.NDArray[np.float32]


def pack_vectors(vectors: Mapping[str, Array]) -> bytes:
    """Packs the vectors of a row into bytes; equal vectors give equal bytes."""
    # Adding 0.0 turns -0.0 into 0.0, because equal numbers must give equal bytes.
    return save(
        {name: np.ascontiguousarray(one, np.float32) + 0.0 for name, one in vectors.items()}
    )


def read_vector(row: EncodedImage, name: str, *, split: str) -> Array:
    """Reads one vector of a row; raises DataError if the row's bytes do not match their hash."""
    return _load_vectors(row, split)[name]


def hash_vectors(table: SplitTable) -> Iterator[bytes]:
    """Yields the SHA-256 of each vector's float32 numbers, without its name; skips null examples.

    Raises DataError if a row's bytes do not match their hash.
    """
    label = f"{table.path}: comparing vectors"
    with Progress(table.rows, label=label, last_line=False) as progress:
        for row in table.read_images(0, table.rows):
            if row.sha256 is not None:
                for vector in _load_vectors(row, table.split).values():
                    yield hashlib.sha256(vector.tobytes()).digest()
            progress.advance_by(1)


def _load_vectors(row: EncodedImage, split: str) -> dict[str, Array]:
    where = f"{split} row {row.row} (id {row.id})"
    if row.sha256 is None:
        raise DataError(f"{where}: a null example has no vectors; leave the row out")
    if row.data is None or hashlib.sha256(row.data).digest() != row.sha256:
        raise DataError(f"{where}: changed since the dataset was prepared; prepare it again")
    vectors: dict[str, Array] = load(row.data)
    return vectors
