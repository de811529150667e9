"""The feature store is complete or absent, and reads only files that its manifest lists."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import StoreError
from dpprobe.features import feature_store
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.shard_file import (
    RowColumns,
    check_seal,
    opened_shard,
    read_header,
    seal_shard,
)
from dpprobe.features.shard_header import ShardHeader
from dpprobe.features.shard_manifest import write_manifest
from dpprobe.features.shard_writer import open_shard, write_shard
from dpprobe.files.plain_files import sha256_file

ROWS, DIMENSION, SHARDS = 23, 5, 3
DATASET = "d" * 64
FEATURES = np.random.default_rng(0).standard_normal((ROWS, DIMENSION)).astype(np.float32)
LABELS = np.arange(ROWS, dtype=np.int64) % 2
IDS = [f"bild-{row}-ü" for row in range(ROWS)]
GROUPS = {"group_sex": ["f", "", "mä"] * 7 + ["f", "m"]}
LAYERS = {"10": FEATURES[:, :2] + 1, "2": -FEATURES}
ACCEPTED = [[] if row % 4 == 0 else [row % 2, 7][: row % 3] for row in range(ROWS)]


def make_header(shard: int = 0, **changed: Any) -> ShardHeader:
    values: dict[str, Any] = {
        "split": "train",
        "rows": ROWS,
        "shard": shard,
        "shards": SHARDS,
        "class_names": ("cat", "dog"),
        "multi_label": False,
        "dtype": "float32",
        "dataset_fingerprint": DATASET,
        "backbone": "pixels",
        "weights_sha256": None,
        "backbone_options": {"family": "pixels", "size": None},
        "versions": {"torch": "2"},
        "backbone_fingerprint": "b" * 64,
        "preprocessing": {"mean": [0.5]},
    }
    return ShardHeader(**(values | changed))


def write(directory: Path, header: ShardHeader, *, probe: Any = None, **changed: Any) -> Path:
    """Writes the rows of one shard; `changed` replaces whole columns."""
    rows = slice(header.first_row, header.end_row)
    content: dict[str, Any] = {
        "features": FEATURES,
        "labels": LABELS,
        "ids": IDS,
        "groups": GROUPS,
        "accepted": None,
        "units": None,
        "layers": {},
    } | changed
    parts: dict[str, Any] = {
        name: {key: each[rows] for key, each in (values or {}).items()}
        if name in ("groups", "layers")
        else values
        if values is None
        else values[rows]
        for name, values in content.items()
    }
    features, layers = parts.pop("features"), parts.pop("layers")
    path = directory / f"shard-{header.shard:05d}-of-{header.shards:05d}.h5"
    write_shard(path, header, RowColumns(**parts), features, layers=layers, probe=probe)
    return path


def probe_of(scale: float, *, digest: str = "a") -> dict[str, Any]:
    sample = [scale * (index - 3.5) for index in range(8)]
    return {"sha256": digest * 64, "norm": 6.5 * scale, "sample": sample}


@given(block=st.integers(1, 40))
def test_rows_may_arrive_in_blocks_of_any_size(
    block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("blocks")
    header = make_header(shards=1)
    with open_shard(directory / "s.h5", header, RowColumns(LABELS, IDS)) as writer:
        for start in range(0, ROWS, block):
            writer.append_block(FEATURES[start : start + block])
    with h5py.File(directory / "s.h5") as file:
        np.testing.assert_array_equal(file["features"][...], FEATURES)


KILLED = """
import sys, time
from pathlib import Path
import numpy as np
from dpprobe.features.shard_header import ShardHeader
from dpprobe.features.shard_file import RowColumns
from dpprobe.features.shard_writer import open_shard
header = ShardHeader(
    split="train", rows=4000, shard=0, shards=1, class_names=("a", "b"), multi_label=False,
    dtype="float32", dataset_fingerprint="d", backbone="x", backbone_options={},
    backbone_fingerprint="b", weights_sha256=None, preprocessing={},
)
labels, ids = np.zeros(4000, np.int64), [str(row) for row in range(4000)]
with open_shard(Path(sys.argv[1]), header, RowColumns(labels, ids)) as writer:
    writer.append_block(np.ones((2500, 64), np.float32))
    print("written", flush=True)
    time.sleep(60)
