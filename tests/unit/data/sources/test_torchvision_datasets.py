"""torchvision's datasets in their own formats, from a local server to split tables."""

from __future__ import annotations

import hashlib
import inspect
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torchvision.datasets
from PIL import Image

from dpprobe.data import dataset_preparation, table
from dpprobe.data.dataset_sizes import count_used_rows
from dpprobe.data.options import DatasetOptions
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources import torchvision_datasets
from dpprobe.errors import ConfigError, DataError
from tests.support.misbehaving_server import Server
from tests.support.torchvision_files import NAMES, PLACES, fetch_from, serve_dataset


def options(name: str, **more: Any) -> DatasetOptions:
    return dataset_options({"source": "torchvision", "name": name, **more})


def prepared(
    name: str, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, per_class: int = 2
) -> tuple[table.DatasetInfo, dict[str, list[dict[str, Any]]]]:
    """Downloads and prepares a dataset; returns the tables' description and rows."""
    train, test, classes = serve_dataset(
        name, tmp_path / "remote", monkeypatch, per_class=per_class
    )
    for file in (tmp_path / "remote").iterdir():
        server.put(f"/{file.name}", file.read_bytes())
    expect: dict[str, int] = {"classes": classes}
    if test:
        expect |= {"train": train, "test": test}
    fetch_from(server.url("/"), monkeypatch)
    chosen = options(name, expect=expect)
    dataset_preparation.download_dataset(chosen, tmp_path / "downloads")
    dataset_preparation.prepare_dataset(
        chosen, tmp_path / "tables", downloaded=tmp_path / "downloads"
    )
    rows = {
        part: pq.read_table(tmp_path / "tables" / f"{part}.parquet").to_pylist()
        for part in table.SPLITS
    }
    return table.read_info(tmp_path / "tables" / "dataset.json"), rows


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST", "CIFAR10", "CIFAR100"])
def test_arrays_become_png_without_loss(
    name: str, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, rows = prepared(name, tmp_path, server, monkeypatch)
    cls = getattr(torchvision.datasets, name)
    archive = tmp_path / "downloads"
    root = archive if name.endswith("MNIST") else archive / cls.filename.removesuffix(".tar.gz")
    for part in table.SPLITS:
        theirs = cls(root, train=part == "train", download=False)
        assert len(rows[part]) == len(theirs)
        for number, row in enumerate(rows[part]):
            image = Image.open(io.BytesIO(row["image"]["bytes"]))
            assert image.format == "PNG"
            np.testing.assert_array_equal(np.asarray(image), np.asarray(theirs[number][0]))
            assert row["label"] == theirs[number][1]
            assert row["id"] == f"{part}-{number:08d}"
    assert info.class_names == tuple(theirs.classes)
    assert set(info.splits["train"].per_class) == {2}


def test_eurosat_is_split_and_its_files_are_copied(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, rows = prepared("EuroSAT", tmp_path, server, monkeypatch, per_class=5)
    assert (info.train_rows, info.test_rows) == (40, 10)
    assert info.splits["test"].per_class == (1,) * 10
    folder = tmp_path / "downloads" / "eurosat" / "2750"
    for row in rows["train"] + rows["test"]:
        content = (folder / row["id"]).read_bytes()
        assert row["image"]["bytes"] == content
        assert row["id"].startswith(f"{info.class_names[row['label']]}/")
    split = {"split_by": "id", "split_seed": 3, "test_fraction": 0.4}
    there = dataset_options({"source": "imagefolder", "path": str(folder)} | split)
    found = []
    for chosen in (there, options("EuroSAT", path=str(tmp_path / "downloads"), **split)):
        dataset_preparation.prepare_dataset(chosen, tmp_path / "again")
        found.append(table.read_info(tmp_path / "again/dataset.json"))
    assert found[0].fingerprint == found[1].fingerprint != info.fingerprint


def test_places_files_stay_where_they_are(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, rows = prepared("Places365", tmp_path, server, monkeypatch)
    assert info.class_names == PLACES
    assert [row["id"] for row in rows["train"]][1:3] == [
        "b/bow_window/indoor/00000002.jpg",
        "a/airfield/00000001.jpg",
    ]
    assert rows["test"][2]["id"] == "Places365_val_00000003.jpg"
    for row in rows["train"] + rows["test"]:
        assert row["image"]["bytes"] is None
        content = Path(row["image"]["path"]).read_bytes()
        assert hashlib.sha256(content).digest() == row["image_sha256"]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_archives_gives_the_same_dataset_without_a_request(
    name: str, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, _ = prepared(name, tmp_path, server, monkeypatch)
    asked = len(server.visits)
    given = options(name, downloads=str(tmp_path / "remote"))
    given.check_files()
    dataset_preparation.download_dataset(given, tmp_path / "linked")
    dataset_preparation.prepare_dataset(given, tmp_path / "again", downloaded=tmp_path / "linked")
    again = table.read_info(tmp_path / "again" / "dataset.json")
    assert (again.fingerprint, again.source) == (
        info.fingerprint,
        options(name).preparation_params(),
    )
    assert len(server.visits) == asked


@pytest.mark.parametrize("name", NAMES)
def test_a_path_gives_the_same_dataset_without_a_download(
    name: str, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, _ = prepared(name, tmp_path, server, monkeypatch)
    root = tmp_path / "root"
    mine = tmp_path / "downloads"
    root.mkdir()
    if name == "Places365":  # in the layout of torchvision's own download
        for file in (mine / "filelist_places365-standard").iterdir():
            file.rename(root / file.name)
        train = mine / "train_256_places365standard" / "data_256"
        train.rename(root / "data_256_standard")
        (mine / "val_256" / "val_256").rename(root / "val_256")
    elif name.startswith("CIFAR"):
        root = mine / Path(torchvision_datasets.list_remotes(name)[0].file.removesuffix(".tar.gz"))
    else:
        root = mine
    chosen = options(name, path=str(root))
    assert chosen.download_params() is None
    chosen.check_files()
    assert chosen.input_files()
    dataset_preparation.prepare_dataset(chosen, tmp_path / "again")
    again = table.read_info(tmp_path / "again" / "dataset.json")
    assert again.fingerprint == info.fingerprint


@pytest.mark.parametrize("name", NAMES)
def test_addresses_and_checksums_are_torchvisions(name: str) -> None:
    source = inspect.getsource(inspect.getmodule(getattr(torchvision.datasets, name)))  # type: ignore[arg-type]
    for remote in torchvision_datasets.list_remotes(name):
        assert remote.md5 in source
        assert remote.file in source
        assert remote.url.startswith(("http://", "https://"))
    if name == "EuroSAT":
        assert torchvision_datasets.EUROSAT_URL in source


def test_a_path_without_the_dataset_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    chosen = options("CIFAR10", path=str(tmp_path))
    chosen.check_files()
    with pytest.raises(DataError, match="torchvision cannot read it .*not found or corrupted"):
        dataset_preparation.prepare_dataset(chosen, tmp_path / "tables")


# Training rows, test rows and classes according to the authors: LeCun's page of MNIST; Xiao et al.
# 2017; Krizhevsky's page of CIFAR; "Number of images" in the development kit of Places365-Standard
# (github.com/zhoubolei/places_devkit).
STATED = {
    "MNIST": (60_000, 10_000, 10),
    "FashionMNIST": (60_000, 10_000, 10),
    "CIFAR10": (50_000, 10_000, 10),
    "CIFAR100": (50_000, 10_000, 100),
    "Places365": (1_803_460, 36_500, 365),
}


@pytest.mark.parametrize("name", STATED)
def test_sizes_are_known_before_the_download(name: str) -> None:
    train, test, classes = STATED[name]
    chosen = options(name)
    chosen.check_files()
    assert chosen.has_test()
    assert (chosen.count_rows(), chosen.count_classes()) == ((train, test), classes)
    assert count_used_rows(chosen) == (train, test)
    assert count_used_rows(options(name, subsample={"per_class": 7})) == (7 * classes, test)
    # `expect` describes a folder that differs from torchvision's dataset
    other = options(name, expect={"train": 9, "test": 3, "classes": 2})
    assert (other.count_rows(), other.count_classes()) == ((9, 3), 2)
    assert options(name, expect={"train": 9}).count_rows() == (train, test)
    assert options(name, expect={"test": 9}).count_rows() == (train, test)
    public = chosen.public_split()
    assert (public.rule, public.key, public.fault) == ("source", "source", None)


# The folders that torchvision's class for each dataset reads under its root.
LAYOUT = {
    "MNIST": ["MNIST/raw"],
    "FashionMNIST": ["FashionMNIST/raw"],
    "CIFAR10": [torchvision.datasets.CIFAR10.base_folder],
    "CIFAR100": [torchvision.datasets.CIFAR100.base_folder],
    "EuroSAT": ["eurosat/2750"],
    "Places365": ["data_256_standard", "val_256"],
}


@pytest.mark.parametrize("name", LAYOUT)
def test_a_path_has_the_folders_of_torchvision(name: str, tmp_path: Path) -> None:
    chosen = options(name, path=str(tmp_path))
    folders = [tmp_path / each for each in LAYOUT[name]]
    for folder in folders:
        with pytest.raises(ConfigError, match=f"path: no folder {folder}; .*{name}, or remove"):
            chosen.check_files()
        folder.mkdir(parents=True)
    chosen.check_files()
    assert chosen.input_files() == tuple(map(str, folders))
    assert chosen.download_params() is None
    # The images do not depend on the dataset's path.
    assert chosen.image_params() == options(name).image_params()
    assert chosen.preparation_params() != options(name).preparation_params()
    for number, folder in enumerate(folders):
        (folder / "deep").mkdir()
        (folder / f"deep/{number}.bin").touch()
    (tmp_path / "categories_places365.txt").touch()
    (tmp_path / "notes.txt").touch()
    expected = [folder / f"deep/{number}.bin" for number, folder in enumerate(folders)]
    expected += [tmp_path / "categories_places365.txt"] if name == "Places365" else []
    assert [file for _, file in chosen.list_source_files()] == expected
    assert [*options(name).list_source_files()] == []
    assert options(name).input_files() == ()


def test_options_that_are_refused(tmp_path: Path) -> None:
    names = "'MNIST', 'FashionMNIST', 'CIFAR10', 'CIFAR100', 'EuroSAT' or 'Places365'"
    with pytest.raises(ConfigError, match=f"name: 'SVHN': must be {names}"):
        options("SVHN")
    with pytest.raises(ConfigError, match="path: "):
        options("MNIST", path="")
    with pytest.raises(ConfigError, match=f"downloads: no folder {tmp_path}/no; correct"):
        options("MNIST", downloads=f"{tmp_path}/no").check_files()
