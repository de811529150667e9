"""The feature store: immutable HDF5 shards, a manifest that proves they fit together, and a reader.

A shard has the rows start..stop of one split: `features` [n, d], `labels` [n] (or [n, k]), `ids`
[n], and, where they exist, `layers/<name>` [n, w], `groups/<name>` [n], `accepted` [n] and `units`
[n]. `shard_writer` writes shards, `shard_manifest` records each shard's size and hashes. The reader
in this module raises an error, with the file's name, if a file differs from the manifest.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from dpprobe.data.promise_facts import PromiseFacts
from dpprobe.errors import StoreError
from dpprobe.features.aligned_rows import empty_rows
from dpprobe.features.joined_rows import JoinedRows
from dpprobe.features.shard_file import (
    RowColumns,
    array_path,
    opened_shard,
    read_rows,
    require_shard,
    stored_blocks,
    unreadable_shard,
)
from dpprobe.features.shard_header import REMEDY, ShardHeader
from dpprobe.features.shard_manifest import read_manifest
from dpprobe.features.shard_verification import ShardRecord
from dpprobe.files.plain_files import sha256_file

if TYPE_CHECKING:
    import h5py

SELECTED_BLOCK_ROWS = 4096  # rows per block if only some rows are read
CROP_PREFIX = "crop_"


def _read_state(path: Path) -> tuple[int, ...]:
    """Returns a file's size, and numbers that change if the file is replaced or written to."""
    status = path.stat()
    return status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns


