"""The header of a shard, stored as HDF5 attributes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any

from dpprobe import json_values
from dpprobe.errors import ConfigError, StoreError
from dpprobe.files import json_files

FORMAT = "dpprobe-features"
FORMAT_VERSION = 2
REMEDY = "delete it and run again"
# Fields of a header that may differ between the shards of one split.
OF_ONE_SHARD = frozenset({"shard", "shards", "versions", "precision"})
_AS_JSON = frozenset(
    {"class_names", "multi_label", "trained", "backbone_options", "preprocessing", "versions"}
)


def row_range(rows: int, shard: int, shards: int) -> tuple[int, int]:
    """Returns the rows start..stop of one shard; raises ConfigError if a shard would have no row.

    Each row is in exactly one shard, and the shards' sizes differ by at most one.
    """
    if not 0 <= shard < shards:
        raise ValueError(f"shard {shard} of {shards}")
    if shards > rows:
        raise ConfigError(
            f"features.shards: {shards} shards, but the split has only {rows} rows; use at most "
            f"{rows}"
        )
    return rows * shard // shards, rows * (shard + 1) // shards


@dataclass(frozen=True, kw_only=True)
class ShardHeader:
    """The description of a shard; all shards of a manifest share all fields except `OF_ONE_SHARD`.

    Attributes:
      split: "train" or "test".
      multi_label: True if labels are rows of 0 and 1.
      dtype: number format of the features on disk, "float16" or "float32".
      dataset_fingerprint: identifies the content of both split tables.
      backbone: the backbone's name in the study.
      backbone_options: the backbone's options, as written in the study.
      backbone_fingerprint: identifies the options and weights that determine the features.
      weights_sha256: the hash of the weights; None for a backbone without weights.
      architecture, pretrained_tag: the model and weights that the library finds by name, if any.
      trained: True if the backbone's weights are trained.
      preprocessing: the steps of the preprocessing, with the library's defaults filled in.
      shard, shards: the shard's number, and the number of shards of the split.
      precision: number format of the forward pass, if recorded.
    """

    split: str
    rows: int
    class_names: tuple[str, ...]
    multi_label: bool
    dtype: str
    dataset_fingerprint: str
    backbone: str
    backbone_options: Mapping[str, Any]
    backbone_fingerprint: str
    weights_sha256: str | None
    architecture: str | None = None
    pretrained_tag: str | None = None
    trained: bool = False
    preprocessing: Mapping[str, Any]
    shard: int
    shards: int
    versions: Mapping[str, str] = field(default_factory=dict)
    precision: str | None = None

    @property
    def first_row(self) -> int:
        return row_range(self.rows, self.shard, self.shards)[0]

    @property
    def end_row(self) -> int:
        return row_range(self.rows, self.shard, self.shards)[1]

    def common_part(self) -> dict[str, Any]:
        """Returns the fields that all shards of a split share, JSON-compatible."""
        return {
            one.name: _plain_value(getattr(self, one.name))
            for one in fields(self)
            if one.name not in OF_ONE_SHARD
        }

    def make_attributes(self) -> dict[str, Any]:
        """Returns HDF5 attributes: numbers and strings unchanged, other values as JSON."""
        values: dict[str, Any] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "shard": self.shard,
            "shards": self.shards,
            "start": self.first_row,
            "stop": self.end_row,
            "versions": json_values.canonical_json(dict(self.versions)),
            **({} if self.precision is None else {"precision": self.precision}),
        }
        for name, value in self.common_part().items():
            stored = isinstance(value, str | int) and not isinstance(value, bool)
            values[name] = value if stored else json_values.canonical_json(value)
        return values

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any], name: str) -> ShardHeader:
        """Reads a shard's HDF5 attributes; StoreError if damaged, DataError for newer formats."""
        json_files.check_not_newer(name, attributes, kind=FORMAT, version=FORMAT_VERSION)
        if attributes.get("format") != FORMAT or attributes.get("format_version") != FORMAT_VERSION:
            raise StoreError(
                f"{name}: not a feature shard of format {FORMAT} {FORMAT_VERSION}; {REMEDY}"
            )
        given = {"precision": None, **attributes}  # shards may lack a precision
        try:
            header = cls(
                **{one.name: _decode_value(one.name, given[one.name]) for one in fields(cls)}
            )
            row_range(header.rows, header.shard, header.shards)
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise StoreError(f"{name}: its attributes are damaged ({error}); {REMEDY}") from error
        return header


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _decode_value(name: str, value: Any) -> Any:
    if name in _AS_JSON:
        decoded = json.loads(value)
        return tuple(decoded) if isinstance(decoded, list) else decoded
    if isinstance(value, Integral):  # h5py returns integers of NumPy
        return int(value)
    return None if isinstance(value, str) and value == "null" else value
