"""What shards and pieces of rows hold over many settings, against stored answers."""

from __future__ import annotations

import hashlib
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from dpprobe.data.embedding_rows import pack_vectors
from dpprobe.data.table import EncodedImage
from dpprobe.errors import StoreError
from dpprobe.features import extraction_pipeline, shard_file, shard_writer
from dpprobe.features.decoding_workers import Fault, Piece, make_order, shape_memory, take_images
from dpprobe.features.extraction import find_misfits
from dpprobe.features.shard_file import RowColumns, array_path, stored_blocks
from dpprobe.features.shard_header import ShardHeader, row_range
from tests.support.stand_in_device import StandIn
from tests.support.stored_records import answer_of, check_values
from tests.unit.features import test_feature_store as stores

HEADERS: list[dict[str, Any]] = [
    {},
    {"shard": 2, "precision": "float16"},
    {"rows": 24, "shard": 10, "shards": 11},
    {"multi_label": True, "trained": True, "weights_sha256": "w" * 64, "dtype": "float16"},
    {"class_names": (), "preprocessing": {"x": None}, "backbone_options": {}, "rows": 3},
    {"architecture": "a", "pretrained_tag": "t", "class_names": ("ä", "b"), "versions": {}},
]
DAMAGES: list[dict[str, Any]] = [
    {"format": "x"},
    {"format_version": 1},
    {"format_version": 3},
    {"rows": 2},
    {"shard": 3},
    {"shard": -1},
    {"class_names": "["},
    {"rows": "many"},
    {"shards": 0},
]
NAMES = (
    "format",
    "format_version",
    "rows",
    "class_names",
    "precision",
    "versions",
    "weights_sha256",
    "start",
)


def test_a_header_is_what_its_attributes_say() -> None:
    headers = [stores.make_header(**changed) for changed in HEADERS]
    stored = [header.make_attributes() for header in headers]
    assert [ShardHeader.from_attributes(each, "s") for each in stored] == headers
    damaged = [stored[0] | damage for damage in DAMAGES]
    damaged += [{name: one for name, one in stored[0].items() if name != left} for left in NAMES]
    check_values(
        "features_headers",
        {
            "stored": stored,
            "common": [header.common_part() for header in headers[1::2]],
            "read": [
                str(answer_of(ShardHeader.from_attributes, each, "s"))[:60] for each in damaged
            ],
            "ranges": {
                str(each): answer_of(row_range, *each)
                for each in product((1, 7, 23), (-1, 0, 1, 6, 7), (1, 2, 7, 8))
            },
            "paths": [array_path(layer) for layer in (None, "10", "crop_00")],
        },
    )


def test_columns_of_rows_have_texts_and_a_hash() -> None:
    labels, ids = np.arange(3), ["a", "ü\n", ""]
    groups = {"group_b": ["x", "", "y"], "group_a": ["1", "2", "3"]}
    columns = [
        RowColumns(labels, ids),
        RowColumns(labels[::-1], ids),
        RowColumns(labels, ids[::-1]),
        RowColumns(labels.astype(np.int8), ids),
        RowColumns(np.eye(3, dtype=np.int8), ids),
        RowColumns(labels, ids, groups),
        RowColumns(labels, ids, dict(reversed(groups.items()))),
        RowColumns(labels, ids, accepted=[[], [1], [0, 2]]),
        RowColumns(labels, ids, units=ids),
        RowColumns(labels, ids, groups, [[0], [1], [2]], ["p", "p", "q"]),
    ]
    hashes = [each.hash_columns() for each in columns]
    assert len(set(hashes)) == len(columns) - 1, "the order of groups is no content"
    check_values("features_columns", [[each.make_texts() for each in columns], hashes])