"""


def test_a_kill_during_a_write_leaves_only_a_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    process = subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    left = [file.name for file in tmp_path.iterdir()]
    assert all(name.endswith(".partial") for name in left), left
    write(tmp_path, make_header(shards=1)).rename(path)
    manifest_of(tmp_path, [path])


def flip_byte(path: Path) -> None:
    """Flips one bit in the middle of the stored features."""
    with h5py.File(path) as file:
        offset = file["features"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[offset + 7] ^= 1
    path.write_bytes(content)


def edit_array(array: str, path: Path) -> None:
    """Changes a value through HDF5, so that HDF5's checksum still fits."""
    with h5py.File(path, "r+") as file:
        file[array][1] = b"[0]" if array in TEXTS else 1 - file[array][1]


TEXTS = ("ids", "groups/group_sex", "accepted", "units")


def remove_layer(path: Path, dtype: str | None = None) -> None:
    """Removes a layer, or stores it with another type and its hash."""
    with h5py.File(path, "r+") as file:
        values = file["layers/2"][...].astype(dtype)
        del file["layers/2"]
        if dtype is not None:
            file.create_dataset("layers/2", data=values, chunks=values.shape)
            hashes = json.loads(file.attrs["layers_sha256"])
            hashes["2"] = hashlib.sha256(values.data).hexdigest()
            file.attrs["layers_sha256"] = json.dumps(hashes)


EDITS: list[Callable[[Path], Any]] = [
    remove_layer,
    partial(remove_layer, dtype="float16"),
    *(partial(edit_array, array) for array in ("features", "labels", "layers/2", *TEXTS)),
]
DAMAGES: list[Callable[[Path], Any]] = [
    Path.unlink,
    flip_byte,
    *EDITS,
    lambda path: os.truncate(path, path.stat().st_size - 100),
    lambda path: path.write_bytes(path.read_bytes() + bytes(16)),
    lambda path: path.write_bytes(b""),
    lambda path: write(path.parent, make_header(1, backbone_fingerprint="c" * 64)),
    lambda path: shutil.copy(path.with_name("shard-00000-of-00003.h5"), path),
    lambda path: write(path.parent, make_header(1), features=FEATURES + 1),
]


def read_all(manifest: Path) -> None:
    features = FeatureStore(manifest)
    features.read()
    assert len(features.labels) == len(features.ids) == ROWS


def stream_all(manifest: Path) -> None:
    features = FeatureStore(manifest)
    for _ in features.read_blocks(4, layer="2"):
        pass
    assert features.groups


@pytest.mark.parametrize("read", [read_all, stream_all])
@pytest.mark.parametrize("damage", DAMAGES)
def test_an_error_names_a_damaged_feature_shard(
    tmp_path: Path, damage: Callable[[Path], None], read: Callable[[Path], None]
) -> None:
    """Readers refuse any damage; the manifest's job also refuses edits with updated hashes."""
    cut_into(tmp_path, SHARDS, layers=LAYERS, accepted=ACCEPTED, units=IDS)
    manifest, shard = tmp_path / "manifest.json", tmp_path / "shard-00001-of-00003.h5"
    read(manifest)
    damage(shard)
    with pytest.raises(StoreError, match=r"shard-00001-of-00003\.h5: .* run") as error:
        read(manifest)
    assert "\n" not in str(error.value)
    if damage in EDITS:
        seal_shard(shard)
        with pytest.raises(StoreError, match=r"shard-00001-of-00003\.h5: "):
            manifest_of(tmp_path, sorted(tmp_path.glob("*.h5")))


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.9, 1])
def test_hdf5_never_opens_damaged_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    """Damaged structures can make HDF5 crash or hang, which no exception handler can catch."""
    manifest = cut_into(tmp_path, SHARDS).path
    shard = tmp_path / "shard-00000-of-00003.h5"
    content = bytearray(shard.read_bytes())
    content[int(part * (len(content) - 1))] ^= 4
    shard.write_bytes(content)
    opened = []
    monkeypatch.setattr(h5py, "File", lambda path, *_, **__: opened.append(path))
    for read in (FeatureStore(manifest).read, lambda: read_header(shard)):
        with pytest.raises(StoreError, match=r"shard-00000-of-00003.h5: .*damaged.*SHA-256.*run"):
            read()
    assert not opened


