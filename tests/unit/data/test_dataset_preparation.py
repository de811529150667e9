"""Sources write their rows to tables, refuse unreadable columns, and notice replaced files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpprobe.data.file_states import hash_file_states
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import decode_image
from dpprobe.errors import ConfigError, DataError
from tests.support.sources import prepare, write_images, write_parquet


def test_digits_are_scikit_learns(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    train, test = prepare(tmp_path, source="sklearn", name="digits")
    assert (train.rows, test.rows) == (1438, 359)
    assert train.class_names == tuple("0123456789")
    seen = set()
    for part in (train, test):
        for image, label in zip(part.read_images(0, part.rows), part.read_labels(), strict=True):
            row = int(image.id.removeprefix("digits-"))
            pixels = np.asarray(decode_image(image, split=part.split))
            assert pixels.dtype == np.uint8
            np.testing.assert_array_equal(pixels, np.rint(images[row].reshape(8, 8) * 255 / 16))
            assert label == labels[row]
            seen.add(row)
    assert len(seen) == 1797


def test_parquet_limit_takes_the_first_rows(tmp_path: Path) -> None:
    files = [write_parquet(tmp_path / "b.parquet", [0, 1] * 4)]
    files.append(write_parquet(tmp_path / "a.parquet", [1] * 6, first=20))
    options: dict[str, Any] = {"source": "parquet", "train": files, "split_by": "id"}
    tested = write_parquet(tmp_path / "c.parquet", [1, 0, 0], first=100)
    limit = {"train": 11, "test": 2}
    train, test = prepare(tmp_path / "out", **options, test=tested, limit=limit)
    assert train.read_labels().tolist() == [0, 1] * 4 + [1] * 3
    assert test.rows == 2
    options |= {"limit": {"train": 11}, "test_fraction": 0.4}
    parts = prepare(tmp_path / "split", **options)
    ids = [f"row-{row:08d}" for row in range(11)]
    assert sorted(name for part in parts for name in part.read_ids()) == ids
    assert dataset_options(options).count_rows() == tuple(part.rows for part in parts)


def test_our_own_tables_are_an_input(tmp_path: Path) -> None:
    train = write_parquet(tmp_path / "a.parquet", [0, 1] * 4)
    test = write_parquet(tmp_path / "b", [1, 0], first=100)
    first = prepare(tmp_path / "one", source="parquet", train=train, test=test)
    train, test = (str(each.path) for each in first)
    second = prepare(tmp_path / "two", source="parquet", train=train, test=test, id_column="id")
    assert second[0].fingerprint == first[0].fingerprint


@pytest.mark.parametrize(
    ("values", "options", "fault"),
    [
        ([b"\xff"] * 2, {"group_columns": ["who"]}, "group_who: cannot be read as text"),
        (
            pa.array([0, 1], pa.timestamp("s", "Nowhere/Town")),
            {"group_columns": ["who"]},
            "who: cannot be read as text",
        ),
        (["x", None], {"id_column": "who"}, "train row 1: no who"),
    ],
)
def test_unreadable_text_columns_and_missing_ids_are_refused(
    tmp_path: Path, values: Any, options: dict[str, Any], fault: str
) -> None:
    path = write_parquet(tmp_path / "train.parquet", [0, 1], who=values)
    with pytest.raises(DataError, match=fault):
        prepare(tmp_path / "out", source="parquet", train=path, **options)


# Options of each source, and the files and folders that determine its tables.
LOCAL_SOURCES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "places to fetch": ({"source": "torchvision", "name": "Places365"}, []),
    "imagefolder": ({"path": "x"}, ["x/train/a/deep/1.png", "x/test/b/2.png"]),
    "csv": (
        {
            "root": "x",
            "train": "a.csv",
            "test": "b.tsv",
            "label_column": "y",
            "class_names": ["p", "q"],
            "joins": [{"file": "sub/j.csv", "by": "y", "columns": ["z"]}],
        },
        ["x/a.csv", "x/b.tsv", "x/sub/j.csv"],
    ),
    "parquet": (
        {"train": "x/[0-9].parquet", "test": "x/t.parquet", "accepted_labels": {"file": "r.json"}},
        ["x/0.parquet", "x/1.parquet", "x/t.parquet", "r.json"],
    ),
    "webdataset": (
        {"train": "x", "test": ["t/a.tar", "t/b*.tar"], "class_names": ["p", "q"]},
        ["x/0.tar", "x/1.tar", "t/a.tar", "t/b0.tar"],
    ),
    "embeddings": (
        {"train": "v*.parquet", "test": "t", "label_column": "y", "class_names": ["p", "q"]},
        ["v0.parquet", "v1.parquet", "t"],
    ),
    "torchvision": ({"name": "EuroSAT", "path": "x"}, ["x/eurosat/2750/River/River_1.jpg"]),
    "places": (
        {"source": "torchvision", "name": "Places365", "path": "x"},
        [
            "x/data_256_standard/a/1.jpg",
            "x/val_256/2.jpg",
            "x/places365_val.txt",
            "x/categories_places365.txt",
        ],
    ),
}


@pytest.mark.parametrize("source", LOCAL_SOURCES)
def test_each_file_of_a_source_that_is_replaced_changes_its_state(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backups, `cp -p` and archives restore old times, so any change of time or size counts."""
    monkeypatch.chdir(tmp_path)
    values, files = LOCAL_SOURCES[source]
    write_images(tmp_path, files)
    for file in files:
        os.utime(file, ns=(0, 10**18))
    options = dataset_options({"source": source} | values)
    first = hash_file_states(options.list_source_files())
    assert (first is None) == (not files)
    assert first == hash_file_states(
        dataset_options({"source": source} | values).list_source_files()
    )
    states = {first}
    for file in files:
        data = Path(file).read_bytes()
        for content, time in ((data, 10**18 - 1), (data, 10**18 + 1), (data + b" ", 10**18)):
            Path(file).write_bytes(content)
            os.utime(file, ns=(0, time))
            states.add(hash_file_states(options.list_source_files()))
        Path(file).unlink()
        Path(file).symlink_to("nowhere")
        with pytest.raises(ConfigError, match=Path(file).name):
            hash_file_states(options.list_source_files())
        Path(file).unlink()
        Path(file).write_bytes(data)
        os.utime(file, ns=(0, 10**18))
        assert hash_file_states(options.list_source_files()) == first
    assert len(states) == 1 + 3 * len(files)


def test_an_error_names_a_file_name_that_is_not_utf8(tmp_path: Path) -> None:
    for name in (b"a/caf\xe9.png", b"caf\xe9/1.png", b"a/deep\xe9/1.png"):
        root = tmp_path / name.hex()
        write_images(root, [os.fsdecode(name), "b/2.png"])
        with pytest.raises(
            ConfigError, match=r"path: .* the name b'.*\\xe9.*' is not UTF-8; rename"
        ):
            dataset_options({"source": "imagefolder", "path": str(root)}).count_rows()
