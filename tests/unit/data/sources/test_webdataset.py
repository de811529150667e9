"""Tar shards: rows and offsets match the tars, and each fault names its shard and key."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpprobe.data import dataset_preparation
from dpprobe.data.images import tar_shards
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources import webdataset_rows
from dpprobe.data.table import decode_image
from dpprobe.errors import DataError
from tests.support.shards import CLASSES, pack, png, samples
from tests.support.sources import prepare


def of_shards(path: Path | str, **values: Any) -> dict[str, Any]:
    return {"source": "webdataset", "train": str(path), "class_names": CLASSES} | values


def two_shards(folder: Path, **more: Any) -> Path:
    pack(folder / "a-000.tar", samples(0, 12, **more))
    pack(folder / "a-001.tar", samples(12, 8, **more))
    return folder


def in_capitals(members: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Writes extensions in capitals, which must not change their meaning."""
    return [
        (f"{name.partition('.')[0]}{Path(name).suffix.upper()}", data) for name, data in members
    ]


def test_any_row_is_read_only_by_its_place(tmp_path: Path) -> None:
    shards = two_shards(tmp_path / "shards")
    test = str(pack(tmp_path / "t.tar", samples(90, 2)))
    table, _ = prepare(tmp_path / "out", **of_shards(shards, test=test))
    first = shards / "a-000.tar"
    # All but the wanted image is overwritten, so reading anything else of the tar would fail.
    (image,) = table.read_images(7, 8)
    assert image.path is not None
    data = tar_shards.read_image_bytes(image.path)
    assert data == png(7)
    kept = first.read_bytes()
    at = kept.index(data)
    first.write_bytes(b"\xff" * at + data + b"\xff" * (len(kept) - at - len(data)))
    assert np.unique(np.asarray(decode_image(image, split="train"))).tolist() == [7]


def test_an_error_names_a_shard_that_changed_after_preparation(tmp_path: Path) -> None:
    shards = two_shards(tmp_path / "shards")
    test = str(pack(tmp_path / "t.tar", samples(90, 2)))
    table, _ = prepare(tmp_path / "out", **of_shards(shards, test=test))
    (image,) = table.read_images(3, 4)
    pack(shards / "a-000.tar", samples(1, 12))
    with pytest.raises(DataError, match=r"row 3 \(id n01/0003\), .*a-000\.tar.*changed since"):
        decode_image(image, split="train")
    pack(tmp_path / "new.tar", samples(2, 12)).replace(shards / "a-000.tar")
    with pytest.raises(DataError, match=r"row 3 .* changed since"):
        decode_image(image, split="train")
    (shards / "a-000.tar").write_bytes(b"short")
    with pytest.raises(DataError, match=r"cannot read .*a-000\.tar.*the shard ends before it"):
        decode_image(image, split="train")


def test_members_of_a_key_need_not_be_neighbours_and_others_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    members = [*samples(0, 3), *in_capitals(samples(3, 3))]
    pngs = [each for each in members if each[0].lower().endswith(".png")]
    others = [each for each in members if each not in pngs]
    shard = [("./README", b"x"), ("._0000.png", b"x"), *pngs, ("notes.txt", b"x"), *others]
    shard += [("__index__/all.json", b"{}"), ("n00/0000.caption", b"a cat"), ("n00/0000.seg", b"")]
    path = pack(tmp_path / "a.tar", shard)
    train, test = prepare(tmp_path / "out", **of_shards(path, test_fraction=0.34))
    assert train.rows + test.rows == 6
    assert "6 files of shards not used, such as README in" in caplog.text


# faults of shards


def damage(path: Path, where: bytes, keep: int = 512) -> None:
    """Overwrites the header of a member."""
    data = path.read_bytes()
    at = data.index(where)
    path.write_bytes(data[:at] + b"\1" * keep + data[at + keep :])


def cut(path: Path, where: bytes, after: int = 0) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: data.index(where) + after])