def test_bytes_are_compared_once_and_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Path] = []

    def hash_file(path: Path) -> str:
        compared.append(path)
        return sha256_file(path)

    monkeypatch.setattr(feature_store, "sha256_file", hash_file)
    features = cut_into(tmp_path, SHARDS)
    for _ in range(2):
        features.read()
        features.rows_at(np.arange(ROWS))
        assert len(features.labels) == ROWS
    assert len(compared) == SHARDS
    shard = tmp_path / "shard-00001-of-00003.h5"
    os.utime(shard, ns=(0, shard.stat().st_mtime_ns + 1))
    features.read()
    assert len(compared) == SHARDS + 1
    flip_byte(shard)
    with pytest.raises(StoreError, match=r"shard-00001-of-00003\.h5: .*damaged"):
        features.read()


def test_a_shard_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    features = cut_into(tmp_path, SHARDS)
    blocks = features.read_blocks(4)
    next(blocks)
    shard = tmp_path / "shard-00000-of-00003.h5"
    copy = shutil.copy(shard, tmp_path / "copy")
    os.utime(copy, (1, 1))
    Path(copy).replace(shard)
    with pytest.raises(StoreError, match=r"shard-00000-of-00003\.h5: .*changed while it was read"):
        list(blocks)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text.replace('"start": 7', '"start": 8'), "changed"),
        (lambda text: text[:-20], "read"),
        (lambda text: text.replace("dpprobe-manifest", "other"), "not a manifest"),
        (lambda text: text.replace('"format_version": 2', '"format_version": 1'), "version 1"),
        (lambda _: "[]", "not a manifest"),
        (lambda _: "{}", "not a manifest"),
        (lambda _: '{"format": "dpprobe-manifest"}', "version None"),
    ],
)
def test_damaged_manifest_is_refused(
    tmp_path: Path, edit: Callable[[str], str], message: str
) -> None:
    manifest = cut_into(tmp_path, SHARDS).path
    text = manifest.read_text()
    manifest.write_text(edit(text))
    assert manifest.read_text() != text
    with pytest.raises(StoreError, match=f"manifest.json: .*{message}"):
        FeatureStore(manifest)


def manifest_of(directory: Path, shards: list[Path], **changed: Any) -> None:
    arguments: dict[str, Any] = {"rows": ROWS, "dataset_fingerprint": DATASET} | changed
    write_manifest(shards, directory / "manifest.json", **arguments)


def test_shards_may_come_in_any_order_but_each_row_once(tmp_path: Path) -> None:
    shards = [write(tmp_path, make_header(shard)) for shard in range(SHARDS)]
    for some in (shards[:2], shards[1:], [shards[0], shards[0], shards[2]], []):
        with pytest.raises(StoreError):
            manifest_of(tmp_path, some)
    assert not (tmp_path / "manifest.json").exists()
    manifest_of(tmp_path, shards[::-1])
    np.testing.assert_array_equal(FeatureStore(tmp_path / "manifest.json").read(), FEATURES)
    with pytest.raises(StoreError, match="not in the folder"):
        manifest_of(tmp_path / "elsewhere", shards)


def test_what_cannot_be_read_is_an_error_of_the_store(tmp_path: Path) -> None:
    store, memory = cut_into(tmp_path, SHARDS), "/proc/self/mem"  # no process can read its start
    for error in (OSError, KeyError, RuntimeError, ValueError):
        shard = opened_shard(tmp_path / store.shards[0].file)
        with pytest.raises(StoreError, match=r"of-00003\.h5: .*damaged.*odd"), shard:
            raise error("odd")
    store.shards = (replace(store.shards[0], file=memory, bytes=0),)
    for read in (store.read, lambda: check_seal(Path(memory)), lambda: FeatureStore(tmp_path)):
        with pytest.raises(StoreError, match="cannot be read"):
            read()


