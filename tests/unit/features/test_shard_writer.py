"""Shards have chunks of a limited size, and stores read back what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dpprobe.errors import StoreError
from dpprobe.features import shard_file, shard_writer
from dpprobe.features.shard_file import array_path
from tests.unit.features import test_feature_store as stores

LAYERS = {
    "crop_01": stores.FEATURES + 1,
    "10": stores.FEATURES[:, :2],
    "crop_00": stores.FEATURES[:, :3],
}
GROUPS = {"group_b": stores.GROUPS["group_sex"], "group_a": stores.IDS}
SHARDS = {0: 11, 1: 12}  # rows of each shard


def cut(folder: Path) -> Any:
    """Writes a store of two shards with layers, groups, several labels per row, and patients."""
    labels = np.random.default_rng(2).integers(0, 2, (stores.ROWS, 3)).astype(np.int8)
    content: dict[str, Any] = {"labels": labels, "accepted": stores.ACCEPTED}
    content["units"] = stores.IDS[::-1]
    header = {"multi_label": True}
    return labels, stores.cut_into(folder, 2, header, layers=LAYERS, groups=GROUPS, **content)


@pytest.mark.parametrize("most", [1, 8, 45, 60, 1 << 20])
def test_a_chunk_has_as_many_rows_as_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(shard_writer, "CHUNK_BYTES", most)
    _, store = cut(tmp_path)
    for record, rows in zip(store.shards, SHARDS.values(), strict=True):
        with h5py.File(tmp_path / record.file) as file:
            for layer in (None, *LAYERS):
                array = file[array_path(layer)]
                count, width = array.chunks
                assert width == array.shape[1]
                assert count * width * 4 <= most or count == 1
                assert (count + 1) * width * 4 > most or count == rows, "one more would fit"
    monkeypatch.setattr(shard_writer, "CHUNK_ROWS", 3)
    _, store = cut(tmp_path / "few")
    with h5py.File(tmp_path / "few" / store.shards[0].file) as file:
        assert file["features"].chunks[0] <= 3


@pytest.mark.parametrize("chunk", [8, 45, 1 << 20])
@pytest.mark.parametrize("read", [45, 1 << 20])
def test_a_store_reads_what_was_written_however_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, read: int
) -> None:
    monkeypatch.setattr(shard_writer, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(shard_file, "READ_BYTES", read)
    labels, store = cut(tmp_path)
    np.testing.assert_array_equal(store.labels, labels)
    assert (store.ids, store.units) == (stores.IDS, stores.IDS[::-1])
    assert (store.accepted, store.groups) == (stores.ACCEPTED, GROUPS)
    arrays: dict[str | None, Any] = {None: stores.FEATURES} | LAYERS
    for layer, values in arrays.items():
        np.testing.assert_array_equal(store.read(layer=layer), values)
    np.testing.assert_array_equal(store.read("float16"), stores.FEATURES.astype(np.float16))
    for rows in (1, 5, 100):
        blocks = list(store.read_blocks(rows))
        assert [start for start, _ in blocks] == sorted({start for start, _ in blocks})
        assert SHARDS[0] in [start for start, _ in blocks], "no block spans two shards"
        for start, block in blocks:
            np.testing.assert_array_equal(block, stores.FEATURES[start : start + len(block)])
        assert sum(len(block) for _, block in blocks) == stores.ROWS


def test_a_store_reports_the_values_of_its_shard_headers(tmp_path: Path) -> None:
    _, store = cut(tmp_path)
    header = stores.make_header(multi_label=True)
    for name in (
        "split",
        "rows",
        "class_names",
        "multi_label",
        "dataset_fingerprint",
        "backbone",
        "backbone_options",
        "backbone_fingerprint",
        "weights_sha256",
        "architecture",
        "pretrained_tag",
        "trained",
        "preprocessing",
    ):
        assert getattr(store, name) == getattr(header, name), name
    assert dict(store.layers) == {"crop_01": 5, "10": 2, "crop_00": 3}
    assert list(store.layers) == list(LAYERS)
    assert (store.crops, store.dimension, store.num_classes) == (("crop_00", "crop_01"), 5, 2)
    assert (store.copies, [one.stop - one.start for one in store.shards]) == (None, [11, 12])
    with pytest.raises(StoreError, match="no features of layer 3, only of"):
        store.read(layer="3")
