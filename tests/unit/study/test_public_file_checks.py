"""A method's public files are held against the folders of private data before any job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.shards import CLASSES, pack, samples
from tests.support.small_study import STUDY, changed

DIGITS = {"source": "sklearn", "name": "digits"}
OF_DIGITS = "results/features/digits/pixels/train/manifest.json"
HEAD = "results/cells/digits/pixels/sgd/eps-1/heads.safetensors"


def lent(path: str) -> dict[str, Any]:
    return {"head": "feature_covariance", "public_covariance": path}


def started(path: str) -> dict[str, Any]:
    return {"head": "sgd", "init": "file", "init_file": path}


def check(method: dict[str, Any], **changes: Any) -> None:
    public = {"lender": {"source": "torchvision", "name": "MNIST"}}
    methods = STUDY["methods"] | {"some": method}
    check_study(load_study(STUDY | {"methods": methods, "public_datasets": public} | changes))


def refused(method: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check(method, **changes)
    message = str(caught.value)
    assert message.startswith("config: methods.some: ")
    assert "\n" not in message
    assert "name a file in another folder" in message
    return message


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("{}")


@pytest.mark.parametrize(
    "path",
    [
        OF_DIGITS,
        "results/features/{dataset}/{backbone}/train/manifest.json",
        "results/features/digits/{backbone}/test/manifest.json",
        "results/features/lender/../digits/pixels/train/manifest.json",
        "elsewhere/../results/features/digits/pixels/train/manifest.json",
        "results/features/left_the_study/pixels/train/manifest.json",
        "./results//features/digits/pixels/train/manifest.json",
        "data/digits/manifest.json",
        "data/downloads/digits/manifest.json",
    ],
)
def test_private_features_are_no_public_covariance(path: str) -> None:
    said = refused(lent(path))
    assert "methods.some: public_covariance: " in said
    assert path.format(dataset="digits", backbone="pixels") in said


@pytest.mark.parametrize("path", [HEAD, "results/calibration/x.safetensors", "results/new.bin"])
def test_results_of_the_study_are_no_start(path: str) -> None:
    assert f"init_file: {path}" in refused(started(path))
    tuned = {"head": "tuned", "base": started(path), "search": {"learning_rate": [0.1, 1]}}
    assert f"base.init_file: {path}" in refused(tuned)


def test_absolute_paths_and_the_home_folder_hide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(lent(str(tmp_path / OF_DIGITS)))
    monkeypatch.setenv("HOME", str(tmp_path))
    refused(lent(f"~/{OF_DIGITS}"))


def test_links_hide_nothing(tmp_path: Path) -> None:
    make(OF_DIGITS)
    Path("manifest.json").symlink_to(tmp_path / OF_DIGITS)
    Path("folder").symlink_to("results/features/digits")
    Path("results/features/lender").symlink_to("digits")
    for path in (
        "manifest.json",
        "folder/pixels/train/manifest.json",
        "results/features/lender/pixels/train/manifest.json",
    ):
        refused(lent(path))
    make(HEAD)
    text = Path("results/features/digits/pixels/text.safetensors")
    text.symlink_to(tmp_path / HEAD)
    refused(started(str(text)))


def test_results_that_lie_elsewhere_are_known_by_either_path(tmp_path: Path) -> None:
    make("disk/results/features/digits/pixels/train/manifest.json")
    Path("results").symlink_to("disk/results")
    refused(lent(OF_DIGITS))
    refused(lent(f"disk/{OF_DIGITS}"))
    Path("results").unlink()
    Path("results/features").mkdir(parents=True)
    Path("results/features/digits").symlink_to(tmp_path / "disk/results/features/digits")
    refused(lent(OF_DIGITS))
    refused(lent(f"disk/{OF_DIGITS}"))
    check(lent("disk/results/features/other/pixels/train/manifest.json"))
    Path("results/features/digits").unlink()
    Path("results/features/digits").mkdir()
    Path("results/features/digits/pixels").symlink_to(tmp_path / "disk/pixels")
    refused(lent("disk/pixels/train/manifest.json"))
    Path("results/features/lender").symlink_to(tmp_path / "disk/lender")
    check(lent("results/features/lender/pixels/train/manifest.json"))


def test_other_folders_of_the_study_count(tmp_path: Path) -> None:
    changes = {"results_dir": str(tmp_path / "out"), "data_dir": "tables"}
    refused(lent("out/features/digits/pixels/train/manifest.json"), **changes)
    refused(lent("tables/digits/manifest.json"), **changes)
    check(lent(OF_DIGITS), **changes)


@pytest.mark.parametrize(
    "path",
    [
        "results/features/lender/{backbone}/train/manifest.json",
        "results/features/digits/../lender/pixels/train/manifest.json",
        "elsewhere/{dataset}/manifest.json",
        "data/public/manifest.json",
        "data/lender/manifest.json",
    ],
)
def test_public_features_and_files_elsewhere_pass(path: str) -> None:
    check(lent(path))


def test_text_embeddings_come_from_the_names_of_classes_alone(tmp_path: Path) -> None:
    path = "results/features/{dataset}/{backbone}/text.safetensors"
    check(started(path))
    check(started(str(tmp_path / path)))
    refused(started("results/features/{dataset}/{backbone}/train/text.safetensors"))
    refused(started("results/cells/{dataset}/{backbone}/text.safetensors"))


def test_links_in_a_circle_are_left_to_who_reads_them() -> None:
    Path("circle").symlink_to("circle")
    check(lent("circle/manifest.json"))


JOIN = {"file": "people.csv", "by": "who", "columns": ["sex"]}
WHO = {"column": "path", "pattern": "(p[0-9]+)"}
CSV = {"source": "csv", "train": "a.csv", "label_column": "label", "class_names": ["a", "b"]}
HUB = {
    "source": "huggingface", "repo": "a/b", "revision": "0" * 40, "train": "train-*.parquet",
}  # fmt: skip
FOLDER = {"source": "imagefolder", "path": "x"}
FETCHED = {
    "source": "url", "files": [{"url": "http://h/x.zip", "sha256": "0" * 64}], "layout": FOLDER,
}  # fmt: skip


def errors(private: dict[str, Any], public: dict[str, Any]) -> str:
    study = changed("datasets.digits", private) | {"public_datasets": {"lender": public}}
    try:
        check_study(load_study(study))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("private", "differing"),
    [
        (DIGITS, {"split_seed": 7, "test_fraction": 0.5, "delta": 1e-6}),
        (CSV, {"split_seed": 1, "label_column": "sex", "embed": True}),
        (CSV, {"unit_column": "patient", "max_images_per_patient": 3, "duplicates": "warn"}),
        (HUB, {"limit": {"test": 3}, "several_labels": True}),
        (CSV, {"joins": [JOIN], "group_columns": ["sex"]}),
        (CSV, {"extract": {"who": WHO}, "unit_column": "who", "split_column": "split"}),
        (CSV, {"root": "images/.."}),
        (FOLDER, {"path": "./x/"}),
        (FOLDER, {"path": "y/../x", "split_by": "id"}),
        (FETCHED, {"layout": FOLDER | {"split_seed": 3, "embed": False}}),
        (FETCHED, {"layout": FOLDER | {"path": "./x"}}),
        (FETCHED, {"files": [{"url": "http://mirror/x.zip", "sha256": "0" * 64}]}),
        ({"source": "torchvision", "name": "MNIST"}, {"path": "elsewhere"}),
    ],
)
def test_a_public_dataset_of_private_images_is_refused(
    private: dict[str, Any], differing: dict[str, Any]
) -> None:
    said = "config: public_datasets.lender: it has the images of the private dataset digits"
    assert said in errors(private, private | differing)


@pytest.mark.parametrize(
    ("private", "differing"),
    [
        (CSV, {"train": "b.csv"}),
        (CSV, {"filters": {"site": ["b"]}}),
        (CSV, {"split_column": "use", "train_values": ["public"]}),
        (CSV | {"path_column": "who"}, {"extract": {"who": WHO}}),
        (CSV | {"filters": {"sex": ["f"]}}, {"joins": [JOIN]}),
        (FOLDER, {"path": "x/y"}),
        (FETCHED, {"files": [{"url": "http://h/x.zip", "sha256": "1" * 64}]}),
        (HUB, {"revision": "1" * 40}),
        (FETCHED, {"layout": FOLDER | {"path": "y"}}),
        ({"source": "torchvision", "name": "MNIST"}, {"name": "FashionMNIST"}),
    ],
)
def test_a_public_dataset_of_other_images_is_not(
    private: dict[str, Any], differing: dict[str, Any]
) -> None:
    assert "the images of the private" not in errors(private, private | differing)


SHARDS = {"source": "webdataset", "class_names": CLASSES}


@pytest.mark.parametrize(
    ("private", "public", "shared"),
    [
        ({"train": "s"}, {"train": "s/*.tar"}, "s/0.tar"),
        ({"train": ["s/0.tar", "s/1.tar"]}, {"train": "s/../s/1.tar"}, "s/1.tar"),
        ({"train": "s/0.tar", "test": "s/1.tar"}, {"train": "s/1.tar"}, "s/1.tar"),
        ({"train": "s"}, {"train": "link.tar"}, "s/0.tar"),
        ({"train": "s/0.tar"}, {"train": "s/1.tar"}, None),
        ({"train": "s/0.tar"}, {"train": "absent.tar"}, None),
    ],
)
def test_a_file_that_two_datasets_read_is_of_both(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    private: dict[str, Any],
    public: dict[str, Any],
    shared: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        pack(tmp_path / f"s/{number}.tar", samples(8 * number, 8))
    Path("link.tar").symlink_to("s/0.tar")
    told = errors(SHARDS | private, SHARDS | public)
    if shared is None:
        assert "of the private dataset" not in told
    else:
        assert f"the images in {tmp_path / shared} of the private dataset digits" in told