ANOTHER = "so the shard belongs to another job: delete it and run again"
# The second shard's header, and the error about it (None if it fits the first shard's).
OTHER_HEADERS: list[tuple[dict[str, Any], str | None]] = [
    ({"backbone_fingerprint": "x"}, f"backbone_fingerprint is x instead of b+, {ANOTHER}"),
    ({"split": "test"}, f"split is test instead of train, {ANOTHER}"),
    ({"class_names": ("a", "b")}, r"class_names is \['a', 'b'\] instead of \['cat', 'dog'\]"),
    ({"rows": 22}, f"rows is 22 instead of 23, {ANOTHER}"),
    ({"dataset_fingerprint": "old"}, "dataset_fingerprint is old instead of d+"),
    ({"preprocessing": {}}, r"preprocessing.mean is nothing instead of \[0.5\]"),
    ({"preprocessing": {"mean": [0.4]}}, r"preprocessing.mean is \[0.4\] instead of \[0.5\]"),
    ({"multi_label": True}, "multi_label is True instead of False"),
    ({"dtype": "float16"}, "dtype is float16 instead of float32"),
    ({"shards": 3}, "shard 1 of 3 was found instead of shard 1 of 2, so rows would be missing"),
    ({"weights_sha256": "w"}, "weights_sha256 is w instead of None"),
    ({"backbone": "other"}, "backbone is other instead of pixels"),
    ({"backbone_options": {}}, "backbone_options.family is nothing instead of pixels"),
    ({"trained": True}, "trained is True instead of False"),
    ({"precision": "bfloat16"}, None),
    ({"versions": {"torch": "3"}}, None),
]
CONTRADICTS = "its arrays contradict its header; delete it and run again"
# The second shard's content, and the error about it (None if it fits the first shard's).
OTHER_CONTENT: list[tuple[dict[str, Any], str | None]] = [
    ({"features": FEATURES[:, :3]}, "features of length 3, the first shard has 5; set the backb"),
    ({"groups": {}}, r"groups is \[\] instead of \['group_sex'\]"),
    ({"layers": {"2": FEATURES}}, "layers.10 is nothing instead of 2"),
    ({"layers": None}, "layers.10 is nothing instead of 2"),
    ({"layers": LAYERS | {"10": FEATURES}}, "layers.10 is 5 instead of 2"),
    ({"layers": LAYERS | {"3": FEATURES}}, "layers.3 is 5 instead of nothing"),
    ({"labels": LABELS.astype(np.int8)}, r"labels is \['int8'\] instead of \['int64'\]"),
    ({"accepted": ACCEPTED}, "accepted is True instead of nothing"),
    ({"units": IDS}, "units is True instead of nothing"),
    ({"ids": IDS[:-1]}, CONTRADICTS),
    ({"labels": LABELS[:-1]}, CONTRADICTS),
    ({"units": IDS[:-1]}, CONTRADICTS),
    ({"accepted": ACCEPTED[:-1]}, CONTRADICTS),
    ({"groups": {"group_sex": GROUPS["group_sex"][:-1]}}, CONTRADICTS),
    (
        {"probe": probe_of(1.1, digest="b")},
        "computes different features for the same image than the machine of shard-00000-of-00002"
        ".h5: norm 7.15 instead of 6.5; check the libraries and drivers",
    ),
    ({"probe": probe_of(1.001, digest="b")}, None),
    ({"probe": None}, None),
    ({"layers": dict(reversed(LAYERS.items()))}, None),
]


@pytest.mark.parametrize(
    ("changed", "content", "said"),
    [
        *((changed, {}, said) for changed, said in OTHER_HEADERS),
        *(({}, content, said) for content, said in OTHER_CONTENT),
    ],
)
def test_a_manifest_refuses_shards_that_disagree(
    tmp_path: Path, changed: dict[str, Any], content: dict[str, Any], said: str | None
) -> None:
    same: dict[str, Any] = {"layers": LAYERS, "probe": probe_of(1)}
    shards = [
        write(tmp_path, make_header(0, shards=2), **same),
        write(tmp_path, make_header(1, **{"shards": 2} | changed), **same | content),
    ]
    if said is None:
        manifest_of(tmp_path, shards)
        assert FeatureStore(tmp_path / "manifest.json").rows == ROWS
    else:
        with pytest.raises(StoreError, match=rf"{re.escape(str(shards[1]))}: .*{said}"):
            manifest_of(tmp_path, shards)
        assert not (tmp_path / "manifest.json").exists()


def test_a_manifest_is_of_the_current_dataset(tmp_path: Path) -> None:
    shards = [write(tmp_path, make_header(shard)) for shard in range(SHARDS)]
    for key, value in (("dataset_fingerprint", "new"), ("rows", ROWS + 1)):
        with pytest.raises(StoreError, match=f"shard-00000.*{key} "):
            manifest_of(tmp_path, shards, **{key: value})


