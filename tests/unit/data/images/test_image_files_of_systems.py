"""Folders and previews that storage systems add to class folders are left out, and counted."""

from __future__ import annotations

import logging
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dpprobe.data.images import tar_shards
from dpprobe.data.sources import imagefolder
from dpprobe.draft.folder_guesses import look_at_folder
from dpprobe.release.image_sources import find_images
from tests.support.shards import png

# Files that a system adds beside cat/1.png, and the number of images among them.
ADDED = {
    "Synology": (["@eaDir/1.png/SYNOPHOTO_THUMB_M.jpg", "@eaDir/1.png/SYNOPHOTO_THUMB_XL.jpg"], 2),
    "Synology 2": (["@eaDir/1.png/SYNOFILE_THUMB_M.jpg", "SYNOPHOTO_THUMB_S.jpg"], 2),
    "QNAP": (["@__thumb/s1001.png", ".@__thumb/s800.png", "@Recycle/7.png"], 3),
    "Samba": (["#recycle/3.png", ".recycle/4.png"], 2),
    "NetApp": ([".snapshot/hourly/1.png", "~snapshot/daily/1.png"], 2),
    "Windows": (["Thumbs.db", "$RECYCLE.BIN/5.png", "System Volume Information/x.png"], 2),
    "macOS": ([".AppleDouble/1.png", "__MACOSX/._1.png", "._1.png", "Icon\r", ".DS_Store"], 3),
    "Linux": (["lost+found/9.png", ".thumbnails/normal/1.png", ".Trash-1000/files/1.png"], 3),
    "other case": (["@EADIR/1.png/a.jpg", "THUMBS.DB", "__macosx/2.png"], 2),
}


def make_folder(root: Path, added: list[str] = []) -> Path:  # noqa: B006
    names = [f"{kind}/{number}.png" for kind in ("cat", "dog") for number in range(1, 9)]
    for number, name in enumerate([*names, *(f"cat/{each}" for each in added)]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(number))
    return root


@pytest.mark.parametrize(("added", "images"), ADDED.values(), ids=ADDED)
@pytest.mark.parametrize("parts", [False, True])
def test_helpers_are_left_out_and_counted(
    tmp_path: Path, added: list[str], images: int, parts: bool
) -> None:
    for part in ("train/", "test/") if parts else ("",):
        make_folder(tmp_path / part, added if part != "test/" else [])
    options = imagefolder.Options(path=str(tmp_path))
    listing = imagefolder.list_images(options)
    assert listing.class_names == ("cat", "dog")
    listed = [len(files) for classes in listing.files.values() for files in classes.values()]
    assert listed == [8] * (4 if parts else 2)
    (line,) = options.list_warnings()
    assert f"{images} images left out, in files and folders that systems add: " in line
    assert not any("@" in str(folder) for folder in options.input_files())


@pytest.mark.parametrize("name", ["@eaDir", "#recycle", "lost+found", "$RECYCLE.BIN", "__MACOSX"])
def test_no_helper_is_a_class(tmp_path: Path, name: str) -> None:
    make_folder(tmp_path, [f"../{name}/cat/1.png"])
    seen = look_at_folder(str(tmp_path))
    assert seen.counts == {"cat": 8, "dog": 8}
    assert any("1 image left out" in note and name in note for note in seen.notes)


@pytest.mark.parametrize(
    ("added", "told"),
    [
        (
            ["small/1.png", "small/2.png"],
            "cat/small/ repeats names of its parent folder, such as 1",
        ),
        (["cat/1.jpg"], "cat/cat/ repeats names of its parent folder, such as 1"),
        (["cat/77.jpg"], "cat/cat/ repeats names of its parent folder, such as cat"),
        (["cache/1.png/m.jpg"], "cat/cache/ repeats names of its parent folder, such as 1"),
        (["web/big/3.webp", "web/big/4.webp"], "cat/web/big/ repeats names of its parent folder"),
        (["x/1.jpg", "x/2.jpg", "x/93.jpg"], "cat/x/ repeats names of its parent folder, such"),
    ],
)
def test_a_folder_that_repeats_outer_names_is_told(
    tmp_path: Path, added: list[str], told: str
) -> None:
    (line,) = imagefolder.Options(path=str(make_folder(tmp_path, added))).list_warnings()
    assert told in line


@pytest.mark.parametrize(
    "added", [["p1/a.png", "p2/a.png"], ["left/11.png", "right/11.png"], ["x/1.png", "x/12.png"]]
)
def test_other_inner_folders_are_not_told(tmp_path: Path, added: list[str]) -> None:
    options = imagefolder.Options(path=str(make_folder(tmp_path, added)))
    assert options.list_warnings() == []
    assert len(imagefolder.list_images(options).files["train"]["cat"]) == 8 + len(added)


@pytest.mark.parametrize(("added", "_images"), ADDED.values(), ids=ADDED)
def test_predictions_leave_helpers_out(
    tmp_path: Path, added: list[str], _images: int, caplog: Any
) -> None:
    with caplog.at_level(logging.WARNING, "dpprobe"):
        source = find_images([make_folder(tmp_path, added)])
    assert source.count == 16
    assert "not used, such as" in caplog.text


def test_shards_leave_helpers_out(tmp_path: Path, caplog: Any) -> None:
    folder = make_folder(tmp_path / "x", ["@eaDir/1.png/SYNOPHOTO_THUMB_M.jpg", "__MACOSX/9.png"])
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(folder, arcname=".")
    unnamed: list[tar_shards.Member] = []
    with caplog.at_level(logging.WARNING, "dpprobe"):
        samples = [*tar_shards.read_samples(tmp_path / "x.tar", unnamed)]
    assert len(samples) == 16
    assert "2 files left out, such as cat/@eaDir/1.png/SYNOPHOTO_THUMB_M.jpg" in caplog.text
