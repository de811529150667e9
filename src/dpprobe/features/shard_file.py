"""Reads an HDF5 shard: its seal, its header, its columns and its features in blocks.

HDF5 trusts the files that it opens: damaged structures may crash the process or cause an endless
loop. A shard begins with a seal against damage: the SHA-256 of all later bytes, in the user block.
Readers compare the bytes with the seal or the manifest before HDF5 opens the file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpprobe import json_values
from dpprobe.errors import StoreError
from dpprobe.features.joined_rows import JoinedRows
from dpprobe.features.shard_header import REMEDY, ShardHeader
from dpprobe.files import disk_errors
from dpprobe.files.hdf5_files import open_hdf5

if TYPE_CHECKING:
    import h5py

    from dpprobe.data.table import SplitTable

READ_BYTES = 16 << 20
CACHE_BYTES = 16 << 20
SEAL_BYTES = 512  # the smallest user block of HDF5
_SEAL = re.compile(rb"dpprobe-features sha256 ([0-9a-f]{64})\n\0*")


class RowColumns(NamedTuple):
    """All columns of some rows, except the features.

    Attributes:
      groups: for each subgroup column, one string per row.
      accepted: for each row, the labels that count as correct.
      units: the patient of each row.
    """

    labels: npt.NDArray[Any]
    ids: list[str]
    groups: dict[str, list[str]] = {}  # noqa: RUF012 - never changed
    accepted: list[list[int]] | None = None
    units: list[str] | None = None

    @classmethod
    def read_table(cls, table: SplitTable, start: int, stop: int) -> RowColumns:
        """Reads the columns of rows start..stop of a split table."""
        return cls(
            table.read_labels(start, stop),
            table.read_ids(start, stop),
            table.read_groups(start, stop),
            table.read_accepted(start, stop),
            table.read_units(start, stop),
        )

    def take_rows(self, rows: Sequence[int]) -> RowColumns:
        def take(values: list[Any]) -> list[Any]:
            return [values[row] for row in rows]

        return RowColumns(
            self.labels[rows],
            take(self.ids),
            {name: take(values) for name, values in self.groups.items()},
            None if self.accepted is None else take(self.accepted),
            None if self.units is None else take(self.units),
        )

    def make_texts(self) -> dict[str, list[str]]:
        """Returns all columns except labels in a shard's format: strings by column name."""
        texts = {"ids": self.ids, **{f"groups/{name}": self.groups[name] for name in self.groups}}
        if self.accepted is not None:
            texts["accepted"] = [json_values.canonical_json(row) for row in self.accepted]
        if self.units is not None:
            texts["units"] = self.units
        return texts

    def hash_columns(self) -> str:
        digest = hashlib.sha256(np.ascontiguousarray(self.labels).data)
        names = sorted(self.groups)
        content = [str(self.labels.dtype), list(self.labels.shape), self.ids, names]
        digest.update(json_values.canonical_json(content).encode())
        for name in names:
            digest.update(json_values.canonical_json(self.groups[name]).encode())
        if self.accepted is not None:
            digest.update(json_values.canonical_json(self.accepted).encode())
        if self.units is not None:
            digest.update(json_values.canonical_json({"units": self.units}).encode())
        return digest.hexdigest()


def seal_shard(path: Path) -> None:
    """Writes the SHA-256 of all bytes after the user block into the user block."""
    with path.open("r+b") as stream:
        stream.seek(SEAL_BYTES)
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(0)
        stream.write(f"dpprobe-features sha256 {digest}\n".encode().ljust(SEAL_BYTES, b"\0"))


def check_seal(path: Path) -> None:
    """Raises StoreError if a shard is missing or unreadable, or its bytes differ from its seal."""
    require_shard(path)
    try:
        with path.open("rb") as stream:
            seal = _SEAL.fullmatch(stream.read(SEAL_BYTES))
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise unreadable_shard(path, error) from error
    if seal is None or digest.encode() != seal[1]:
        raise StoreError(
            f"{path}: the shard is damaged or truncated (its bytes differ from the SHA-256 "
            f"at its beginning); {REMEDY}"
        )


def unreadable_shard(path: Path, error: OSError) -> StoreError:
    """Returns the error for a shard that the operating system does not let dpprobe read."""
    remedy = disk_errors.UNWRITABLE.get(error.errno or 0, REMEDY)
    return StoreError(f"{path}: the shard cannot be read ({error.strerror}); {remedy}")


def require_shard(path: Path) -> None:
    if not path.is_file():
        raise StoreError(f"{path}: the shard is missing; run again to recreate it")


@contextmanager
def opened_shard(path: Path) -> Iterator[h5py.File]:
    """Opens a shard whose bytes the caller has compared with the seal or the manifest.

    Errors of HDF5 during reading become a StoreError that names the shard.
    """
    try:
        with open_hdf5(path, rdcc_nbytes=CACHE_BYTES) as file:
            yield file
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        line = " ".join(str(error).split())
        raise StoreError(f"{path}: the shard is damaged or truncated ({line}); {REMEDY}") from error


def read_header(path: Path) -> ShardHeader:
    """Reads the header of a shard; raises StoreError if the file is damaged or not a shard."""
    check_seal(path)
    with opened_shard(path) as file:
        return ShardHeader.from_attributes(file.attrs, str(path))


def read_rows(file: h5py.File) -> RowColumns:
    groups = file.get("groups", {})
    accepted = None
    if "accepted" in file:
        accepted = [json.loads(text) for text in file["accepted"].asstr()[...]]
    return RowColumns(
        file["labels"][...],
        file["ids"].asstr()[...].tolist(),
        {name: groups[name].asstr()[...].tolist() for name in groups},
        accepted,
        file["units"].asstr()[...].tolist() if "units" in file else None,
    )


def array_path(layer: str | None) -> str:
    """Returns the path of the features, or of a layer's features, inside a shard."""
    return "features" if layer is None else f"layers/{layer}"


def stored_blocks(
    features: h5py.Dataset | JoinedRows, rows: int | None = None
) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yields a shard's rows in blocks of whole chunks; each block overwrites the previous block."""
    chunk = features.chunks[0]
    row_bytes = max(features.shape[1] * features.dtype.itemsize, 1)
    wanted = rows or READ_BYTES // row_bytes
    step = max(chunk, wanted // chunk * chunk)
    buffer = np.empty((min(step, len(features)), features.shape[1]), dtype=features.dtype)
    for start in range(0, len(features), step):
        stop = min(start + step, len(features))
        block = buffer[: stop - start]
        features.read_direct(block, np.s_[start:stop])
        yield start, block


def check_equal(name: str, actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises StoreError, with the shard, for the first value that differs from `expected`."""
    if difference := json_values.first_difference(actual, expected):
        raise StoreError(
            f"{name}: {difference.place} is {difference.first!s:.60} instead of "
            f"{difference.second!s:.60}, so the shard belongs to another job: {REMEDY}"
        )