def cut_into(
    directory: Path, shards: int, header: dict[str, Any] | None = None, **content: Any
) -> FeatureStore:
    headers = [make_header(shard, shards=shards, **header or {}) for shard in range(shards)]
    paths = [write(directory, one, **content) for one in headers]
    manifest_of(directory, paths)
    return FeatureStore(directory / "manifest.json")


@pytest.mark.parametrize("shards", [1, 3])
def test_rows_are_read_in_any_order_and_repeatedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    monkeypatch.setattr(feature_store, "SELECTED_BLOCK_ROWS", 4)
    features, order = cut_into(tmp_path, shards, layers=LAYERS), np.random.default_rng(1)
    for index in ([], [3, 3], order.permutation(len(LABELS)), order.integers(len(LABELS), size=40)):
        rows = np.asarray(index, dtype=np.int64)
        np.testing.assert_array_equal(features.rows_at(rows), features.read()[rows])
        for layer in (None, "10", "2"):
            some = features.read_rows(np.unique(rows), layer=layer)
            np.testing.assert_array_equal(some, features.read(layer=layer)[np.unique(rows)])


FLIPPED = FEATURES * np.where(np.arange(FEATURES.size) == 57, -1, 1).reshape(FEATURES.shape)
RENAMED = {"backbone": "other_name", "backbone_options": {"checkpoint": "elsewhere"}}
OTHERS: list[dict[str, Any]] = [
    {"header": {"dtype": "float16"}},
    {"header": {"backbone_fingerprint": "x"}},
    {"features": FLIPPED},
    {"features": FEATURES[::-1].copy()},
    {"labels": 1 - LABELS},
    {"ids": ["other", *IDS[1:]]},
    {"ids": [f"{IDS[0]}\n", *IDS[1:]]},
    {"layers": LAYERS},
    {"layers": {name: values + 1 for name, values in LAYERS.items()}},
    {"layers": {"2": LAYERS["2"]}},
    {"accepted": ACCEPTED},
    {"accepted": [[] for _ in IDS]},
    {"layers": LAYERS, "accepted": ACCEPTED},
]


def test_a_fingerprint_is_of_the_content_however_rows_are_cut(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    def fingerprint(shards: int = 2, **changed: Any) -> str:
        return cut_into(tmp_path_factory.mktemp("store"), shards, **changed).fingerprint

    plain = fingerprint()
    # This fingerprint is older than layers and accepted labels; finished results must stay valid.
    assert plain == "04d3857b925f1961788f05abe7aa8a75b71cc4ccad6f25a49aac6873d062e8b1"
    assert {fingerprint(shards) for shards in (1, 3, ROWS)} == {plain}
    assert fingerprint(header=RENAMED) == plain
    found = [fingerprint(1, **other) for other in OTHERS]
    assert [fingerprint(3, **other) for other in OTHERS] == found
    assert len({plain, *found}) == 1 + len(OTHERS)


def test_blocks_that_do_not_fit_leave_no_file(tmp_path: Path) -> None:
    def two_blocks() -> None:
        with open_shard(
            tmp_path / "s.h5", make_header(shards=1), RowColumns(LABELS, IDS)
        ) as writer:
            writer.append_block(FEATURES[:3], layers={"2": FEATURES[:3]})
            writer.append_block(FEATURES[3:])

    with pytest.raises(StoreError, match="layers"):
        two_blocks()
    for content in ({"layers": {"2": FEATURES[:-1]}}, {"features": FEATURES[:-1]}):
        with pytest.raises(StoreError, match="22 "):
            write(tmp_path, make_header(shards=1), **content)
    assert list(tmp_path.iterdir()) == []


def test_copies_are_stored_in_the_manifest_and_do_not_change_the_fingerprint(
    tmp_path: Path,
) -> None:
    plain = cut_into(tmp_path, SHARDS)
    assert plain.copies is None
    copies = {"image": {"rows": 3, "most": 2}}
    shards = sorted(tmp_path.glob("*.h5"))
    manifest_of(tmp_path, shards, copies=copies)
    counted = FeatureStore(plain.path)
    assert counted.copies == copies
    assert counted.fingerprint == plain.fingerprint, "cells would be trained again"
