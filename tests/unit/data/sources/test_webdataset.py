"""Tar shards: rows and offsets as the tars have them, and every fault by shard and key."""

from __future__ import annotations

import io
import tarfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.data import dataset_preparation
from dpprobe.data.images import tar_shards
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources import webdataset_rows
from dpprobe.data.table import decode_image
from dpprobe.errors import DataError
from tests.support.shards import CLASSES, pack, png, samples
from tests.support.sources import prepare


def given(path: Path | str, **values: Any) -> dict[str, Any]:
    return {"source": "webdataset", "train": str(path), "class_names": CLASSES} | values


def two_shards(folder: Path, **more: Any) -> Path:
    pack(folder / "a-000.tar", samples(0, 12, **more))
    pack(folder / "a-001.tar", samples(12, 8, **more))
    return folder


def in_capitals(members: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Members with the ends of their names in capitals, which name the same parts of a sample."""
    return [
        (f"{name.partition('.')[0]}{Path(name).suffix.upper()}", data) for name, data in members
    ]


def test_any_row_is_read_by_its_place_alone(tmp_path: Path) -> None:
    shards = two_shards(tmp_path / "shards")
    test = str(pack(tmp_path / "t.tar", samples(90, 2)))
    table, _ = prepare(tmp_path / "out", **given(shards, test=test))
    first = shards / "a-000.tar"
    # All but the wanted image is overwritten: whoever looked through the tar would fail.
    (image,) = table.read_images(7, 8)
    assert image.path is not None
    data = tar_shards.read_image_bytes(image.path)
    assert data == png(7)
    kept = first.read_bytes()
    at = kept.index(data)
    first.write_bytes(b"\xff" * at + data + b"\xff" * (len(kept) - at - len(data)))
    assert np.unique(np.asarray(decode_image(image, split="train"))).tolist() == [7]


def test_a_shard_that_changed_is_refused_by_name(tmp_path: Path) -> None:
    shards = two_shards(tmp_path / "shards")
    test = str(pack(tmp_path / "t.tar", samples(90, 2)))
    table, _ = prepare(tmp_path / "out", **given(shards, test=test))
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
    train, test = prepare(tmp_path / "out", **given(path, test_fraction=0.34))
    assert train.rows + test.rows == 6
    assert "6 files of shards not used, such as README in" in caplog.text


# what is wrong with a shard


def damage(path: Path, where: bytes, keep: int = 512) -> None:
    """Overwrites the header of a member."""
    data = path.read_bytes()
    at = data.index(where)
    path.write_bytes(data[:at] + b"\1" * keep + data[at + keep :])


def cut(path: Path, where: bytes, after: int = 0) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: data.index(where) + after])


def zeros(path: Path) -> None:
    """A file whose room was taken and whose end was never written."""
    cut(path, b"n01/0005.cls")
    with path.open("ab") as stream:
        stream.truncate(path.stat().st_size + (2 << 20))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda p: damage(p, b"n01/0005.cls"), r"a-000\.tar: damaged after n01/0005\.png"),
        (lambda p: cut(p, b"n01/0005.cls"), r"cut short after n01/0005\.png \(the end mark"),
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
    options = dataset_options(given(shards))
    with pytest.raises(DataError, match=message) as refused:
        dataset_preparation.prepare_dataset(options, tmp_path / "out")
    assert "pack it again" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out/dataset.json").exists()


def test_zeros_at_the_end_of_a_shard_have_bounds(tmp_path: Path) -> None:
    path, most = pack(tmp_path / "a.tar", samples(0, 4)), tar_shards._LONGEST_END
    used = path.read_bytes().rstrip(b"\0")
    used += bytes(-len(used) % 512)
    for left, good in ((511, False), (512, True), (most, True), (most + 1, False)):
        path.write_bytes(used + bytes(left))
        with (
            nullcontext() if good else pytest.raises(DataError, match=r"(cut short|zeros instead)")
        ):
            assert len([*tar_shards.read_samples(path, [])]) == 4


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
            assert sum(each.rows for each in prepare(tmp_path / "whole", **given(path))) == 4
            continue
        with pytest.raises(DataError, match=rf"a\.tar: n01/0009\.png is a {said}.*; pack it again"):
            dataset_preparation.prepare_dataset(dataset_options(given(path)), tmp_path / "out")


def test_all_damaged_shards_are_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = two_shards(tmp_path / "shards")
    for number in (3, 13):
        cut(shards / f"a-00{number // 10}.tar", f"n01/{number:04}.cls".encode())
    with pytest.raises(DataError) as refused:
        dataset_preparation.prepare_dataset(dataset_options(given(shards)), tmp_path / "out")
    one, other = str(refused.value).splitlines()
    assert "a-000.tar: cut short" in one
    assert "a-001.tar: cut short" in other
    monkeypatch.setattr(webdataset_rows, "SHOWN", 2)
    with pytest.raises(DataError, match=r"a-001.tar: cut short .* again$"):
        webdataset_rows.read_shards(dataset_options(given(shards)))  # type: ignore[arg-type]
    monkeypatch.setattr(webdataset_rows, "SHOWN", 1)
    with pytest.raises(DataError, match=r"a-000.tar: cut short .*\nand 1 more$"):
        webdataset_rows.read_shards(dataset_options(given(shards)))  # type: ignore[arg-type]


def test_a_key_stands_once(tmp_path: Path) -> None:
    pack(tmp_path / "s/a.tar", samples(0, 4))
    pack(tmp_path / "s/b.tar", [(name, data) for name, data in samples(2, 4)])
    test = str(pack(tmp_path / "t.tar", samples(20, 2)))
    with pytest.raises(DataError, match=r"b\.tar.*id 'n00/0002' appears twice"):
        prepare(tmp_path / "out", **given(tmp_path / "s", test=test))
    train, _ = prepare(tmp_path / "named", **given(tmp_path / "s", test=test, shard_in_id=True))
    assert train.read_ids()[2] == "a/n00/0002"
    assert train.read_ids()[4] == "b/n00/0002"


def test_names_of_tars_in_members_lead_nowhere(tmp_path: Path) -> None:
    other = pack(tmp_path / "other.tar", samples(50, 1))
    name = f"x#offset=0,size=9,member={other.name}"
    shard = pack(tmp_path / "a.tar", [(f"{name}.png", png(1)), (f"{name}.cls", b"0")])
    (sample,) = tar_shards.read_samples(shard, [])
    path = tar_shards.member_path(shard, sample.members["tar.png"])
    assert tar_shards.read_image_bytes(path) == png(1)
