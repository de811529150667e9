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
from tests.support.stored_records import check_values

DIGITS = {"source": "sklearn", "name": "digits"}
OF_DIGITS = "results/features/digits/pixels/train/manifest.json"
HEAD = "results/cells/digits/pixels/sgd/eps-1/heads.safetensors"


LENDER = {"lender": {"source": "torchvision", "name": "MNIST"}}


def lent(path: str) -> dict[str, Any]:
    return {"head": "feature_covariance", "public_covariance": path}


def started(path: str) -> dict[str, Any]:
    return {"head": "sgd", "init": "file", "init_file": path}


def fault_of(study: dict[str, Any]) -> str:
    try:
        check_study(load_study(study))
    except ConfigError as error:
        return str(error)
    return "accepted"


def told(method: dict[str, Any], **changes: Any) -> str:
    methods = STUDY["methods"] | {"some": method}
    return fault_of(STUDY | {"methods": methods, "public_datasets": LENDER} | changes)


def refused(method: dict[str, Any], **changes: Any) -> None:
    assert "name a file in another folder" in told(method, **changes)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("{}")


FEATURES = "results/features"
LENT = [
    OF_DIGITS,
    f"{FEATURES}/{{dataset}}/{{backbone}}/train/manifest.json",
    f"{FEATURES}/digits/{{backbone}}/test/manifest.json",
    f"HERE/{OF_DIGITS}",
    f"~/{OF_DIGITS}",
    f"{FEATURES}/lender/../digits/pixels/train/manifest.json",
    f"elsewhere/../{OF_DIGITS}",
    f"{FEATURES}/left_the_study/pixels/train/manifest.json",
    "data/digits/manifest.json",
    "./results//features/digits/pixels/train/manifest.json",
    "data/downloads/digits/manifest.json",
    f"{FEATURES}/lender/{{backbone}}/train/manifest.json",
    "data/public/manifest.json",
    f"{FEATURES}/digits/../lender/pixels/train/manifest.json",
    "elsewhere/{dataset}/manifest.json",
    "data/lender/manifest.json",
    "circle/manifest.json",
    f"HERE/out/{OF_DIGITS[8:]}",
    "tables/digits/manifest.json",
]
STARTS = [
    HEAD,
    "results/calibration/x.safetensors",
    "results/new.bin",
    "heads/new.bin",
    f"{FEATURES}/{{dataset}}/{{backbone}}/text.safetensors",  # made of the names of classes alone
    f"HERE/{FEATURES}/{{dataset}}/{{backbone}}/text.safetensors",
    f"{FEATURES}/{{dataset}}/{{backbone}}/train/text.safetensors",
    "results/cells/{dataset}/{backbone}/text.safetensors",
]


def test_which_files_are_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("circle").symlink_to("circle")  # left to who reads it
    elsewhere = {"results_dir": str(tmp_path / "out"), "data_dir": "tables"}
    net = {"family": "timm", "model": "test_vit"}
    more = {
        "datasets": {"mine": DIGITS | {"split_seed": 1}, "digits": DIGITS},
        "backbones": {"a": STUDY["backbones"]["pixels"], **STUDY["backbones"]},
        "public_datasets": {"first": {"catalog": "fashion_mnist"}, **LENDER},
    }
    answers: dict[str, list[str]] = {}
    for make_method, paths in ((lent, LENT), (started, STARTS)):
        for path in paths:
            method = make_method(path.replace("HERE", str(tmp_path)))
            tuned = {"head": "tuned", "base": method, "search": {"learning_rate": [0.1, 1]}}
            lines = [told(method), told(method, **elsewhere), told(method, **more)]
            lines += [told(tuned)] if paths is STARTS else []
            answers[path] = [line.replace(str(tmp_path), "HERE") for line in lines]
    for path in ("heads/new.pt", HEAD, "data/digits/w.pt", "heads/{a}.pt", "results/features/x.pt"):
        make(path)
        backbones = {"b": net | {"checkpoint": path}, "c": net | {"checkpoint": "heads/new.pt"}}
        answers[f"checkpoint {path}"] = [fault_of(STUDY | {"backbones": backbones})]
    check_values("public_files", answers)


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
    assert told(lent("disk/results/features/other/pixels/train/manifest.json")) == "accepted"
    Path("results/features/digits").unlink()
    Path("results/features/digits").mkdir()
    Path("results/features/digits/pixels").symlink_to(tmp_path / "disk/pixels")
    refused(lent("disk/pixels/train/manifest.json"))
    Path("results/features/lender").symlink_to(tmp_path / "disk/lender")
    assert told(lent("results/features/lender/pixels/train/manifest.json")) == "accepted"


JOIN = {"file": "people.csv", "by": "who", "columns": ["sex"]}
WHO = {"column": "path", "pattern": "(p[0-9]+)"}
CSV = {"source": "csv", "train": "a.csv", "label_column": "label", "class_names": ["a", "b"]}
HUB = {
    "source": "huggingface",
    "repo": "a/b",
    "revision": "0" * 40,
    "train": "train-*.parquet",
}
FOLDER = {"source": "imagefolder", "path": "x"}
FETCHED = {
    "source": "url",
    "files": [{"url": "http://h/x.zip", "sha256": "0" * 64}],
    "layout": FOLDER,
}


def errors(private: dict[str, Any], public: dict[str, Any]) -> str:
    return fault_of(changed("datasets.digits", private) | {"public_datasets": {"lender": public}})


# Options beside which a public dataset has the images of the private one.
SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
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
]
OTHER: list[tuple[dict[str, Any], dict[str, Any]]] = [
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
]


@pytest.mark.parametrize(("private", "differing"), [*SAME, *OTHER])
def test_a_public_dataset_of_private_images_is_refused_and_no_other(
    private: dict[str, Any], differing: dict[str, Any]
) -> None:
    said = "config: public_datasets.lender: it has the images of the private dataset digits"
    assert (said in errors(private, private | differing)) == ((private, differing) in SAME)


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
    said = f"the images in {tmp_path / str(shared)} of the private dataset digits"
    found = errors(SHARDS | private, SHARDS | public)
    assert (said in found) == ("of the private dataset" in found) == (shared is not None)