def zeros(path: Path) -> None:
    """Cuts a file and appends zeros, as if its end had never been written."""
    cut(path, b"n01/0005.cls")
    with path.open("ab") as stream:
        stream.truncate(path.stat().st_size + (2 << 20))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda p: damage(p, b"n01/0005.cls"), r"a-000\.tar: damaged after n01/0005\.png"),
        (lambda p: cut(p, b"n01/0005.cls"), r"truncated after n01/0005\.png \(the end mark"),
        (lambda p: cut(p, b"n01/0005.cls", 100), r"damaged after n01/0005\.png"),
        (lambda p: cut(p, png(5), 20), r"cannot be read after n01/0005\.png \(unexpected end"),
        (
            lambda p: p.write_bytes(p.read_bytes() * 2),
            r"after n01/0011\.json \(data follows its end",
        ),
        (zeros, r"damaged after n01/0005\.png \(zeros instead of members\)"),
        (lambda p: p.write_bytes(b""), r"a-000\.tar: empty"),
        (lambda p: (p.unlink(), p.symlink_to(p)), r"a-000\.tar: cannot be read after its start"),
        (lambda p: p.write_bytes(b"<html>" * 200), r"cannot be read after its start"),
        (lambda p: pack(p, [("caf\udce9.png", png(1))]), r"a-000\.tar: a file name is not UTF-8"),
    ],
)
def test_no_row_is_lost_in_silence_with_a_damaged_shard(
    tmp_path: Path, fault: Any, message: str
) -> None:
    shards = two_shards(tmp_path / "shards")
    fault(shards / "a-000.tar")
    options = dataset_options(of_shards(shards))
    with pytest.raises(DataError, match=message) as refused:
        dataset_preparation.prepare_dataset(options, tmp_path / "out")
    assert "pack it again" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out/dataset.json").exists()


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    for kind, said in (
        (tarfile.REGTYPE, "sparse file"),
        (tarfile.SYMTYPE, "link or a device"),
        (tarfile.DIRTYPE, ""),
    ):
        path = pack(tmp_path / "a.tar", samples(0, 4))
        info = tarfile.TarInfo("n01/0009.png")
        if kind == tarfile.REGTYPE:
            info.size, info.pax_headers = 3, {"GNU.sparse.map": "600,3", "GNU.sparse.size": "603"}
        info.type = kind
        with tarfile.open(path, "a", format=tarfile.PAX_FORMAT) as tar:
            tar.addfile(info, io.BytesIO(b"abc"))
        if not said:
            assert sum(each.rows for each in prepare(tmp_path / "whole", **of_shards(path))) == 4
            continue
        with pytest.raises(DataError, match=rf"a\.tar: n01/0009\.png is a {said}.*; pack it again"):
            dataset_preparation.prepare_dataset(dataset_options(of_shards(path)), tmp_path / "out")


def test_all_damaged_shards_are_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = two_shards(tmp_path / "shards")
    for number in (3, 13):
        cut(shards / f"a-00{number // 10}.tar", f"n01/{number:04}.cls".encode())
    with pytest.raises(DataError) as refused:
        dataset_preparation.prepare_dataset(dataset_options(of_shards(shards)), tmp_path / "out")
    one, other = str(refused.value).splitlines()
    assert "a-000.tar: truncated" in one
    assert "a-001.tar: truncated" in other
    monkeypatch.setattr(webdataset_rows, "SHOWN", 2)
    with pytest.raises(DataError, match=r"a-001.tar: truncated .* again$"):
        webdataset_rows.read_shards(dataset_options(of_shards(shards)))  # type: ignore[arg-type]
    monkeypatch.setattr(webdataset_rows, "SHOWN", 1)
    with pytest.raises(DataError, match=r"a-000.tar: truncated .*\nand 1 more$"):
        webdataset_rows.read_shards(dataset_options(of_shards(shards)))  # type: ignore[arg-type]


