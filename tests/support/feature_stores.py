"""Stored features of separable classes: a private split, and one to take for public."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from dpprobe.features.shard_header import ShardHeader
from dpprobe.features.shard_manifest import write_manifest
from dpprobe.features.shard_writer import write_shard


def write_store(folder: Path, rows: int, dimension: int, classes: int) -> Path:
    """A split of separable classes in two shards, written a part at a time."""
    shards = []
    for shard, (start, stop) in enumerate(((0, rows // 2), (rows // 2, rows))):
        generator = np.random.default_rng(shard)
        labels = np.arange(start, stop) % classes
        features = np.empty((stop - start, dimension), dtype=np.float16)
        for first in range(0, len(features), 10_000):
            part = generator.normal(size=(len(features[first : first + 10_000]), dimension)) + 1
            part[np.arange(len(part)), labels[first : first + len(part)]] += 3
            features[first : first + len(part)] = part
        header = ShardHeader(
            split="train", rows=rows, shard=shard, shards=2,
            class_names=tuple("abcdefghij"[:classes]), multi_label=False, dtype="float16",
            dataset_fingerprint="d", backbone="none", backbone_options={},
            backbone_fingerprint="b", weights_sha256=None, preprocessing={},
        )  # fmt: skip
        path = folder / f"shard-{shard:05d}-of-00002.h5"
        ids = [str(row) for row in range(start, stop)]
        write_shard(path, header, features=features, labels=labels.astype(np.int64), ids=ids)
        shards.append(path)
    manifest = folder / "manifest.json"
    write_manifest(shards, manifest, rows=rows, dataset_fingerprint="d")
    return manifest


@cache
def public_store(dimension: int) -> Path:
    """The manifest of 400 rows that a head may take for public; one a dimension and process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_store(folder, rows=400, dimension=dimension, classes=min(dimension, 10))
