"""Folders of public images without classes."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from dpprobe.data.dataset_preparation import prepare_dataset
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import read_info
from dpprobe.errors import ConfigError
from dpprobe.study.study import Study
from tests.support.refusals import refuses


def write_images(folder: Path, count: int) -> None:
    """Writes images into folders of different depths."""
    for number in range(count):
        path = folder / "/".join("ab"[: number % 3]) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(path)


def test_all_images_below_the_folder_are_read_as_one_class(tmp_path: Path) -> None:
    write_images(tmp_path / "films/train", 10)  # here train/ is neither a split nor a class
    values = {"source": "imagefolder", "path": str(tmp_path / "films"), "unlabelled": True}
    options = dataset_options(values)
    assert not options.has_labels()
    assert sum(options.count_rows() or (0, 0)) == 10
    prepare_dataset(options, tmp_path / "tables")
    info = read_info(tmp_path / "tables/dataset.json")
    assert (info.train_rows, info.test_rows) == options.count_rows()
    assert list(info.class_names) == ["unlabelled"]


def test_a_folder_with_one_image_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, 1)
    options = dataset_options({"source": "imagefolder", "path": str(tmp_path), "unlabelled": True})
    with refuses(ConfigError, "path", "1 image"):
        options.check_files()


def test_a_private_dataset_needs_labels(tmp_path: Path) -> None:
    films = {"source": "imagefolder", "path": str(tmp_path), "unlabelled": True}
    study = {
        "datasets": {"digits": {"source": "sklearn"}},
        "backbones": {"pixels": {"family": "pixels"}},
        "methods": {"auto": {"head": "auto", "public": "films"}},
        "epsilons": [1],
    }
    made = Study.model_validate(study | {"public_datasets": {"films": films}})
    place = "results/features/films/{backbone}/train/manifest.json"
    assert made.methods["auto"].public_files() == {"public": place}
    with pytest.raises(ValueError, match=r"datasets\.films: unlabelled"):
        Study.model_validate(study | {"datasets": {"films": films}})
