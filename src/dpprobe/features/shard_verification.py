"""Reads complete shards and compares them with their headers and hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from dpprobe import artifacts
from dpprobe.errors import StoreError
from dpprobe.features.shard_file import (
    RowColumns,
    check_equal,
    feature_array,
    layer_hashes,
    name_features,
    opened_shard,
    read_probe,
    read_rows,
    stored_blocks,
)
from dpprobe.features.shard_header import REMEDY, ShardHeader


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """A shard as its manifest lists it."""

    file: str
    start: int
    stop: int
    bytes: int
    sha256: str
    features_sha256: str
    rows_sha256: str
    versions: Mapping[str, str]
    layers_sha256: Mapping[str, str] = field(default_factory=dict)
    probe: Mapping[str, Any] | None = None


class ContentHash:
    """Hashes of all rows of a split, in order, however they are cut into shards.

    Raises:
      StoreError: if a shard's columns differ from the first shard's; names the shard.
    """

    def __init__(self) -> None:
        self.features = hashlib.sha256()
        self.layers: dict[str, Any] = {}
        self._columns: dict[str, Any] = {}
        self._shape: dict[str, Any] = {}

    def add_rows(self, name: str, rows: RowColumns) -> None:
        """Adds the columns beside the features of the shard `name`."""
        labels = rows.labels
        shape: dict[str, Any] = {
            "labels": [str(labels.dtype), *labels.shape[1:]],
            "groups": sorted(rows.groups),
        }
        if rows.accepted is not None:
            shape["accepted"] = True
        if rows.units is not None:
            shape["units"] = True
        self._shape = self._shape or shape
        check_equal(name, shape, {**dict.fromkeys(shape), **self._shape})
        self._column_hash("labels").update(np.ascontiguousarray(labels).data)
        for column, values in rows.make_texts().items():
            text = "".join(f"{artifacts.canonical_json(value)}\n" for value in values)
            self._column_hash(column).update(text.encode())

    def add_features(self, layer: str | None, block: npt.NDArray[Any]) -> None:
        if layer is None:
            self.features.update(block.data)
        else:
            self.layers.setdefault(layer, hashlib.sha256()).update(block.data)

    def make_digests(self) -> dict[str, Any]:
        """Returns `features_sha256`, `rows_sha256`, and `layers_sha256` if there are layers."""
        columns = {name: digest.hexdigest() for name, digest in self._columns.items()}
        digests: dict[str, Any] = {
            "features_sha256": self.features.hexdigest(),
            "rows_sha256": artifacts.hash_value({**self._shape, "columns": columns}),
        }
        if self.layers:
            layers = {name: digest.hexdigest() for name, digest in self.layers.items()}
            digests["layers_sha256"] = layers
        return digests

    def _column_hash(self, name: str) -> Any:
        return self._columns.setdefault(name, hashlib.sha256())


def verify_shard(
    path: Path,
    expected: ShardHeader,
    *,
    final: Path | None = None,
    content: ContentHash | None = None,
    compared: bool = False,
) -> ShardRecord:
    """Reads a whole shard and checks it against its header and hashes.

    Args:
      expected: the header that the shard must have; library versions may differ.
      final: the path that the shard will have, for errors and the record.
      content: receives the shard's rows while they are read.
      compared: True if the shard's bytes were already compared with its seal.

    Raises:
      StoreError: naming the shard and what is wrong.
    """
    shown = str(final or path)
    with opened_shard(path, shown, compared=compared) as file:
        header = ShardHeader.from_attributes(file.attrs, shown)
        check_equal(shown, header.common_part(), expected.common_part())
        if header.shard != expected.shard or header.shards != expected.shards:
            raise StoreError(
                f"{shown}: it is shard {header.shard} of {header.shards} instead of "
                f"{expected.shard} of {expected.shards}; {REMEDY}"
            )
        digests = _verify_arrays(file, header, shown, content)
        rows = read_rows(file)
        rows_sha256 = rows.hash_columns()
        if rows_sha256 != file.attrs["rows_sha256"]:
            raise StoreError(
                f"{shown}: labels, ids, groups, accepted labels or units differ from their hash; "
                f"{REMEDY}"
            )
        lengths = {len(rows.labels), *map(len, rows.make_texts().values())}
        if lengths != {header.end_row - header.first_row}:
            raise StoreError(f"{shown}: its arrays do not have the rows it names; {REMEDY}")
        if content is not None:
            content.add_rows(shown, rows)
        probe = read_probe(file)
    return ShardRecord(
        file=Path(shown).name,
        start=header.first_row,
        stop=header.end_row,
        bytes=path.stat().st_size,
        sha256=artifacts.sha256_file(path),
        features_sha256=digests.pop(None),
        rows_sha256=rows_sha256,
        versions=header.versions,
        layers_sha256={str(name): digest for name, digest in digests.items()},
        probe=probe,
    )


def _verify_arrays(
    file: h5py.File, header: ShardHeader, shown: str, content: ContentHash | None
) -> dict[str | None, str]:
    """Returns the SHA-256 of the features (key None) and of each layer, after checking them."""
    noted: dict[str | None, str] = {None: file.attrs["features_sha256"]}
    noted.update(layer_hashes(file))
    for layer, expected in noted.items():
        array = feature_array(file, layer)
        digest = hashlib.sha256()
        for _, block in stored_blocks(array):
            digest.update(block.data)
            if content is not None:
                content.add_features(layer, block)
        if digest.hexdigest() != expected:
            raise StoreError(f"{shown}: {name_features(layer)} differ from their hash; {REMEDY}")
        if len(array) != header.end_row - header.first_row or array.dtype != header.dtype:
            raise StoreError(f"{shown}: its arrays do not have the rows it names; {REMEDY}")
    return noted
