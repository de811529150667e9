"""Stored features of separable classes: one split to use as private data, one as public data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpprobe.data.promise_facts import PromiseFacts
from dpprobe.features.shard_file import RowColumns
from dpprobe.features.shard_header import ShardHeader, row_range
from dpprobe.features.shard_manifest import write_manifest
from dpprobe.features.shard_writer import write_shard

PLAIN = PromiseFacts()


def separable(labels: np.ndarray, dimension: int, *, seed: int, apart: float = 2.0) -> np.ndarray:
    """Returns normal rows [n, dimension], with `apart` added to the feature of the row's label."""
    features = np.random.default_rng(seed).normal(size=(len(labels), dimension))
    features[np.arange(len(labels)), labels] += apart
    return features


def write_split(
    folder: Path,
    features: np.ndarray,
    labels: np.ndarray,
    *,
    ids: Sequence[str] | None = None,
    units: Sequence[str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    accepted: Sequence[list[int]] | None = None,
    probe: Mapping[str, Any] | None = None,
    copies: Mapping[str, Mapping[str, int]] | None = None,
    layers: Mapping[str, np.ndarray] | None = None,
    promise: PromiseFacts | None = PLAIN,
    **header: Any,
) -> Path:
    """Writes a split with the name of its folder; returns its manifest.

    Args:
      features: [n, d].
      labels: [n], or [n, classes] of 0 and 1.
      ids: `<split>-<row>` by default.
      promise: facts about the dataset; by default images without patients, in the source's split.
      header: header values that differ from the defaults.
    """
    rows, split, shards = len(labels), header.get("split", folder.name), header.get("shards", 1)
    values: dict[str, Any] = {
        "split": split,
        "rows": rows,
        "shards": shards,
        "class_names": ("a", "b", "c"),
        "multi_label": labels.ndim == 2,
        "dtype": "float32",
        "dataset_fingerprint": "d",
        "backbone": "none",
        "backbone_options": {},
        "backbone_fingerprint": "b",
        "weights_sha256": None,
        "preprocessing": {},
        **header,
    }
    names = [f"{split}-{row}" for row in range(rows)] if ids is None else ids
    paths = []
    for shard in range(shards):
        part = slice(*row_range(rows, shard, shards))
        paths.append(folder / f"shard-{shard:05d}-of-{shards:05d}.h5")
        write_shard(
            paths[-1],
            ShardHeader(**values, shard=shard),
            RowColumns(
                labels[part],
                list(names[part]),
                {name: list(values[part]) for name, values in (groups or {}).items()},
                None if accepted is None else list(accepted[part]),
                None if units is None else list(units[part]),
            ),
            features[part],
            probe=probe,
            layers={name: values[part] for name, values in (layers or {}).items()},
        )
    manifest = folder / "manifest.json"
    fingerprint = values["dataset_fingerprint"]
    write_manifest(
        paths[::-1],
        manifest,
        rows=rows,
        dataset_fingerprint=fingerprint,
        copies=copies,
        promise=promise,
    )
    return manifest


def write_store(folder: Path, rows: int, dimension: int, classes: int) -> Path:
    """Writes a split of separable classes in two shards; returns its manifest."""
    labels = np.arange(rows) % classes
    features = np.empty((rows, dimension), dtype=np.float16)
    for shard, (start, stop) in enumerate(((0, rows // 2), (rows // 2, rows))):
        generator = np.random.default_rng(shard)
        for first in range(start, stop, 10_000):  # bounds memory
            end = min(first + 10_000, stop)
            part = generator.normal(size=(end - first, dimension)) + 1
            part[np.arange(len(part)), labels[first:end]] += 3
            features[first:end] = part
    return write_split(
        folder,
        features,
        labels,
        split="train",
        shards=2,
        dtype="float16",
        ids=[str(row) for row in range(rows)],
        class_names=tuple("abcdefghij"[:classes]),
    )
