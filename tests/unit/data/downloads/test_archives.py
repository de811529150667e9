"""An archive is unpacked completely and inside its folder, or not at all."""

from __future__ import annotations

import errno
import gzip
import io
import random
import stat
import tarfile
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from dpprobe.data.downloads import archives
from dpprobe.errors import DataError
from dpprobe.files import plain_files
from tests.support.sources import read_folder

NOISE = random.Random(0).randbytes(50_000)
FILES = {"a/one.bin": NOISE, "a/deep/two.bin": b"two", "b/ONE.txt": b"", "b/one.txt": b"x" * 5000}
TARS = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.bz2": "w:bz2", ".tar.xz": "w:xz"}


def make_zip(path: Path, files: dict[str, bytes], *, kinds: dict[str, int] | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = ((kinds or {}).get(name, stat.S_IFREG) | 0o644) << 16
            packed.writestr(info, content)
    return path


def make_tar(path: Path, files: dict[str, bytes], *others: tarfile.TarInfo) -> Path:
    suffix = next(each for each in sorted(TARS, key=len)[::-1] if path.name.endswith(each))
    with tarfile.open(path, TARS[suffix]) as packed:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
        for other in others:
            packed.addfile(other)
    return path


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def make(path: Path, files: dict[str, bytes]) -> Path:
    return make_zip(path, files) if path.suffix == ".zip" else make_tar(path, files)


def refused(archive: Path) -> str:
    """Returns the error's text; checks that unpacking left no files behind."""
    before = sorted(archive.parent.rglob("*"))
    with pytest.raises(DataError) as caught:
        archives.extract_archive(archive, archive.parent / "out")
    assert sorted(archive.parent.rglob("*")) == before
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(archive))
    return str(caught.value)


@pytest.mark.parametrize("suffix", [".zip", *TARS])
def test_an_archive_is_unpacked(tmp_path: Path, suffix: str) -> None:
    junk = {"__MACOSX/a/._one.bin": b"", "a/.DS_Store": b"", "a/__MACOSX/x": b""}
    archive = tmp_path / f"data{suffix}"
    here = [] if suffix == ".zip" else [member(".", tarfile.DIRTYPE)]
    _ = make_tar(archive, FILES | junk, *here) if here else make(archive, FILES | junk)
    assert archives.folder_name(archive.name) == "data"
    archives.extract_archive(archive, tmp_path / "out")
    assert read_folder(tmp_path / "out") == FILES
    assert {each.name for each in tmp_path.iterdir()} == {
        archive.name,
        "out",
        ".out.extracted.json",
    }


def test_folder_name_returns_none_for_names_that_are_not_archives() -> None:
    for name in ("data.parquet", "data.csv.gz", ".zip", "zip", "data"):
        assert archives.folder_name(name) is None


def test_an_archive_is_unpacked_again_only_if_its_content_changed(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "data.zip", FILES)
    archives.extract_archive(archive, tmp_path / "out")
    before = (tmp_path / "out").stat().st_ino
    archives.extract_archive(archive, tmp_path / "out")
    assert (tmp_path / "out").stat().st_ino == before
    make_zip(archive, {"new": b"1"})
    archives.extract_archive(archive, tmp_path / "out")
    assert read_folder(tmp_path / "out") == {"new": b"1"}