def test_duplicate_sample_keys_are_refused_unless_ids_include_the_shard(tmp_path: Path) -> None:
    pack(tmp_path / "s/a.tar", samples(0, 4))
    pack(tmp_path / "s/b.tar", [(name, data) for name, data in samples(2, 4)])
    test = str(pack(tmp_path / "t.tar", samples(20, 2)))
    with pytest.raises(DataError, match=r"b\.tar.*id 'n00/0002' appears twice"):
        prepare(tmp_path / "out", **of_shards(tmp_path / "s", test=test))
    train, _ = prepare(tmp_path / "named", **of_shards(tmp_path / "s", test=test, shard_in_id=True))
    assert train.read_ids()[2] == "a/n00/0002"
    assert train.read_ids()[4] == "b/n00/0002"


def test_member_names_cannot_redirect_reading_to_another_tar(tmp_path: Path) -> None:
    other = pack(tmp_path / "other.tar", samples(50, 1))
    name = f"x#offset=0,size=9,member={other.name}"
    shard = pack(tmp_path / "a.tar", [(f"{name}.png", png(1)), (f"{name}.cls", b"0")])
    (sample,) = tar_shards.read_samples(shard, [])
    path = tar_shards.member_path(shard, sample.members["tar.png"])
    assert tar_shards.read_image_bytes(path) == png(1)


# Samples of tar shards as rows: their content and their faults.


FIELDS = {"label_column": "label"}


def read(path: Path, **values: Any) -> list[webdataset_rows.Row]:
    written = {"source": "webdataset", "train": str(path), "class_names": CLASSES} | values
    options: Any = dataset_options(written)
    return webdataset_rows.read_shards(options)["train"]


def row_of(path: Path, members: dict[str, bytes | None], **values: Any) -> webdataset_rows.Row:
    """Returns row n01/0003 after some of its members were changed or left out."""
    given: dict[str, bytes | None] = {**dict(samples(2, 2, who=["p1", " p2 "])), **members}
    pack(path / "a.tar", [(name, data) for name, data in given.items() if data is not None])
    (row,) = [each for each in read(path / "a.tar", **values) if each.id.endswith("n01/0003")]
    return row


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 1), min_size=1, max_size=12), st.sampled_from(["cls", "json"]))
def test_rows_are_the_keys_that_were_packed(tmp_path: Path, labels: list[int], place: str) -> None:
    """Keys, labels and images are those of the shard, in its order."""
    members = []
    for number, label in enumerate(labels):
        key = f"n/{number:03}"
        field = json.dumps({"label": CLASSES[label]}).encode()
        told = (f"{key}.json", field) if place == "json" else (f"{key}.cls", str(label).encode())
        members += [(f"{key}.png", png(number)), told]
    path = pack(tmp_path / "a.tar", members)
    rows = read(path, **(FIELDS if place == "json" else {}))
    assert [row.id for row in rows] == [f"n/{number:03}" for number in range(len(labels))]
    assert [row.label for row in rows] == labels
    for number, row in enumerate(rows):
        assert row.image is not None
        assert row.faults == ()
        found = tar_shards.read_image_bytes(tar_shards.member_path(path, row.image))
        assert found == png(number)


@pytest.mark.parametrize(
    ("written", "label", "said"),
    [
        (b"0", 0, None),
        (b"1", 1, None),
        (b" dog\n", 1, None),
        (b"7", None, "n01/0003.cls is '7', which is not in class_names"),
        (b"2", None, "'2', which is not in class_names"),
        (b"-1", None, "'-1', which is not in class_names"),
        (b"Dog", None, "'Dog', which is not in class_names (write 'dog' in the file"),
        (b"\xff", None, "'\ufffd', which is not in class_names"),
        (b"", None, "'', which is not in class_names"),
        (None, None, "no member n01/0003.cls"),
    ],
)
def test_a_member_cls_has_the_class(
    tmp_path: Path, written: bytes | None, label: int | None, said: str | None
) -> None:
    row = row_of(tmp_path, {"n01/0003.cls": written})
    assert row.label == label
    assert [kind for kind, _ in row.faults] == ([] if said is None else ["label"])
    assert said is None or said in row.faults[0][1]


ONE, SEVERAL = FIELDS, FIELDS | {"several_labels": True}
NUMBERS = FIELDS | {"class_names": ["a", "1", "0"]}


