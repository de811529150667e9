"""A method's public files must not be in folders of private data; checked before any job."""

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
RESULTS, OF_ONE = "the results of this study", "the folders of the private dataset digits"
# Files of features, and the private folder that contains them; None if they are public.
LENT: list[tuple[str, str | None]] = [
    (OF_DIGITS, RESULTS),
    (f"{FEATURES}/{{dataset}}/{{backbone}}/train/manifest.json", RESULTS),
    (f"{FEATURES}/digits/{{backbone}}/test/manifest.json", RESULTS),
    (f"HERE/{OF_DIGITS}", RESULTS),
    (f"~/{OF_DIGITS}", RESULTS),
    (f"{FEATURES}/lender/../digits/pixels/train/manifest.json", RESULTS),
    (f"elsewhere/../{OF_DIGITS}", RESULTS),
    (f"{FEATURES}/left_the_study/pixels/train/manifest.json", RESULTS),
    ("./results//features/digits/pixels/train/manifest.json", RESULTS),
    ("data/digits/manifest.json", OF_ONE),
    ("data/downloads/digits/manifest.json", OF_ONE),
    (f"{FEATURES}/lender/{{backbone}}/train/manifest.json", None),
    (f"{FEATURES}/digits/../lender/pixels/train/manifest.json", None),
    ("data/public/manifest.json", None),
    ("data/lender/manifest.json", None),
    ("elsewhere/{dataset}/manifest.json", None),
    ("circle/manifest.json", None),
]
STARTS: list[tuple[str, str | None]] = [
    (HEAD, RESULTS),
    ("results/calibration/x.safetensors", RESULTS),
    ("results/new.bin", RESULTS),
    ("heads/new.bin", None),
    # made only from the names of classes
    (f"{FEATURES}/{{dataset}}/{{backbone}}/text.safetensors", None),
    (f"HERE/{FEATURES}/{{dataset}}/{{backbone}}/text.safetensors", None),
    (f"{FEATURES}/{{dataset}}/{{backbone}}/train/text.safetensors", RESULTS),
    ("results/cells/{dataset}/{backbone}/text.safetensors", RESULTS),
]
MORE = {
    "datasets": {"mine": DIGITS | {"split_seed": 1}, "digits": DIGITS},
    "backbones": {"a": STUDY["backbones"]["pixels"], **STUDY["backbones"]},
    "public_datasets": {"first": {"catalog": "fashion_mnist"}, **LENDER},
}


def check_told(line: str, option: str, place: str | None) -> None:
    if place is None:
        assert line == "accepted"
        return
    assert line.startswith(f"config: methods.some: {option}: ")
    assert f": it is in {place}, so it may hold private data; name a file in" in line
    assert "{" not in line, "the path is that of a dataset and a backbone"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("circle").symlink_to("circle")  # left to the code that reads it
    return tmp_path


@pytest.mark.parametrize(("path", "place"), LENT)
def test_features_of_a_public_dataset_alone_are_public(
    home: Path, path: str, place: str | None
) -> None:
    method = lent(path.replace("HERE", str(home)))
    check_told(told(method), "public_covariance", place)
    check_told(told(method, **MORE), "public_covariance", place)  # in any order
    elsewhere = {"results_dir": str(home / "out"), "data_dir": "tables"}
    assert told(method, **elsewhere) == "accepted", "of another study, as far as is known"


def test_private_folders_are_those_that_the_study_writes(home: Path) -> None:
    elsewhere = {"results_dir": str(home / "out"), "data_dir": "tables"}
    for path, place in (
        (f"{home}/out/features/digits/pixels/train/manifest.json", RESULTS),
        ("out/features/digits/pixels/train/manifest.json", RESULTS),
        ("tables/digits/manifest.json", OF_ONE),
        ("tables/lender/manifest.json", None),
    ):
        check_told(told(lent(path), **elsewhere), "public_covariance", place)
        assert told(lent(path)) == "accepted"


@pytest.mark.parametrize(("path", "place"), STARTS)
def test_heads_that_training_starts_from_are_public(
    home: Path, path: str, place: str | None
) -> None:
    method = started(path.replace("HERE", str(home)))
    check_told(told(method), "init_file", place)
    check_told(told(method, **MORE), "init_file", place)
    tuned = {"head": "tuned", "base": method, "search": {"learning_rate": [0.1, 1]}}
    check_told(told(tuned), "base.init_file", place)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("heads/new.pt", None),
        (HEAD, f"it is in {RESULTS}, so it may hold private data; name public weights in"),
        ("results/features/x.pt", f"it is in {RESULTS}, so it may hold private data"),
        ("data/digits/w.pt", f"it is in {OF_ONE}, so it may hold private data"),
        ("heads/{a}.pt", "Snakemake would replace the part in brackets; rename the file or"),
    ],
)
def test_weights_of_a_backbone_are_public(path: str, fault: str | None) -> None:
    make("heads/new.pt")
    make(path)
    net = {"family": "timm", "model": "test_vit"}
    backbones = {"b": net | {"checkpoint": path}, "c": net | {"checkpoint": "heads/new.pt"}}
    line = fault_of(STUDY | {"backbones": backbones})
    if fault is None:
        assert line == "accepted"
    else:
        assert line.startswith(f"config: backbones.b: checkpoint: {path}: {fault}")
        assert "\n" not in line


def test_public_head_text_means_the_embeddings_of_the_class_names() -> None:
    method = {"head": "auto", "public_head": "text"}
    study = load_study(STUDY | {"methods": {"some": method}, "results_dir": "made"})
    some = study.methods["some"].fill_paths(dataset="digits", backbone="clip")
    assert some.public_files() == {"public_head": "made/features/digits/clip/text.safetensors"}
    line = told(method)
    assert line.startswith("config: methods.some: public_head: backbone pixels reads no text;")
    clip = {"clip": {"family": "open_clip", "model": "ViT-B-32-quickgelu", "pretrained": "openai"}}
    assert told(method, backbones=clip) == "accepted"


def test_symbolic_links_to_private_files_are_refused_as_public_files(tmp_path: Path) -> None:
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


# Options with which a public dataset still has the images of the private one.
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