def test_pieces_of_rows_fit_into_memory() -> None:
    orders = {}
    for size, count, batch, processes in product(
        (None, 1, 1 << 20, 3 * 224**2, 1 << 25), (0, 1, 9, 1000), (1, 40, 256), (1, 3, 16)
    ):
        decoder: Any = SimpleNamespace(row_bytes=lambda size=size: size)
        pieces = make_order(decoder, count, batch, processes).pieces
        sizes = [len(piece) for piece in pieces]
        assert [row for piece in pieces for row in piece] == list(range(count))
        orders[f"{size} {count} {batch} {processes}"] = [len(sizes), max(sizes, default=0)]
    memory = torch.arange(24, dtype=torch.uint8)
    shaped = {
        f"{shape} {kind}": shape_memory(memory, shape, kind)
        for shape in ((2, 3), (6,), (24,), (5, 5), (0, 3), (7,))
        for kind in (torch.uint8, torch.float32)
    }
    images = [SimpleNamespace(row=row) for row in range(4, 7)]
    taken = [answer_of(take_images, iter(images), count) for count in (0, 2, 3, 4)]
    taken.append(answer_of(take_images, iter([]), 1))
    shown = [one if isinstance(one, Exception) else [each.row for each in one] for one in taken]
    values = np.array([[1, 2], [65504, 0], [65520, -1], [-7e4, 1], [np.nan, 1], [1, -np.inf]])
    misfits = [find_misfits(values.astype(np.float32), kind) for kind in ("float16", "float32")]
    check_values("features_pieces", [orders, shaped, shown, misfits])


def test_batches_are_of_whole_pieces_and_vectors_of_one_length() -> None:
    pieces, first = [], 0
    for count, left_out in ((3, 1), (3, 0), (3, 0), (5, 2), (0, 4), (6, 0), (1, 1)):
        rows = [(row, f"id{row}") for row in range(first, first + count + left_out)]
        images = torch.arange(first, first + count)[:, None].expand(-1, 3) if count else None
        faults = tuple(Fault(row, "x") for row in rows[count:])
        pieces.append(Piece(tuple(rows[:count]), images, faults))
        first += count + left_out
    sizes = extraction_pipeline._Sizes("train")
    batches = list(extraction_pipeline._make_batches(pieces, StandIn(), 8, sizes))
    content = pack_vectors({"a": np.ones(2, np.float32), "b": np.arange(3, dtype=np.float32)})
    row = EncodedImage(7, content, None, "seven", hashlib.sha256(content).digest())
    plain: Any = SimpleNamespace(transform=None, train_transform=None)
    read = {}
    for dimension, name in product((None, 2, 3), "ab"):
        plain.dimension = dimension
        decoder = extraction_pipeline.Decoder(plain, "test", vectors=name)
        read[f"{dimension} {name}"] = [decoder.row_bytes(), answer_of(decoder.decode_one, row)]
    check_values("features_batches", {"batches": batches, "vectors": read})


def test_stores_are_cut_into_chunks_and_read_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {
        "crop_01": stores.FEATURES + 1,
        "10": stores.FEATURES[:, :2],
        "crop_00": stores.FEATURES[:, :3],
    }
    groups = {"group_b": stores.GROUPS["group_sex"], "group_a": stores.IDS}
    labels = np.random.default_rng(2).integers(0, 2, (stores.ROWS, 3)).astype(np.int8)
    found: dict[str, Any] = {}
    for chunk, read in product((8, 45, 1 << 20), (45, 100, 1 << 20)):
        monkeypatch.setattr(shard_writer, "CHUNK_BYTES", chunk)
        monkeypatch.setattr(shard_file, "READ_BYTES", read)
        folder = tmp_path / f"{chunk}-{read}"
        content: dict[str, Any] = {
            "labels": labels,
            "accepted": stores.ACCEPTED,
            "units": stores.IDS[::-1],
        }
        store = stores.cut_into(
            folder, 2, {"multi_label": True}, layers=layers, groups=groups, **content
        )
        with h5py.File(folder / store.shards[0].file) as file:
            arrays = [file[array_path(layer)] for layer in (None, *layers)]
            chunks = [array.chunks for array in arrays]
            starts = [[start for start, _ in stored_blocks(array)] for array in arrays]
        for rows in (1, 5, 100):
            starts.append([start for start, _ in store.read_blocks(rows)])
        found[f"{chunk} {read}"] = [chunks, starts]
        np.testing.assert_array_equal(store.labels, labels)
        assert (store.ids, store.units, store.accepted) == (
            stores.IDS,
            stores.IDS[::-1],
            stores.ACCEPTED,
        )
        for layer, values in ({None: stores.FEATURES} | layers).items():
            np.testing.assert_array_equal(store.read(layer=layer), values)
        np.testing.assert_array_equal(store.read("float16"), stores.FEATURES.astype(np.float16))
        assert (store.groups, list(store.layers)) == (groups, [*layers])
    with pytest.raises(StoreError, match="no features of layer 3, only of"):
        store.read(layer="3")
    facts = {name: each for name, each in vars(store).items() if name[0] != "_"}
    found["store"] = [store.crops, {**facts, "path": "", "shards": len(store.shards)}]
    check_values("features_chunks", found)
