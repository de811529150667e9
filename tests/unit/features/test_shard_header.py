"""A shard's header is read as it was written, and refused if damaged."""

from __future__ import annotations

import json
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import ConfigError, DataError, StoreError
from dpprobe.features.shard_header import ShardHeader, row_range
from tests.unit.features.test_feature_store import make_header

HEADERS: list[dict[str, Any]] = [
    {},
    {"shard": 2, "precision": "float16"},
    {"rows": 24, "shard": 10, "shards": 11},
    {"multi_label": True, "trained": True, "weights_sha256": "w" * 64, "dtype": "float16"},
    {"class_names": (), "preprocessing": {"x": None}, "backbone_options": {}, "rows": 3},
    {"architecture": "a", "pretrained_tag": "t", "class_names": ("ä", "b"), "versions": {}},
]


@pytest.mark.parametrize("changed", HEADERS)
def test_a_header_comes_back_from_its_attributes(changed: dict[str, Any]) -> None:
    header = make_header(**changed)
    attributes = header.make_attributes()
    assert ShardHeader.from_attributes(attributes, "s") == header
    assert all(isinstance(one, str | int) for one in attributes.values()), "HDF5 can store them"
    with h5py.File.in_memory() as file:
        file.attrs.update(attributes)
        assert ShardHeader.from_attributes(file.attrs, "s") == header
    with_numpy = {
        key: np.int64(one) if type(one) is int else one for key, one in attributes.items()
    }
    again = ShardHeader.from_attributes(with_numpy, "s")
    assert (again, type(again.rows), type(again.shard)) == (header, int, int)


def test_attributes_can_be_read_without_this_package() -> None:
    attributes = make_header(shard=1, trained=True).make_attributes()
    assert (attributes["format"], attributes["format_version"]) == ("dpprobe-features", 2)
    assert (attributes["start"], attributes["stop"]) == (7, 15)  # of 23 rows in three shards
    assert json.loads(attributes["class_names"]) == ["cat", "dog"]
    assert json.loads(attributes["backbone_options"]) == {"family": "pixels", "size": None}
    assert (attributes["trained"], attributes["multi_label"]) == ("true", "false")
    assert (attributes["weights_sha256"], attributes["backbone"]) == ("null", "pixels")
    assert "precision" not in attributes


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"format": "x"}, "not a feature shard of format dpprobe-features 2; delete it and run"),
        ({"format_version": 1}, "not a feature shard of format dpprobe-features 2"),
        ({"format": None}, "not a feature shard"),
        ({"format_version": None}, "not a feature shard"),
        ({"rows": 2}, r"damaged \(features.shards: 3 shards, but the split has only 2 rows"),
        ({"shard": 3}, r"damaged \(shard 3 of 3\)"),
        ({"shard": -1}, r"damaged \(shard -1 of 3\)"),
        ({"shards": 0}, r"damaged \(shard 0 of 0\)"),
        ({"class_names": "["}, "its attributes are damaged"),
        ({"rows": "many"}, "its attributes are damaged"),
        ({"rows": None}, r"damaged \('rows'\)"),
        ({"class_names": None}, "its attributes are damaged"),
        ({"versions": None}, "its attributes are damaged"),
        ({"weights_sha256": None}, "its attributes are damaged"),
    ],
)
def test_damaged_attributes_are_refused(damage: dict[str, Any], said: str) -> None:
    """In `damage`, None removes an attribute."""
    given = make_header().make_attributes() | damage
    attributes = {key: one for key, one in given.items() if one is not None}
    with pytest.raises(StoreError, match=f"^s: .*{said}"):
        ShardHeader.from_attributes(attributes, "s")


def test_a_newer_format_and_an_older_shard() -> None:
    attributes = make_header(precision="float16").make_attributes()
    with pytest.raises(DataError, match="3"):
        ShardHeader.from_attributes(attributes | {"format_version": 3}, "s")
    del attributes["precision"], attributes["start"]
    assert ShardHeader.from_attributes(attributes, "s").precision is None


@given(rows=st.integers(1, 60), shards=st.integers(1, 60))
def test_shards_have_each_row_once_and_about_equally_many(rows: int, shards: int) -> None:
    if shards > rows:
        with pytest.raises(ConfigError, match=f"{shards} shards, but .* only {rows} rows; use at"):
            row_range(rows, 0, shards)
        return
    ranges = [range(*row_range(rows, shard, shards)) for shard in range(shards)]
    assert [row for each in ranges for row in each] == list(range(rows))
    sizes = {len(each) for each in ranges}
    assert max(sizes) - min(sizes) <= 1
    for shard in (-1, shards):
        with pytest.raises(ValueError, match=f"shard {shard} of {shards}"):
            row_range(rows, shard, shards)
