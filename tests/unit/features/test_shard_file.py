"""Columns of rows: their texts, and a hash of their whole content."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from dpprobe.features import shard_file
from dpprobe.features.shard_file import RowColumns, read_rows, stored_blocks
from dpprobe.features.shard_writer import write_shard
from tests.unit.features.test_feature_store import make_header

LABELS, IDS = np.arange(3), ["a", "ü\n", ""]
GROUPS = {"group_b": ["x", "", "y"], "group_a": ["1", "2", "3"]}
COLUMNS = {
    "plain": RowColumns(LABELS, IDS),
    "other labels": RowColumns(LABELS[::-1], IDS),
    "other ids": RowColumns(LABELS, IDS[::-1]),
    "other type": RowColumns(LABELS.astype(np.int8), IDS),
    "several labels": RowColumns(np.eye(3, dtype=np.int8), IDS),
    "several labels, one row": RowColumns(np.eye(3, dtype=np.int8).reshape(1, 9), IDS),
    "groups": RowColumns(LABELS, IDS, GROUPS),
    "groups of other names": RowColumns(LABELS, IDS, {"c": GROUPS["group_b"], "d": IDS}),
    "groups of other values": RowColumns(LABELS, IDS, GROUPS | {"group_a": ["1", "2", "4"]}),
    "accepted": RowColumns(LABELS, IDS, accepted=[[], [1], [0, 2]]),
    "accepted otherwise": RowColumns(LABELS, IDS, accepted=[[1], [], [0, 2]]),
    "units": RowColumns(LABELS, IDS, units=IDS),
    "all": RowColumns(LABELS, IDS, GROUPS, [[0], [1], [2]], ["p", "p", "q"]),
}


def test_a_hash_covers_all_content_but_not_the_order_of_groups() -> None:
    hashes = {name: each.hash_columns() for name, each in COLUMNS.items()}
    assert len(set(hashes.values())) == len(COLUMNS), hashes
    turned = RowColumns(LABELS, IDS, dict(reversed(GROUPS.items())))
    assert turned.hash_columns() == hashes["groups"]
    assert RowColumns(LABELS[::-1].copy(), IDS).hash_columns() == hashes["other labels"]


@pytest.mark.parametrize("name", [name for name in COLUMNS if name != "several labels, one row"])
def test_columns_come_back_from_a_shard(tmp_path: Path, name: str) -> None:
    columns, path = COLUMNS[name], tmp_path / "s.h5"
    header = make_header(rows=3, shards=1)
    write_shard(path, header, columns, np.zeros((3, 2), np.float32))
    with h5py.File(path) as file:
        read = read_rows(file)
    np.testing.assert_array_equal(read.labels, columns.labels)
    assert read.labels.dtype == columns.labels.dtype
    assert read[1:] == columns[1:]
    assert read.hash_columns() == columns.hash_columns()


@pytest.mark.parametrize("chunk", [1, 2, 5, 11])
@pytest.mark.parametrize("read_bytes", [1, 45, 100, 1 << 20])
@pytest.mark.parametrize("rows", [None, 1, 5, 100])
def test_blocks_are_whole_chunks_and_as_many_as_were_asked_for(
    monkeypatch: pytest.MonkeyPatch, chunk: int, read_bytes: int, rows: int | None
) -> None:
    monkeypatch.setattr(shard_file, "READ_BYTES", read_bytes)
    values = np.random.default_rng(0).standard_normal((11, 5)).astype(np.float32)
    with h5py.File.in_memory() as file:
        array = file.create_dataset("x", data=values, chunks=(chunk, 5))
        blocks = [(start, block.copy()) for start, block in stored_blocks(array, rows)]
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), values)
    sizes = [len(block) for _, block in blocks]
    assert [start for start, _ in blocks] == [sum(sizes[:place]) for place in range(len(sizes))]
    wanted = rows or read_bytes // (5 * 4)  # numbers have four bytes
    step = len(blocks[0][1])
    assert all(start % chunk == 0 for start, _ in blocks)
    assert step <= max(wanted, chunk)
    assert len(blocks) == 1 or step + chunk > wanted, "no smaller than was asked for"
