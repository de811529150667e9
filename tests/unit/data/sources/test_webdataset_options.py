"""Options of tar shards: which files they name; wrong ones are refused before reading any file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.data.registry import dataset_options
from dpprobe.errors import ConfigError
from tests.support.shards import CLASSES, pack, samples


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in (
        "t.tar",
        "deep/a.tar",
        "deep/more/b.tar",
        "noted/a.tar",
        "hidden/a.tar",
        "plain/a.tar",
    ):
        pack(tmp_path / name, samples(0, 4))
    for name in (
        "t.tar.gz",
        "mixed/a.tar",
        "mixed/b.tgz",
        "plain/in/b.tgz",
        "empty/._a.tar",
        "hidden/.b.tar",
    ):
        pack(tmp_path / name, samples(0, 2))
    for number in range(11):
        pack(tmp_path / f"many/{number}.tar", samples(0, 2))
    (tmp_path / "noted/b.tar").mkdir()
    (tmp_path / "noted/b.tar/x.txt").touch()
    (tmp_path / "blank.tar").touch()
    pack(tmp_path / "nothing.tar", [])
    for kind in ("gz", "bz2", "xz"):
        pack(tmp_path / f"in_{kind}.tar", samples(0, 4), mode=f"w:{kind}")
    return tmp_path


def of(train: Any = "t.tar", **changed: Any) -> Any:
    given = {"source": "webdataset", "train": train, "class_names": CLASSES}
    return dataset_options(given | changed)


@pytest.mark.parametrize(
    ("train", "shards"),
    [
        ("t.tar", ["t.tar"]),
        ("many", sorted(f"many/{number}.tar" for number in range(11))),
        ("many/1*.tar", ["many/1.tar", "many/10.tar"]),
        (["many/9.tar", "many/1*.tar"], ["many/9.tar", "many/1.tar", "many/10.tar"]),
        ("noted", ["noted/a.tar"]),
        ("hidden", ["hidden/a.tar"]),
        (["nothing.tar", "t.tar"], ["nothing.tar", "t.tar"]),
        (["deep/*.tar", "deep/more/*.tar"], ["deep/a.tar", "deep/more/b.tar"]),
    ],
)
def test_shards_are_sorted_by_pattern_and_then_alphabetically(
    folder: Path, train: Any, shards: list[str]
) -> None:
    options = of(train, test="t.tar")
    options.check_files()
    assert [*map(str, options.list_shards("train"))] == shards
    assert options.input_files() == (*shards, "t.tar")
    assert options.image_files() == tuple(str(folder / name) for name in (*shards, "t.tar"))
    assert options.has_test()
    assert not of(train).has_test()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("none", "train: no .tar file none; correct the path or put the shards there"),
        ("empty", "train: no .tar file in the folder empty"),
        ("t-{000..009}.tar", r"braces are not expanded; write t-\*\.tar, or a list"),
        (["t.tar", "*.none"], r"train: no .tar file \*.none"),
        ("t.tar.gz", "t.tar.gz is not a plain .tar file; unpack it if it is compressed"),
        ("mixed", "mixed: b.tgz is not a plain .tar file"),
        ("deep", r"deep also has shards in a folder, such as deep/more/b.tar; name both"),
        ("plain", r"plain also has shards in a folder, such as plain/in/b.tgz"),
        (["t.tar", "t.*"], r"train: t.\*: t.tar.gz is not a plain .tar"),
        (["many/1.tar", "many"], "train: many/1.tar is named twice; remove one"),
        *(
            (f"in_{kind}.tar", "train: .*compressed, so single images")
            for kind in ("gz", "bz2", "xz")
        ),
        ("blank.tar", "train: blank.tar: empty; fetch the shard again"),
    ],
)
def test_missing_or_compressed_shards_are_refused(train: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        of(train).check_files()
    with pytest.raises(ConfigError, match=message.replace("train: ", "test: ")):
        of(test=train).check_files()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"several_labels": True}, "several_labels needs label_column; name the field"),
        ({"id_column": "x", "shard_in_id": True}, "shard_in_id: id_column already names the ids"),
        ({"class_names": ["a"]}, "class_names"),
        ({"class_names": ["cat", "Cat"]}, "'cat' and 'Cat' are spellings of one name"),
        ({"class_names": ["cat", "cat"]}, "a name appears twice"),
        ({"max_images_per_patient": 3}, "max_images_per_patient: 3 needs a unit_column"),
        ({"group_columns": ["a", "group_a"]}, "two groups would be named 'group_a'"),
    ],
)
def test_options_that_contradict_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        of(**changed)


def test_rows_are_counted_only_once_they_are_read() -> None:
    options = of(several_labels=True, label_column="label", class_names=["a", "b", "c"])
    assert options.count_classes() == 3
    assert options.multi_label()
    assert not of().multi_label()
    assert of().count_rows() is of().count_units() is of().count_class_units() is None
    assert of(expect={"train": 9, "test": 3}).count_rows() == (9, 3)


def test_a_split_s_key_has_what_names_a_row() -> None:
    keys = [
        of(split_by="id", **changed).public_split().key
        for changed in ({}, {"shard_in_id": True}, {"id_column": "x"}, {"unit_column": "who"})
    ]
    assert len({*keys}) == 4
    with_patients = of(split_by="id", unit_column="who", id_column="x").public_split()
    assert with_patients.key == keys[3]
    own = [of(test=name).public_split() for name in ("deep/a.tar", "many")]
    assert own[0].key != own[1].key
    assert {each.rule for each in own} == {"source"}
