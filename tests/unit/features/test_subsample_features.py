"""Features of a part, taken from the whole's shards: the bits that extraction gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.data.registry import dataset_options
from dpprobe.data.subsampled_tables import write_subsampled
from dpprobe.data.table import read_info
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.shard_manifest import write_manifest
from dpprobe.features.subsample_features import select_shard
from tests.unit.features.test_extraction import extract, png, write_dataset

PART = {"source": "sklearn", "name": "digits", "duplicates": "warn"}
NETWORK = {
    "family": "timm", "model": "test_vit", "pretrained": False, "layers": [0, 2],
}  # fmt: skip
CROPS = {
    "family": "timm", "model": "test_vit", "pretrained": False,
    "preprocessing": {"size": 32, "crop": "inception", "crops": 2},
}  # fmt: skip


def part_of(whole: Path, directory: Path, **subsample: Any) -> Path:
    write_subsampled(whole, directory, dataset_options({**PART, "subsample": subsample}))
    return directory


def select(
    whole: Path, features: FeatureStore, part: Path, output: Path, shards: int
) -> FeatureStore:
    info = read_info(part / "dataset.json")
    paths = [output / f"shard-{shard:05d}-of-{shards:05d}.h5" for shard in range(shards)]
    for shard, path in enumerate(paths):
        select_shard(
            manifest=features.path, whole=whole / "train.parquet", table=part / "train.parquet",
            split="train", shard=shard, shards=shards, output=path,
        )  # fmt: skip
    manifest = output / "manifest.json"
    write_manifest(paths, manifest, rows=info.train_rows, dataset_fingerprint=info.fingerprint)
    return FeatureStore(manifest)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("backbone", [{"family": "pixels"}, NETWORK, CROPS])
def test_selected_features_are_the_extracted_ones(
    tmp_path: Path, backbone: dict[str, Any], dtype: str
) -> None:
    whole = write_dataset(tmp_path / "whole", [png(5 * row, 32) for row in range(41)])
    part = part_of(whole, tmp_path / "part", per_class=4)
    changes: dict[str, Any] = {"backbone": backbone, "dtype": dtype}
    stored = extract(whole, tmp_path / "a", shards=3, **changes)
    selected = select(whole, stored, part, tmp_path / "b", shards=2)
    extracted = extract(part, tmp_path / "c", **changes)
    assert selected.rows == 4 + 4
    assert selected.fingerprint == extracted.fingerprint
    assert selected.groups == extracted.groups
    assert list(selected.layers) == list(extracted.layers)
    for layer in (None, *extracted.layers):
        np.testing.assert_array_equal(selected.read(layer=layer), extracted.read(layer=layer))


def test_rows_that_are_not_the_wholes_are_refused(tmp_path: Path) -> None:
    whole = write_dataset(tmp_path / "whole", [png(5 * row) for row in range(20)])
    stored = extract(whole, tmp_path / "a")
    others = write_dataset(tmp_path / "others", [png(5 * row + 1) for row in range(20)])
    part = part_of(others, tmp_path / "part", per_class=4)
    with pytest.raises(DataError, match=r"row id\d+ differs from the same row of"):
        select(whole, stored, part, tmp_path / "b", shards=1)
    more = write_dataset(tmp_path / "more", [png(5 * row) for row in range(24)])
    longer = part_of(more, tmp_path / "longer", per_class=12)
    with pytest.raises(DataError, match="row id20 differs from the same row of"):
        select(whole, stored, longer, tmp_path / "d", shards=1)
    with pytest.raises(DataError, match="features do not belong to the rows"):
        select(more, stored, longer, tmp_path / "e", shards=1)


def test_rows_in_another_order_are_refused(tmp_path: Path) -> None:
    images = [png(5 * row) for row in range(20)]
    whole = write_dataset(tmp_path / "whole", images)
    stored = extract(whole, tmp_path / "a")
    later = write_dataset(tmp_path / "later", [images[2], images[1], images[0]], ids=(2, 1, 0))
    with pytest.raises(DataError, match="its rows are not in the order of"):
        select(whole, stored, later, tmp_path / "b", shards=1)