class FeatureStore:
    """The features of one split; raises StoreError if their manifest is missing or damaged.

    Before HDF5 opens a shard, the shard's size and SHA-256 are compared with the manifest, because
    damaged HDF5 may crash the process. Later reads compare size and hash again if the file was
    replaced or written to meanwhile, and otherwise rely on HDF5's own checksums. If a file changes
    during reading, an error follows. Forks are safe, as each call opens files.

    Attributes:
      rows, dimension: the number of rows, and of features per row.
      layers: name -> width, for the features of inner blocks and of `crops`; mostly empty.
      architecture, pretrained_tag: the names of the backbone's model and weights, if any.
      trained: True if the backbone's weights are trained.
      fingerprint: the hash of all rows' content, independent of the division into shards.
      copies: counts of training examples that repeat an earlier image; None if not counted.
      nulls: positions of null examples, whose features are NaN; mostly empty.
      members: the stores that a joined backbone's features are read from; mostly empty.
    """

    def __init__(self, manifest: Path) -> None:
        self.path = manifest
        body = read_manifest(manifest)
        self.split: str = body["split"]
        self.rows: int = body["rows"]
        self.dimension: int = body["dimension"]
        self.layers: dict[str, int] = body.get("layers", {})
        self.class_names: tuple[str, ...] = tuple(body["class_names"])
        self.multi_label: bool = body["multi_label"]
        self.dataset_fingerprint: str = body["dataset_fingerprint"]
        self.backbone: str = body["backbone"]
        self.backbone_options: dict[str, Any] = body["backbone_options"]
        self.backbone_fingerprint: str = body["backbone_fingerprint"]
        self.weights_sha256: str | None = body["weights_sha256"]
        self.architecture: str | None = body["architecture"]
        self.pretrained_tag: str | None = body["pretrained_tag"]
        self.trained: bool = body["trained"]
        self.preprocessing: dict[str, Any] = body["preprocessing"]
        self.fingerprint: str = body["fingerprint"]
        self.copies: dict[str, dict[str, Any]] | None = body.get("copies")
        self._promise: dict[str, Any] | None = body.get("promise")
        self.nulls: Sequence[int] = body.get("nulls", ())
        self._kept: npt.NDArray[np.int64] | None = None  # rows of a store without nulls
        self.shards = tuple(ShardRecord(**shard) for shard in body["shards"])
        self._compared: dict[str, tuple[int, ...]] = {}
        self.members = tuple(self._open_member(**each) for each in body.get("members", ()))

    def _open_member(self, *, manifest: str, fingerprint: str) -> FeatureStore:
        member = FeatureStore(Path(os.path.normpath(self.path.parent / manifest)))
        if member.fingerprint != fingerprint:
            raise StoreError(
                f"{member.path}: these features changed after {self.path} joined them; delete "
                f"{self.path} and run again"
            )
        return member

    def leave_out_nulls(self) -> Self:
        """Returns the store without null examples, for results computed without noise."""
        if not self.nulls:
            return self
        other = copy.copy(self)
        vars(other).pop("_row_columns", None)
        other._kept = np.setdiff1d(np.arange(self.rows), self.nulls)
        other.rows, other.nulls = len(other._kept), ()
        return other

    @property
    def crops(self) -> tuple[str, ...]:
        """The names of layers with features of random crops, in order."""
        return tuple(sorted(name for name in self.layers if name.startswith(CROP_PREFIX)))

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def promise(self) -> PromiseFacts:
        """The dataset's facts behind a guarantee; StoreError if the manifest lacks them."""
        try:
            return PromiseFacts.from_dict({**self._promise, "copies": self.copies})  # type: ignore[dict-item]
        except TypeError:
            raise StoreError(
                f"{self.path}: this manifest does not say who the dataset's units are, because "
                "another version of dpprobe wrote it; run the study again, which rewrites it"
            ) from None

    @property
    def labels(self) -> npt.NDArray[Any]:
        """The labels: int64 [rows], or int8 [rows, classes] for multi-label."""
        return self._row_columns.labels

    @property
    def ids(self) -> list[str]:
        return self._row_columns.ids

    @property
    def groups(self) -> Mapping[str, list[str]]:
        """Maps each subgroup column to one string per row, which is empty if unknown."""
        return self._row_columns.groups

    @property
    def accepted(self) -> list[list[int]] | None:
        """For each row, the labels that count as correct; None if the dataset has no such lists."""
        return self._row_columns.accepted

    @property
    def units(self) -> list[str] | None:
        """The name of each row's unit; None if the dataset has no units."""
        return self._row_columns.units

    @cached_property
    def _row_columns(self) -> RowColumns:
        parts = []
        for record in self.shards:
            with self._open_shard(record) as file:
                parts.append(read_rows(file))
        accepted = [row for part in parts for row in part.accepted or ()]
        columns = RowColumns(
            np.concatenate([part.labels for part in parts]),
            [row_id for part in parts for row_id in part.ids],
            {name: [v for part in parts for v in part.groups[name]] for name in parts[0].groups},
            None if parts[0].accepted is None else accepted,
            None if parts[0].units is None else [u for part in parts for u in part.units or ()],
        )
        return columns if self._kept is None else columns.take_rows(self._kept.tolist())

    def read(self, dtype: str = "float32", *, layer: str | None = None) -> npt.NDArray[Any]:
        """Reads all features [rows, dimension], or the features of a layer [rows, width]."""
        features = empty_rows((self.rows, self._layer_width(layer)), dtype)
        for record in self.shards:
            for start, block in self._blocks_of(record, None, layer):
                features[start : start + len(block)] = block
        return features

    def read_blocks(
        self, rows: int, *, layer: str | None = None
    ) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yields features in order, about `rows` at a time: (first row, float32 [m, dimension]).

        A block has whole chunks of one shard, so its number of rows m varies, up to the larger of
        `rows` and one chunk. The caller may change a block.
        """
        for record in self.shards:
            for start, block in self._blocks_of(record, rows, layer):
                yield start, block.astype(np.float32)

    def read_rows(
        self, rows: npt.NDArray[np.int64], *, layer: str | None = None
    ) -> npt.NDArray[np.float32]:
        """Reads features, float32 [len(rows), d], of `rows`: ascending positions in the split."""
        features = empty_rows((len(rows), self._layer_width(layer)), np.float32)
        for start, block in self.read_blocks(SELECTED_BLOCK_ROWS, layer=layer):
            low, high = np.searchsorted(rows, (start, start + len(block)))
            features[low:high] = block[rows[low:high] - start]
        return features

    def rows_at(self, index: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Reads the features, float32 [len(index), dimension], of rows in any order."""
        features = np.empty((len(index), self.dimension), dtype=np.float32)
        index = index if self._kept is None else self._kept[index]
        for record in self.shards:
            (places,) = np.nonzero((index >= record.start) & (index < record.stop))
            if not len(places):
                continue
            wanted, again = np.unique(index[places] - record.start, return_inverse=True)
            with self._open_array(record, None) as array:
                features[places] = array[wanted][again]
        return features

    def _layer_width(self, layer: str | None) -> int:
        if layer is None:
            return self.dimension
        if layer not in self.layers:
            raise StoreError(
                f"{self.path}: no features of layer {layer}, only of "
                f"{', '.join(self.layers) or 'none'}; add {layer} to the backbone's layers"
            )
        return self.layers[layer]

    def _blocks_of(
        self, record: ShardRecord, rows: int | None, layer: str | None
    ) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        self._layer_width(layer)
        with self._open_array(record, layer) as array:
            for start, block in stored_blocks(array, rows):
                first = record.start + start
                if self._kept is None:
                    yield first, block
                    continue
                low, high = np.searchsorted(self._kept, (first, first + len(block))).tolist()
                if low < high:
                    yield low, block[self._kept[low:high] - first]

    def read_header(self, record: ShardRecord) -> ShardHeader:
        with self._open_shard(record) as file:
            return ShardHeader.from_attributes(file.attrs, str(self._shard_path(record)))

    @contextmanager
    def _open_array(
        self, record: ShardRecord, layer: str | None
    ) -> Iterator[h5py.Dataset | JoinedRows]:
        """Opens the features of one shard, or of one shard of each member."""
        if not self.members:
            with self._open_shard(record) as file:
                yield file[array_path(layer)]
            return
        number = self.shards.index(record)
        with ExitStack() as stack:
            parts = [
                stack.enter_context(member._open_array(member.shards[number], None))
                for member in self.members
            ]
            yield JoinedRows(parts)

    @contextmanager
    def _open_shard(self, record: ShardRecord) -> Iterator[h5py.File]:
        """Opens a shard after comparing its bytes with the manifest."""
        path = self._shard_path(record)
        state = self._compare_bytes(record)
        with opened_shard(path) as file:
            yield file
            if _read_state(path) != state:
                self._refuse_shard(record, "changed while it was read")

    def _compare_bytes(self, record: ShardRecord) -> tuple[int, ...]:
        """Compares a file with the manifest before HDF5 opens it; returns the file's state."""
        path = self._shard_path(record)
        require_shard(path)
        try:
            state = _read_state(path)
            if state == self._compared.get(record.file):
                return state
            if state[0] != record.bytes:
                self._refuse_shard(record, f"{state[0]} bytes instead of {record.bytes}")
            if sha256_file(path) != record.sha256:
                self._refuse_shard(record, "damaged or replaced: its bytes have another SHA-256")
        except OSError as error:
            raise unreadable_shard(path, error) from error
        self._compared[record.file] = state
        return state

    def _shard_path(self, record: ShardRecord) -> Path:
        return Path(os.path.normpath(self.path.parent / record.file))

    def _refuse_shard(self, record: ShardRecord, why: str) -> NoReturn:
        raise StoreError(
            f"{self._shard_path(record)}: not the shard that its manifest lists ({why}); {REMEDY}"
        )
