"""Studies drafted from tar shards, clean and ugly."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dpprobe.data import dataset_preparation, tar_shards
from dpprobe.data.table import SplitTable
from dpprobe.data.webdataset import Options
from tests.support.shards import Members, pack, png, samples
from tests.unit.draft.conftest import Desk


def options(desk: Desk, file: str = "lesions.yaml") -> Options:
    (dataset,) = desk.study(file).datasets.values()
    assert isinstance(dataset, Options)
    return dataset


def labelled(numbers: Iterable[int], *labels: str, image: str = "png") -> Members:
    """Samples with key.cls alone, labels by turns."""
    members: list[tuple[str, bytes]] = []
    for number in numbers:
        members += [(f"{number:04}.{image}", png(number))]
        members += [(f"{number:04}.cls", labels[number % len(labels)].encode() + b"\n")]
    return members


def described(count: int, **more: Any) -> Members:
    """Samples with key.json alone; a callable makes a field of the number."""
    members: list[tuple[str, bytes]] = []
    for number in range(count):
        fields = {name: make(number) for name, make in more.items()}
        members += [(f"{number:04}.png", png(number))]
        members += [(f"{number:04}.json", json.dumps(fields).encode())]
    return members


@pytest.fixture
def lesions(desk: Desk) -> Path:
    return desk.folder / "lesions"


def test_a_folder_of_shards_becomes_a_study_that_prepares(desk: Desk, lesions: Path) -> None:
    pack(lesions / "000.tar", labelled(range(30), "benign", "benign", "malignant"))
    pack(lesions / "001.tar", labelled(range(30, 60), "benign", "benign", "malignant"))
    (lesions / "000.tar.idx").write_text("v1.2")
    printed = desk.init("lesions")
    assert "lesions: 60 images, 2 classes" in printed
    assert "benign            40" in printed
    assert "shards without key.json name no patients" in printed
    dataset = options(desk)
    assert dataset.train == "lesions"
    assert dataset.class_names == ("benign", "malignant")
    assert (dataset.split_by, dataset.test_fraction) == ("id", 0.2)
    assert "shard_in_id" not in (desk.folder / "lesions.yaml").read_text()
    dataset_preparation.prepare_dataset(dataset, desk.folder / "out")
    train, test = (SplitTable(desk.folder / f"out/{name}.parquet") for name in ("train", "test"))
    assert f"training:    {len(train.read_ids())} images" in printed
    assert f"`expect: {{train: {len(train.read_ids())}, test: {len(test.read_ids())}}}`" in printed


def test_fields_of_key_json_are_labels_patients_and_groups(desk: Desk, lesions: Path) -> None:
    fields = {
        "diagnosis": lambda number: ["benign", "malignant"][number % 11 == 0],
        "PatientID": lambda number: f"p{number // 2}",
        "sex": lambda number: "fm"[number // 2 % 2],
        "age": lambda number: 20 + number,
    }
    pack(lesions / "000.tar", described(60, **fields))
    printed = desk.init("lesions")
    assert "60 images of 30 patients, 2 classes" in printed
    dataset = options(desk)
    assert dataset.label_column == "diagnosis"
    assert dataset.unit_column == "PatientID"
    assert dataset.group_columns == ("sex",)
    assert dataset.metric == "auc"
    dataset_preparation.prepare_dataset(dataset, desk.folder / "out")
    train = SplitTable(desk.folder / "out/train.parquet")
    patients = {f"p{int(name) // 2}" for name in train.read_ids()}
    assert f"training:    {len(patients)} patients" in printed
    assert "expect:" not in printed  # how many images patients have is their matter


def test_nan_is_a_blank(desk: Desk, lesions: Path) -> None:
    fields = {
        "diagnosis": lambda number: ["benign", "malignant"][number % 2],
        "patient": lambda number: math.nan if number == 7 else number // 2,
    }
    pack(lesions / "000.tar", described(60, **fields))
    printed = desk.init("lesions")
    assert "60 images of 30 patients, 2 classes" in printed
    assert "column patient is blank in 1 rows" in printed


def test_numbers_of_classes_have_a_comment_and_gaps_are_names(desk: Desk, lesions: Path) -> None:
    pack(lesions / "000.tar", labelled(range(33), "0", "1", "10", *"23456789"))
    desk.init("lesions")
    assert options(desk).class_names == tuple(map(str, range(11)))
    text = (desk.folder / "lesions.yaml").read_text()
    assert "The shards have no class names" in text
    pack(lesions / "000.tar", labelled(range(30), "2", "7"))
    desk.init("lesions", "--force")
    assert options(desk).class_names == ("2", "7")
    assert "Read from the labels" in (desk.folder / "lesions.yaml").read_text()


def test_lists_are_several_labels(desk: Desk, lesions: Path) -> None:
    labels = {"labels": lambda number: [number % 2, int(number % 3 == 0), 1]}
    pack(lesions / "000.tar", described(60, **labels))
    assert "60 images, 3 labels" in desk.init("lesions")
    assert options(desk).several_labels
    assert options(desk).class_names == ("0", "1", "2")
    pack(lesions / "001.tar", [("a.png", png(1)), ("a.json", b'{"labels": [1, 0]}')])
    error = desk.init("lesions", "--force")
    assert "field labels has lists of 2 and of 3 labels; write 0 or 1 for each class" in error


@pytest.mark.parametrize(
    ("names", "train", "test", "note"),
    [
        (["train-00", "train-01", "test-00"], "lesions/train-*.tar", "lesions/test-00.tar", None),
        (
            ["a-train-0", "a-train-1", "a-val-0", "a-val-1", "extra"],
            "lesions/a-train-*.tar",
            "lesions/a-val-*.tar",
            "note:        not used, by their names: extra.tar",
        ),
        (
            ["0-train", "1-train", "2-test"],
            ["lesions/0-train.tar", "lesions/1-train.tar"],
            "lesions/2-test.tar",
            None,
        ),
        (["train/0", "train/1", "val/0"], "lesions/train", "lesions/val", "val: tested on"),
        (["latest-0", "latest-1"], "lesions", None, None),
    ],
)
def test_names_of_shards_and_folders_tell_the_split(
    desk: Desk, lesions: Path, names: list[str], train: Any, test: Any, note: str | None
) -> None:
    for number, name in enumerate(names):
        rows = range(20 * number, 20 * number + 20)
        pack(lesions / f"{name}.tar", labelled(rows, "benign", "malignant"))
    printed = desk.init("lesions")
    dataset = options(desk)
    written = dataset.train if isinstance(dataset.train, str) else list(dataset.train)
    assert (written, dataset.test) == (train, test)
    assert note is None or note in printed
    assert ("test_fraction" in (desk.folder / "lesions.yaml").read_text()) == (test is None)


def test_a_name_with_a_bracket_is_no_pattern(desk: Desk) -> None:
    for name in ("train-0", "train-1", "test-0", "test-1"):
        pack(desk.folder / f"le[s]ions/{name}.tar", labelled(range(20), "a", "b"))
    assert "80 images" in desk.init("le[s]ions", "--output", "lesions.yaml")
    assert len(options(desk).list_shards("train")) == 2


def test_keys_that_begin_anew_are_told_apart_by_their_shard(desk: Desk, lesions: Path) -> None:
    for shade, name in ((0, "000"), (100, "001")):
        members = labelled(range(20), "a", "b")
        again = [
            (key, png(shade + place) if key.endswith("png") else data)
            for place, (key, data) in enumerate(members)
        ]
        pack(lesions / f"{name}.tar", again)
    desk.init("lesions")
    assert options(desk).shard_in_id
    dataset_preparation.prepare_dataset(options(desk), desk.folder / "out")
    # in two splits they are no trouble
    for name in ("train", "test"):
        pack(desk.folder / f"two/{name}.tar", labelled(range(20), "a", "b"))
    desk.init("two")
    assert not options(desk, "two.yaml").shard_in_id


def test_one_shard_is_enough(desk: Desk) -> None:
    pack(desk.folder / "skin.tar", samples(0, 20, patient=["p1", "p2", "p3"]))
    assert "20 images of 3 patients" in desk.init("skin.tar")
    assert options(desk, "skin.yaml").train == "skin.tar"
    error = desk.init("skin.tar", "--label", "sex", "--force")
    assert "--label sex: skin.tar has no such column; it has label, patient" in error
    desk.init("skin.tar", "--label", "label", "--force")
    assert options(desk, "skin.yaml").class_names == ("cat", "dog")


def test_images_of_several_extensions(desk: Desk, lesions: Path) -> None:
    pack(lesions / "000.tar", labelled(range(20), "a", "b"))
    pack(lesions / "001.tar", labelled(range(20, 40), "a", "b", image="JPG"))
    assert "40 images" in desk.init("lesions")
    assert options(desk).image_member is None
    # a second picture of a key, which not all of them have
    pack(lesions / "001.tar", [*labelled(range(20, 40), "a", "b"), ("0020.webp", png(1))])
    desk.init("lesions", "--force")
    assert options(desk).image_member == "png"
    assert "every key has this one" in (desk.folder / "lesions.yaml").read_text()
    pack(lesions / "000.tar", [*labelled(range(20), "a", "b", image="jpg"), ("0000.png", png(1))])
    error = desk.init("lesions", "--force")
    assert "several images of one key, such as 0000: png, jpg, webp; name" in error
    assert "--image tiff: lesions has no such member" in desk.init("lesions", "--image", "tiff")
    assert "19 samples are faulty" in desk.init("lesions", "--force", "--image", ".png")


def test_faulty_samples_and_empty_shards_are_told(desk: Desk, lesions: Path) -> None:
    members = labelled(range(40), "a", "b")
    pack(lesions / "000.tar", [each for each in members if each[0] != "0003.cls"])
    pack(lesions / "001.tar", [])
    printed = desk.init("lesions")
    assert "note:        no sample in 001.tar" in printed
    assert "1 samples are faulty, which a run refuses; the first is 0003: no member" in printed


def gzipped(path: Path) -> None:
    path.write_bytes(gzip.compress(pack(path, labelled(range(4), "a", "b")).read_bytes()))


def with_archive(path: Path) -> None:
    path.write_bytes(png(1))
    gzipped(path.parents[1] / "cat.tar.gz")


def unlabelled(path: Path) -> None:
    pack(path, [(f"cat/{number}.png", png(number)) for number in range(4)])


@pytest.mark.parametrize(
    ("file", "make", "message"),
    [
        ("x/a.tar.gz", gzipped, "x: a.tar.gz: compressed, .*decompress shards"),
        ("x/b.tar", gzipped, r"x/b\.tar: compressed"),
        ("x/b.tar", lambda path: path.write_bytes(b""), r"x/b\.tar: empty; fetch"),
        ("x/b.tar", lambda path: path.write_bytes(b"x" * 600), r"x/b\.tar: cannot be read after"),
        ("x/c.png", lambda path: path.write_bytes(png(1)), "tar files, such as a.tar, and images"),
        ("x/cat/c.png", with_archive, "such as a.tar, and images, such as cat/c.png"),
        ("x/cat/c.png", lambda path: path.write_bytes(png(1)), "such as cat/c.png; a study reads"),
        ("y/a.tar", lambda path: pack(path, []), "y: no sample in the tar files"),
        ("y/a.tar", unlabelled, "y: no labels: there are png.*if cat and the like are the classes"),
        ("y/more/a.tar", unlabelled, r"name its folder: `dpprobe init y/more`"),
        ("y/test/a.tar", unlabelled, "y: tar files in test and no folder train"),
        ("y/a.tar", lambda path: pack(path, labelled(range(4), "a")), "column key.cls has 1 class"),
        (
            "y/a.tar",
            lambda path: pack(path, described(4, labels=lambda _: [1])),
            "y: one class, 0: a classifier tells two or more apart",
        ),
        ("y/a.tar", lambda path: pack(path, described(4, kind=str)), "it has kind: name it with"),
        ("y/a.tar", lambda path: pack(path, [("a.txt", b"x"), ("a.cls", b"0")]), "txt, cls: name"),
    ],
)
def test_mistakes_end_it_with_a_line(desk: Desk, file: str, make: Any, message: str) -> None:
    pack(desk.folder / "x/a.tar", labelled(range(4), "a", "b"))
    path = desk.folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    error = desk.init(file.partition("/")[0])
    assert error.startswith("dpprobe: ")
    assert len(error.splitlines()) == 1
    assert re.search(message, error), error
    assert not list(desk.folder.glob("*.yaml"))


def test_options_that_shards_have_no_use_for(desk: Desk, lesions: Path) -> None:
    pack(lesions / "a.tar", labelled(range(4), "a", "b"))
    assert "shards hold their images" in desk.init("lesions", "--root", "x")
    assert "--patient who: lesions has no key.json" in desk.init("lesions", "--patient", "who")
    assert "it would lie among the images" in desk.init("lesions", "--output", "lesions/a.yaml")


def test_each_header_and_member_is_read_once(
    desk: Desk, lesions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(lesions / "000.tar", labelled(range(30), "benign", "benign", "malignant"))
    pack(lesions / "001.tar", labelled(range(30, 60), "benign", "benign", "malignant"))
    shards: list[Path] = []
    members: list[tuple[Path, int]] = []
    read_samples, read_at = tar_shards.read_samples, tar_shards.read_at

    def counted_samples(shard: Path) -> Any:
        shards.append(shard)
        return read_samples(shard)

    def counted_member(shard: Path, offset: int, size: int) -> bytes:
        members.append((shard, offset))
        return read_at(shard, offset, size)

    monkeypatch.setattr(tar_shards, "read_samples", counted_samples)
    monkeypatch.setattr(tar_shards, "read_at", counted_member)
    assert "lesions: 60 images, 2 classes" in desk.init("lesions")
    assert len(shards) == len(set(shards)) == 2
    assert len(members) == len(set(members)) == 60
