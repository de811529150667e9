"""Compares complete shards with their recorded hashes, and hashes all rows of a split."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpprobe import json_values
from dpprobe.errors import StoreError
from dpprobe.features.shard_file import (
    RowColumns,
    array_path,
    check_equal,
    opened_shard,
    read_rows,
    stored_blocks,
)
from dpprobe.features.shard_header import REMEDY, ShardHeader
from dpprobe.files import plain_files


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """A shard's entry in a manifest."""

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
    """Hashes of all rows of a split, in order, independent of the division into shards.

    `widths` has the width of the features (key None) and of each layer. `nulls` are the positions
    of null examples, whose features are NaN.
    """

    def __init__(self) -> None:
        self.widths: dict[str | None, int] = {}
        self.nulls: list[int] = []
        self._arrays: dict[str | None, Any] = defaultdict(hashlib.sha256)
        self._columns: dict[str, Any] = defaultdict(hashlib.sha256)
        self._shape: dict[str, Any] = {}

    def compare_widths(self, name: str, widths: Mapping[str | None, int]) -> None:
        """Raises StoreError if the shard `name` has other widths than the first shard."""
        self.widths = self.widths or {layer: int(width) for layer, width in widths.items()}
        if widths[None] != self.widths[None]:
            raise StoreError(
                f"{name}: features of length {widths[None]}, the first shard has "
                f"{self.widths[None]}; set the backbone's size"
            )
        layers, first = ({each: one[each] for each in one if each} for one in (widths, self.widths))
        check_equal(name, {"layers": layers}, {"layers": first})

    def add_rows(self, name: str, rows: RowColumns) -> None:
        """Adds the columns of the shard `name`; StoreError if they differ from the first shard."""
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
        check_equal(name, shape, self._shape)
        self._columns["labels"].update(np.ascontiguousarray(labels).data)
        for column, values in rows.make_texts().items():
            text = "".join(f"{json_values.canonical_json(value)}\n" for value in values)
            self._columns[column].update(text.encode())

    def add_features(self, layer: str | None, block: npt.NDArray[Any]) -> None:
        self._arrays[layer].update(block.data)

    def make_digests(self) -> dict[str, Any]:
        """Returns `features_sha256`, `rows_sha256`, and `layers_sha256` if there are layers."""
        columns = {name: digest.hexdigest() for name, digest in self._columns.items()}
        arrays = {layer: digest.hexdigest() for layer, digest in self._arrays.items()}
        return {
            "features_sha256": arrays.pop(None),
            "rows_sha256": json_values.hash_value({**self._shape, "columns": columns}),
            **({"layers_sha256": arrays} if arrays else {}),
        }


def verify_shard(path: Path, expected: ShardHeader, content: ContentHash) -> ShardRecord:
    """Reads a whole shard and compares its content with the recorded hashes, or raises StoreError.

    The caller must have compared the shard's bytes with its seal; `content` receives the rows.
    """
    shown, count = str(path), expected.end_row - expected.first_row
    with opened_shard(path) as file:
        digests: dict[str | None, str] = {
            None: file.attrs["features_sha256"],
            **json.loads(file.attrs.get("layers_sha256", "{}")),
        }
        arrays = {layer: file[array_path(layer)] for layer in digests}
        content.compare_widths(shown, {layer: one.shape[1] for layer, one in arrays.items()})
        for layer, array in arrays.items():
            digest = hashlib.sha256()
            for start, block in stored_blocks(array):
                digest.update(block.data)
                content.add_features(layer, block)
                if layer is None:
                    places = np.flatnonzero(np.isnan(block[:, 0])) + expected.first_row + start
                    content.nulls += places.tolist()
            if digest.hexdigest() != digests[layer]:
                raise StoreError(f"{shown}: {array.name} differs from its hash; {REMEDY}")
        rows = read_rows(file)
        lengths = {len(one) for one in (*arrays.values(), rows.labels, *rows.make_texts().values())}
        if lengths != {count} or any(one.dtype != expected.dtype for one in arrays.values()):
            raise StoreError(f"{shown}: its arrays contradict its header; {REMEDY}")
        rows_sha256, probe = rows.hash_columns(), json.loads(file.attrs.get("probe", "null"))
        if rows_sha256 != file.attrs["rows_sha256"]:
            raise StoreError(f"{shown}: its columns differ from their hash; {REMEDY}")
        content.add_rows(shown, rows)
    return ShardRecord(
        file=path.name,
        start=expected.first_row,
        stop=expected.end_row,
        bytes=path.stat().st_size,
        sha256=plain_files.sha256_file(path),
        features_sha256=digests.pop(None),
        rows_sha256=rows_sha256,
        versions=expected.versions,
        layers_sha256={str(name): digest for name, digest in digests.items()},
        probe=probe,
    )