def test_what_an_interrupted_one_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make_zip(tmp_path / "data.zip", FILES)
    # A killed process cannot clean up.
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", Mock(side_effect=KeyboardInterrupt))
        patch.setattr("shutil.rmtree", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            archives.extract_archive(archive, tmp_path / "out")
    (left,) = tmp_path.glob(".out.extracting-*")
    assert any(left.iterdir())
    assert not (tmp_path / "out").exists()
    archives.extract_archive(archive, tmp_path / "out")
    assert read_folder(tmp_path / "out") == FILES
    assert not left.exists()


def encrypted(packed: bytearray) -> bytearray:
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # flags of the first entry
        packed[packed.index(signature) + offset] |= 1
    return packed


def changed(packed: bytearray) -> bytearray:
    packed[len(packed) // 2] ^= 0xFF
    return packed


Edit = Callable[[bytearray], bytearray]
OUTSIDE, DAMAGED = "lies outside the target folder", "damaged or truncated"
LEADS_OUT = "member 'link' is a device, or leads outside the target folder"
LINKS = [
    (tarfile.SYMTYPE, "../outside"),
    (tarfile.SYMTYPE, "/etc/passwd"),
    (tarfile.LNKTYPE, "../outside"),
    (tarfile.CHRTYPE, ""),
    (tarfile.BLKTYPE, ""),
    (tarfile.FIFOTYPE, ""),
]
# Suffix, files, other members, an edit of the archive's bytes, and the message. A tar without a
# checksum does not show a changed byte; only the checksum of the whole file does.
REFUSED: list[tuple[str, dict[str, bytes], list[tarfile.TarInfo], Edit | None, str]] = [
    *(
        (suffix, {"good": b"1", name: b"evil"}, [], None, f"member {name!r} {OUTSIDE}")
        for suffix in (".zip", ".tar", ".tar.gz")
        for name in ("../evil", "a/../../evil", "/evil", "..\\evil", "C:\\evil", "C:evil")
    ),
    *((".tar", FILES, [member("link", *link)], None, LEADS_OUT) for link in LINKS),
    (".zip", FILES, [], encrypted, "a/one.bin"),
    (".zip", FILES, [], encrypted, "is encrypted, password required for extraction); unpack it"),
    *(
        (suffix, FILES, [], lambda packed, part=part: packed[: int(part * len(packed))], DAMAGED)
        for suffix in (".zip", *TARS)
        for part in (0.0, 0.3, 0.6, 0.9)
    ),
    *((suffix, FILES, [], changed, DAMAGED) for suffix in (".zip", ".tar.bz2", ".tar.xz")),
    (".zip", {"a": b"1", "a/b": b"2"}, [], None, "); correct the permissions, or replace"),
]


@pytest.mark.parametrize(("suffix", "files", "others", "edit", "said"), REFUSED)
def test_a_damaged_or_hostile_archive_is_refused(
    tmp_path: Path,
    suffix: str,
    files: dict[str, bytes],
    others: list[tarfile.TarInfo],
    edit: Edit | None,
    said: str,
) -> None:
    archive = tmp_path / f"data{suffix}"
    _ = make_tar(archive, files, *others) if others else make(archive, files)
    if edit:
        archive.write_bytes(edit(bytearray(archive.read_bytes())))
    text = refused(archive)
    assert said in text
    assert ("Do not trust this archive" in text) == (OUTSIDE in said or said == LEADS_OUT)


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz", ".tar.xz"])
def test_archives_with_an_extreme_compression_ratio_are_refused(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, files = tmp_path / f"data{suffix}", {"zeros": bytes(10**6)}
    archive = path if suffix == ".zip" else make_tar(path, files)
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("zeros", files["zeros"])
    assert archive.stat().st_size < 10**4
    monkeypatch.setattr(plain_files, "ALWAYS_READ", 10**5)
    assert "less than 1/100" in refused(archive)
    monkeypatch.undo()
    archives.extract_archive(archive, tmp_path / "data")  # small files may have any ratio


def test_a_link_that_stays_inside_is_kept(tmp_path: Path) -> None:
    link = member("a/link.bin", tarfile.SYMTYPE, "one.bin")
    archives.extract_archive(make_tar(tmp_path / "data.tar", FILES, link), tmp_path / "out")
    assert read_folder(tmp_path / "out") == {**FILES, "a/link.bin": NOISE}


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_a_disk_that_fills(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "full"))
    archive = make(tmp_path / f"data{suffix}", FILES)
    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "extract", full)
        patch.setattr(tarfile.TarFile, "extract", full)
        assert "the disk filled up while the archive was unpacked" in refused(archive)
    archives.extract_archive(archive, tmp_path / "out")


@pytest.mark.parametrize("earlier", [True, False])
def test_a_refused_archive_leaves_what_was_there(tmp_path: Path, earlier: bool) -> None:
    if earlier:
        archives.extract_archive(make_zip(tmp_path / "data.zip", FILES), tmp_path / "out")
    make_zip(tmp_path / "data.zip", {"../evil": b""})
    with pytest.raises(DataError):
        archives.extract_archive(tmp_path / "data.zip", tmp_path / "out")
    assert (tmp_path / "out").exists() == earlier
    assert not earlier or read_folder(tmp_path / "out") == FILES


def test_a_gzip_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "COPY_BYTES", 30_000)
    archive, target = tmp_path / "file.gz", tmp_path / "raw" / "file"
    archive.write_bytes(gzip.compress(NOISE))
    archives.decompress_file(archive, target, largest=len(NOISE))
    assert target.read_bytes() == NOISE
    packed = gzip.compress(NOISE)
    for data, largest, said in (
        (packed, len(NOISE) - 1, "larger than the expected 49999 bytes; replace it"),
        (packed[:-5], len(NOISE), "damaged or truncated"),
        (b"x" + packed, len(NOISE), "damaged or truncated"),
    ):
        archive.write_bytes(data)
        with pytest.raises(DataError, match=said):
            archives.decompress_file(archive, tmp_path / "raw" / "other", largest=largest)
        assert [each.name for each in (tmp_path / "raw").iterdir()] == ["file"]


@pytest.mark.parametrize(
    "change",
    [
        lambda out: out.rename(out.with_name("elsewhere")),
        lambda out: (out / "a/one.bin").unlink(),
        lambda out: (out / "a/one.bin").write_bytes(NOISE[:-1]),
        lambda out: (out / "b/three.txt").write_bytes(b""),
        lambda out: out.with_name(".out.extracted.json").unlink(),
        lambda out: out.with_name(".out.extracted.json").write_text("[]"),
        lambda out: out.with_name(".out.extracted.json").write_text("{"),
    ],
)
def test_a_folder_that_changed_is_unpacked_again(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    archive, out = make_zip(tmp_path / "data.zip", FILES), tmp_path / "out"
    archives.extract_archive(archive, out)
    change(out)
    archives.extract_archive(archive, out)
    assert read_folder(out) == FILES


def test_two_runs_unpack_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make_zip(tmp_path / "data.zip", FILES)
    list_members, runs = zipfile.ZipFile.infolist, []
    entered, waiting = threading.Event(), threading.Event()

    def slow(packed: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
        runs.append(packed)
        entered.set()
        waiting.wait(0.5)
        return list_members(packed)

    monkeypatch.setattr(zipfile.ZipFile, "infolist", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(archives.extract_archive, archive, tmp_path / "out")
        assert entered.wait(10)
        second = pool.submit(archives.extract_archive, archive, tmp_path / "out")
        first.result(20)
        second.result(20)
    assert len(runs) == 1
    assert read_folder(tmp_path / "out") == FILES
    assert {each.name for each in tmp_path.iterdir()} == {"data.zip", "out", ".out.extracted.json"}