@pytest.mark.parametrize(
    ("options", "written", "label", "said"),
    [
        (ONE, {"label": "dog"}, 1, None),
        (ONE, {"label": 0}, 0, None),
        (ONE, {"label": "1"}, 1, None),
        (ONE, {"label": "01"}, 1, None),
        (ONE, {"label": 2}, None, "label is '2', which is not in class_names"),
        (ONE, {"label": "\u0661"}, None, "which is not in class_names"),
        (ONE, {"label": 1.0}, None, "label is '1.0', which is not in class_names"),
        (ONE, {"label": True}, None, "label is 'True', which is not in class_names"),
        (ONE, {"label": [1]}, None, "label is '[1]', which is not in class_names"),
        (ONE, {"label": None}, None, "no field label in n01/0003.json"),
        (ONE, {}, None, "no field label in n01/0003.json"),
        (ONE, [], None, "n01/0003.json is not a mapping of fields"),
        (ONE, b"{", None, "n01/0003.json is not JSON"),
        (ONE, None, None, "no member n01/0003.json"),
        # if names are numbers, a number is read as a name
        (NUMBERS, {"label": 1}, 1, None),
        (NUMBERS, {"label": "0"}, 2, None),
        (NUMBERS, {"label": 2}, None, "label is '2', which is not in class_names"),
        (SEVERAL, {"label": [0, 1]}, [0, 1], None),
        (SEVERAL, {"label": [0, 0]}, [0, 0], None),
        *(
            (SEVERAL, {"label": label}, None, "not a list of 0 and 1 with one number per class")
            for label in ([0, 2], [True, 0], [0.0, 1], [1], [0, 1, 0], "dog", 1)
        ),
        (SEVERAL, {"label": None}, None, "no field label"),
    ],
)
def test_a_field_has_the_class_or_several(
    tmp_path: Path, options: dict[str, Any], written: Any, label: Any, said: str | None
) -> None:
    plain = written is None or isinstance(written, bytes)
    data = written if plain else json.dumps(written).encode()
    row = row_of(tmp_path, {"n01/0003.json": data}, **options)
    assert row.label == label
    assert [kind for kind, _ in row.faults] == ([] if said is None else ["label"])
    assert said is None or said in row.faults[0][1]


def test_ids_patients_and_groups_come_from_fields(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", samples(0, 4, who=["p1", " p2 ", 12, None], age=[3, 4.5]))
    rows = read(path, unit_column="who", group_columns=["age", "label"], id_column="label")
    assert [row.unit for row in rows] == ["p1", "p2", "12", ""]
    assert [row.groups for row in rows] == [("3", "cat"), ("4.5", "dog")] * 2
    assert [row.id for row in rows] == ["cat", "dog"] * 2
    assert read(path, shard_in_id=True)[0].id == "a/n00/0000"
    assert read(path)[3].id == "n01/0003"
    assert [row.unit for row in read(path)] == [""] * 4


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (["p1"], "neither a string nor a number"),
        ({}, "neither a string nor a number"),
        ("\ud800", "which contains half a character (a lone surrogate)"),
        ("p1", None),
        (12.0, None),
        (None, None),
    ],
)
@pytest.mark.parametrize(
    ("option", "kind"),
    [("unit_column", "patient"), ("id_column", "id"), ("group_columns", "value"), ("", "")],
)
def test_names_are_texts_or_numbers(
    tmp_path: Path, option: str, kind: str, value: Any, said: str | None
) -> None:
    """Fields that no option uses may have any value."""
    data = json.dumps({"label": 1, "who": value}).encode()
    named = {option: ["who"] if option == "group_columns" else "who"} if option else {}
    pack(tmp_path / "a.tar", [("a.png", png(1)), ("a.json", data)])
    (row,) = read(tmp_path / "a.tar", **FIELDS | named)
    assert [each for each, _ in row.faults] == ([kind] if said and option else [])
    assert all(f"who is {value!r}, {said}" == detail for _, detail in row.faults)
    for text in (row.id, row.unit, *row.groups):
        text.encode()  # fails for half of a surrogate pair


