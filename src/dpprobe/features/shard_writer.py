"""Writes a shard under a temporary name, seals it, and renames it.

The job that writes the manifest rereads each shard and verifies its hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpprobe import json_values
from dpprobe.errors import StoreError
from dpprobe.extras import OptionalModule
from dpprobe.features.shard_file import SEAL_BYTES, RowColumns, array_path, seal_shard
from dpprobe.features.shard_header import ShardHeader
from dpprobe.files import atomic_writes
from dpprobe.files.disk_errors import require_room, when_there_is_room

if TYPE_CHECKING:
    import h5py
else:
    h5py = OptionalModule("h5py")

# Bytes of a chunk, the unit that HDF5 reads, checks and caches.
CHUNK_ROWS = 1024
CHUNK_BYTES = 2 << 20


class ShardWriter:
    """Receives the feature rows of one shard, in order, in blocks of any size."""

    def __init__(self, file: h5py.File, header: ShardHeader) -> None:
        self._file = file
        self._header = header
        self._arrays: dict[str | None, _ArrayWriter] = {}  # by layer; the key None has the features

    def append_block(
        self, block: npt.NDArray[Any], *, layers: Mapping[str, npt.NDArray[Any]] | None = None
    ) -> None:
        """Appends features [m, d] and [m, w] per layer, in the header's dtype; widths are fixed."""
        blocks = {None: block} | dict(layers or {})
        if not self._arrays:
            self._wait_for_room(sum(each.shape[1] for each in blocks.values()))
            self._arrays = {
                layer: _ArrayWriter(self._file, array_path(layer), self._header) for layer in blocks
            }
        if blocks.keys() != self._arrays.keys():
            raise StoreError(f"shard {self._header.shard}: blocks of rows have different layers")
        for layer, values in blocks.items():
            self._arrays[layer].append_block(values)

    def _wait_for_room(self, width: int) -> None:
        """Waits for disk space for the complete shard, when only a few rows have been computed."""
        rows = self._header.end_row - self._header.first_row
        needed = rows * width * np.dtype(self._header.dtype).itemsize
        folder = Path(self._file.filename).parent
        when_there_is_room(folder, needed, lambda: require_room(folder, needed))

    def finish_file(self) -> None:
        """Writes the buffered rows and the hashes of all features."""
        digests = {layer: writer.finish_array() for layer, writer in self._arrays.items()}
        self._file.attrs["features_sha256"] = digests.pop(None)
        if digests:
            self._file.attrs["layers_sha256"] = json.dumps(digests)  # in the order of the layers


class _ArrayWriter:
    """Writes one array of a shard in whole chunks."""

    def __init__(self, file: h5py.File, name: str, header: ShardHeader) -> None:
        self.written = 0
        self._file = file
        self._name = name
        self._header = header
        self._expected = header.end_row - header.first_row
        self._hash = hashlib.sha256()
        self._dataset: h5py.Dataset | None = None
        self._buffer = np.empty((0, 0), dtype=header.dtype)
        self._filled = 0

    def append_block(self, block: npt.NDArray[Any]) -> None:
        if self._dataset is None:
            self._create_dataset(block.shape[1])
        if block.shape[1] != self._buffer.shape[1]:  # width 1 would be broadcast to any width
            raise StoreError(
                f"shard {self._header.shard}: {self._name} of width {block.shape[1]} after rows "
                f"of width {self._buffer.shape[1]}; the backbone must give one width"
            )
        taken = 0
        while taken < len(block):
            room = len(self._buffer) - self._filled
            part = block[taken : taken + room]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            taken += len(part)
            if self._filled == len(self._buffer):
                self._flush_buffer()

    def finish_array(self) -> str:
        """Writes the buffered rows, and returns the SHA-256 of all rows."""
        self._flush_buffer()
        if self.written != self._expected:
            raise StoreError(
                f"shard {self._header.shard}: {self.written} rows were given, but "
                f"{self._expected} rows belong to the shard"
            )
        return self._hash.hexdigest()

    def _create_dataset(self, dimension: int) -> None:
        row_bytes = dimension * np.dtype(self._header.dtype).itemsize
        rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes, self._expected))
        self._buffer = np.empty((rows, dimension), dtype=self._header.dtype)
        self._dataset = self._file.create_dataset(
            self._name,
            shape=(self._expected, dimension),
            dtype=self._header.dtype,
            chunks=(rows, dimension),
            fletcher32=True,
        )

    def _flush_buffer(self) -> None:
        if self._filled == 0 or self._dataset is None:
            return
        part = self._buffer[: self._filled]
        self._dataset[self.written : self.written + self._filled] = part
        self._hash.update(part.data)
        self.written += self._filled
        self._filled = 0


@contextmanager
def open_shard(
    output: Path,
    header: ShardHeader,
    rows: RowColumns,
    *,
    probe: Mapping[str, Any] | None = None,
) -> Iterator[ShardWriter]:
    """Writes a shard: yields a writer for its features, then seals the file and renames it.

    After an error all partly written files are deleted. `probe` is the result of `take_probe`.
    """
    with atomic_writes.atomic_path(output) as temporary:
        with h5py.File(temporary, "w", userblock_size=SEAL_BYTES) as file:
            _write_rows(file, rows)
            for name, value in header.make_attributes().items():
                file.attrs[name] = value
            if probe is not None:
                file.attrs["probe"] = json_values.canonical_json(dict(probe))
            writer = ShardWriter(file, header)
            yield writer
            writer.finish_file()
            file.flush()
        seal_shard(temporary)
        atomic_writes.flush_to_disk(temporary)


def write_shard(
    output: Path,
    header: ShardHeader,
    rows: RowColumns,
    features: npt.NDArray[Any],
    *,
    layers: Mapping[str, npt.NDArray[Any]] | None = None,
    probe: Mapping[str, Any] | None = None,
) -> None:
    """Writes a shard whose features [n, d] are in memory."""
    with open_shard(output, header, rows, probe=probe) as writer:
        writer.append_block(features, layers=layers)


def _write_rows(file: h5py.File, rows: RowColumns) -> None:
    file.create_dataset("labels", data=rows.labels, chunks=rows.labels.shape, fletcher32=True)
    for name, values in rows.make_texts().items():
        encoded = np.array([value.encode() for value in values])
        kind = h5py.string_dtype("utf-8", max(encoded.dtype.itemsize, 1))
        file.create_dataset(
            name, data=encoded.astype(kind), dtype=kind, chunks=encoded.shape, fletcher32=True
        )
    file.attrs["rows_sha256"] = rows.hash_columns()
