"""Null examples have NaN features, leave all other features unchanged, and match no row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from dpprobe.data.registry import dataset_options
from dpprobe.data.subsampled_tables import write_subsampled
from dpprobe.data.table import SplitTable
from dpprobe.data.table_writer import make_batch, write_dataset
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.near_duplicate_search import DatasetSplit, find_near_duplicates
from dpprobe.features.subsample_features import select_shard
from tests.support.feature_stores import write_split
from tests.support.split_tables import encode
from tests.unit.features.test_extraction import extract

ROWS = 11
NETWORK = {"family": "timm", "model": "test_vit", "pretrained": False, "layers": [0]}


def write_tables(folder: Path, nulls: tuple[int, ...]) -> Path:
    """Writes random images of 4 x 4 pixels; the train rows `nulls` are damaged."""
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (ROWS + 2, 4, 4, 3), dtype=np.uint8)
    images = [encode(Image.fromarray(each)) for each in pixels]
    train: list[Any] = [b"damaged" if row in nulls else images[row] for row in range(ROWS)]
    parts = {"train": train, "test": images[ROWS:]}
    batches = [
        (
            split,
            make_batch(
                ids=[f"{split}-{row}" for row in range(len(data))],
                labels=[row % 2 for row in range(len(data))],
                images=data,
                paths=[None] * len(data),
            ),
        )
        for split, data in parts.items()
    ]
    values = {"source": "sklearn", "name": "digits", "unreadable": "drop"}
    write_dataset(
        folder,
        iter(batches),
        options=dataset_options(values),
        class_names=["a", "b"],
        rows=ROWS + 2,
    )
    return folder


PIXELS = {"family": "pixels"}


@pytest.mark.parametrize(
    ("backbone", "nulls", "dtype"),
    [
        *((PIXELS, nulls, "float16") for nulls in ((4,), (9, 10), tuple(range(1, ROWS)))),
        (PIXELS, (0, 1, 2), "float32"),
        (NETWORK, (0, 1, 2), "float32"),
    ],
)
def test_other_features_equal_those_of_readable_images(
    tmp_path: Path, backbone: dict[str, Any], nulls: tuple[int, ...], dtype: str
) -> None:
    """Tests one shard, and four shards of which one may have only null examples."""
    given: dict[str, Any] = {"backbone": backbone, "dtype": dtype, "batch_size": 4}
    readable = extract(write_tables(tmp_path / "readable", ()), tmp_path / "a", **given)
    tables = write_tables(tmp_path / "damaged", nulls)
    for shards in (1, 4):
        store = extract(tables, tmp_path / f"b{shards}", shards=shards, **given)
        assert list(store.nulls) == list(nulls)
        for layer in (None, *store.layers):
            wanted = readable.read(dtype, layer=layer)
            wanted[list(nulls)] = np.nan
            np.testing.assert_array_equal(store.read(dtype, layer=layer), wanted)
        assert store.labels.tolist() == readable.labels.tolist()
        assert store.ids == readable.ids


def test_a_subsample_keeps_null_examples(tmp_path: Path) -> None:
    tables = write_tables(tmp_path / "whole", (2, 5))
    store = extract(tables, tmp_path / "features", backbone={"family": "pixels"}, shards=2)
    part = {"fraction": 0.6}
    options = {"source": "sklearn", "name": "digits", "unreadable": "drop", "subsample": part}
    write_subsampled(tables, tmp_path / "part", dataset_options(options))
    small = SplitTable(tmp_path / "part/train.parquet")
    places = [store.ids.index(name) for name in small.read_ids()]
    assert [places[row] for row in small.nulls] == [row for row in places if row in (2, 5)] != []
    select_shard(
        manifest=store.path,
        whole=tables / "train.parquet",
        table=small.path,
        split="train",
        shard=0,
        shards=1,
        output=tmp_path / "out/shard-00000-of-00001.h5",
    )


Array = npt.NDArray[Any]


def test_a_store_without_nulls_has_the_other_rows(tmp_path: Path) -> None:
    """Compares with plain arrays, in blocks of any size; some shards have only null examples."""
    rng, rows = np.random.default_rng(2), 40
    features = rng.normal(size=(rows, 3)).astype(np.float32)
    layer = rng.normal(size=(rows, 2)).astype(np.float32)
    nulls = [0, 7, *range(20, 30), 39]
    features[nulls], layer[nulls] = np.nan, np.nan
    labels = np.arange(rows) % 3
    names = [f"p{row // 2}" for row in range(rows)]
    manifest = write_split(
        tmp_path / "train",
        features,
        labels,
        units=names,
        groups={"group_g": names},
        accepted=[[row] for row in range(rows)],
        layers={"4": layer},
        shards=8,
    )
    whole = FeatureStore(manifest)
    assert list(whole.nulls) == nulls
    _ = whole.labels  # cached
    store = whole.leave_out_nulls()
    kept = np.setdiff1d(np.arange(rows), nulls)
    assert (store.rows, list(store.nulls), whole.rows) == (len(kept), [], rows)
    assert store.leave_out_nulls() is store
    assert store.fingerprint == whole.fingerprint
    np.testing.assert_array_equal(store.read(), features[kept])
    np.testing.assert_array_equal(store.read(layer="4"), layer[kept])
    np.testing.assert_array_equal(store.labels, labels[kept])
    assert store.ids == [f"train-{row}" for row in kept]
    assert store.units == store.groups["group_g"] == [names[row] for row in kept]
    assert store.accepted == [[row] for row in kept]
    index = rng.permutation(len(kept))
    np.testing.assert_array_equal(store.rows_at(index), features[kept][index])
    some = np.sort(index[:9])
    np.testing.assert_array_equal(store.read_rows(some), features[kept][some])
    for size in (1, 3, 100):
        at = 0
        for start, block in store.read_blocks(size):
            assert start == at
            at += len(block)
            np.testing.assert_array_equal(block, features[kept][start:at])
        assert at == len(kept)
    np.testing.assert_array_equal(whole.labels, labels)


def test_null_examples_have_no_near_duplicates(tmp_path: Path) -> None:
    """Null examples match neither public images nor public null examples, which lack a hash too."""
    splits = []
    for name, nulls in (("private", (0, 3)), ("public", (0, 5))):
        tables = write_tables(tmp_path / name, nulls)
        store = extract(tables, tmp_path / f"{name}-features", backbone={"family": "pixels"})
        splits.append(
            DatasetSplit(dataset=name, features=store, table=SplitTable(tables / "train.parquet"))
        )
    record, matches = find_near_duplicates(splits[:1], splits[1:], threshold=0.9999, device="cpu")
    both = ROWS - 3  # without 0, 3 and 5
    assert (record["train"]["exact"], record["train"]["near"]) == (both, both)
    named = {row["row"] for row in matches.to_pylist() if row["near"]}
    assert named == set(range(ROWS)) - {0, 3, 5}