@pytest.mark.parametrize(
    ("members", "kind", "said"),
    [
        ({"n01/0003.png": None}, "missing", "no image, only cls, json"),
        ({"n01/0003.jpg": png(9)}, "missing", "images png and jpg of one key; remove one"),
        ({"n01/0003.PNG": png(9)}, "id", "key 'n01/0003' has png twice"),
        ({"n01/0003.png": None, "n01/0003.json": None}, "missing", "no image, only cls"),
    ],
)
def test_a_key_has_one_image(
    tmp_path: Path, members: dict[str, bytes | None], kind: str, said: str
) -> None:
    assert row_of(tmp_path, members).faults == ((kind, said),)


@pytest.mark.parametrize(
    "name", ["n01/0003.txt", "n01/0009.txt", "notes", "n01/0003.caption", "__index__/all.json"]
)
def test_files_of_no_row_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    assert row_of(tmp_path, {name: b"x"}).faults == ()
    assert f"1 file of shards not used, such as {name} in" in caplog.text


@pytest.mark.parametrize("name", ["n01/0003.json", ".hidden.png", "n01/0009.seg"])
def test_shard_members_that_are_not_images_cause_no_fault(tmp_path: Path, name: str) -> None:
    assert row_of(tmp_path, {name: b"{}"}).faults == ()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("n01/0003.v2.png", b"x"),
        ("n01/0003.png.bak", b"x"),
        ("n01/0003.bak.png.gz", b"x"),
        ("n01/0009.seg", png(9)),
        ("visit001", png(9)),
        ("__extra__/9.jpg", b"\xff\xd8\xff"),
        *(
            ("scan", start)
            for start in (
                b"\0" * 128 + b"DICM",
                b"\0\0\0\x18ftypheix",
                b"GIF89a",
                b"RIFF\0\0\0\0WEBP",
                b"MM\0*",
                b"II*\0",
            )
        ),
    ],
)
def test_an_image_of_no_row_is_refused(tmp_path: Path, name: str, data: bytes) -> None:
    with pytest.raises(DataError, match="1 image would be in no row, such as .*a.tar") as caught:
        row_of(tmp_path, {name: data})
    assert f"such as {name} in" in str(caught.value)
    assert "Rename the images" in str(caught.value)


@pytest.mark.parametrize("start", [b"\0\0\0\x18ftypmp42", b"RIFF\0\0\0\0heic", b"DICM"])
def test_other_file_types_are_not_treated_as_images(tmp_path: Path, start: bytes) -> None:
    assert row_of(tmp_path, {"scan": start}).faults == ()


def test_batches_have_the_rows_and_their_places(tmp_path: Path) -> None:
    """A row with an image refers to its path, a row without an image refers to its shard."""
    members = dict(samples(0, 4, who=["p1", "p2"]))
    del members["n01/0003.png"]
    path, test = (pack(tmp_path / name, [*members.items()]) for name in ("a.tar", "b.tar"))
    options: Any = dataset_options(
        {"source": "webdataset", "train": str(path), "test": str(test), "class_names": CLASSES}
        | {"unit_column": "who", "group_columns": ["label"], "max_images_per_patient": 1}
    )
    parts = webdataset_rows.read_shards(options)
    made = {name: part.to_pydict() for name, part in webdataset_rows.make_batches(options, parts)}
    train, tested = made["train"], made["test"]
    assert train["id"] == ["n00/0000", "n01/0001"]
    assert train["unit"] == ["p1", "p2"]
    assert train["group_label"] == ["cat", "dog"]
    assert tested["label"] == [0, 1, 0, 1]
    assert tested["origin"] == ["", "", "", str(test)]
    assert [each["path"] is None for each in tested["image"]] == [False] * 3 + [True]
    for row, image in enumerate(tested["image"][:3]):
        assert tar_shards.read_image_bytes(image["path"]) == png(row)
    assert all("has images in both splits" in each[0][1] for each in train["faults"])
