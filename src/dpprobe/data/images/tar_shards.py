"""Finds and reads the images in tar files of samples, as WebDataset writes them.

Members whose names agree up to the first dot of the file name are one sample: `n01/a.jpg` and
`n01/a.cls` are the sample `n01/a`. Nothing is unpacked: an image's path contains the offset and
size of its bytes,

    shards/train-000.tar#offset=1536,size=48213,member=n01/a.jpg

so any process can read any row without searching the tar. Headers are read by Python's tarfile,
because webdataset's readers neither give offsets nor fail on a truncated tar.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import tarfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dpprobe.counted_nouns import count_noun
from dpprobe.data.images.image_files import EXTENSIONS, is_helper, is_image_start
from dpprobe.data.people.alike_names import is_text
from dpprobe.errors import DataError
from dpprobe.files.plain_files import require_plain_file

logger = logging.getLogger("dpprobe")

SUFFIX = ".tar"
# Suffixes of tar files; compressed files are refused with an error, not skipped silently.
_SUFFIXES = (SUFFIX, ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
# Names of samples' files; excludes dot files (from macOS), and WebDataset's __index__/ etc.
_NAME = re.compile(r"(?!__[^/]*__/)((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
_PLACE = re.compile(r"(.+?)#offset=(\d+),size=(\d+),member=(.+)", re.DOTALL)
_BLOCK = 512
_NAME_BYTES = 100  # length of the name in a tar header
# The longest run of zeros at a tar's end: two end blocks, and padding (GNU tar: to 10 KiB).
_LONGEST_END = 1 << 20
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_REMEDY = "fetch the shard again or pack it again"


class Member(NamedTuple):
    """One file of a sample, with the offset of its bytes in the tar."""

    name: str
    offset: int
    size: int


class Sample(NamedTuple):
    """A key's members by lower-case extension; `twice` lists extensions that occur again."""

    key: str
    members: dict[str, Member]
    twice: list[str]


def list_tars(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if is_tar(path) and not path.is_dir())


def is_tar(path: Path) -> bool:
    return path.name.lower().endswith(_SUFFIXES) and not path.name.startswith(".")


def member_path(shard: Path, member: Member) -> str:
    """Returns the path of an image inside a tar, as split tables store paths."""
    return f"{shard}#offset={member.offset},size={member.size},member={member.name}"


def read_image_bytes(path: str) -> bytes:
    """Reads an image file, or an image in a tar by offset; ValueError for an impossible path."""
    place = _PLACE.fullmatch(path)
    if place is None:
        require_plain_file(Path(path))
        return Path(path).read_bytes()
    return read_at(Path(place[1]), int(place[2]), int(place[3]))


def read_at(shard: Path, offset: int, size: int) -> bytes:
    """Reads bytes of a tar file, in any thread; raises OSError if the file ends too early."""
    require_plain_file(shard)
    status = shard.stat()
    stream = _open_tar(str(shard.absolute()), status.st_ino, status.st_mtime_ns, status.st_size)
    parts = []
    while size and (part := os.pread(stream.fileno(), size, offset)):
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    if size:
        raise OSError(errno.EIO, "the shard ends before it")
    return b"".join(parts)


@lru_cache(maxsize=16)
def _open_tar(shard: str, *_state: int) -> BinaryIO:
    """Keeps a few tar files open, because neighbouring rows are in the same file."""
    return Path(shard).open("rb")


def check_first(shard: Path) -> None:
    """Raises DataError if a tar has no first header, or is compressed."""
    next(_list_members(shard), None)


def read_samples(shard: Path, unnamed: list[Member]) -> Iterator[Sample]:
    """Yields the samples of a tar in the order of their first members; only headers are read.

    Appends members whose names have no key to `unnamed`. Raises DataError, naming the shard and the
    last intact member, if the tar is damaged, truncated or compressed.
    """
    samples: dict[str, Sample] = {}
    left_out: list[str] = []
    for member in _list_members(shard):
        if any(map(is_helper, member.name.removeprefix("./").split("/")[:-1])):
            left_out.append(member.name)
            continue
        named = _NAME.fullmatch(member.name)
        if named is None:
            unnamed.append(member)
            continue
        key, extension = named[1], named[2].lower()
        sample = samples.setdefault(key, Sample(key, {}, []))
        if extension in sample.members:
            sample.twice.append(extension)
        else:
            sample.members[extension] = member
    if left_out:
        _tell_left_out(shard, len(left_out), left_out[0])
    yield from samples.values()


@lru_cache
def _tell_left_out(shard: Path, files: int, first: str) -> None:
    """Warns of files in folders that systems add, only once although every check reads the tar."""
    logger.warning("%s: %s left out, such as %s", shard, count_noun(files, "file"), first)


def holds_image(shard: Path, member: Member) -> bool:
    """Returns True for a member with the extension, or the first bytes, of an image."""
    name = member.name.rpartition("/")[2].lower()
    if not name.startswith(".") and any(f".{part}" in EXTENSIONS for part in name.split(".")[1:]):
        return True  # files with a leading dot are excluded, because macOS gives them any extension
    return is_image_start(read_at(shard, member.offset, min(member.size, _BLOCK)))


def _list_members(shard: Path) -> Iterator[Member]:
    """Yields the regular files of a tar.

    tarfile stops silently at a damaged header after the first member, at zeros, or if the file ends
    at a header. So the bytes after the last member are checked too.
    """
    last = "its start"
    try:
        require_plain_file(shard)
        with shard.open("rb") as stream:
            _check_head(shard, stream)
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                while (info := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined]  # keeps memory constant
                    last = info.name
                    if info.isreg():
                        if info.issparse():  # a sparse file's bytes in the tar are not its content
                            raise DataError(f"{shard}: {last} is a sparse file; pack it again")
                        _check_name(shard, info, stream)
                        yield Member(info.name.removeprefix("./"), info.offset_data, info.size)
                    elif not info.isdir():
                        raise DataError(
                            f"{shard}: {last} is a link or a device, not a file; pack it "
                            "again (tar --dereference)"
                        )
                stream.seek(tar.offset)
                end = stream.read(_LONGEST_END + 1)
    except (OSError, tarfile.TarError) as error:
        line = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{shard}: cannot be read after {last} ({line}); {_REMEDY}") from error
    if fault := _end_fault(end):
        raise DataError(f"{shard}: {fault.format(last)}; {_REMEDY}")


def _check_name(shard: Path, info: tarfile.TarInfo, stream: BinaryIO) -> None:
    """Refuses a name that is not UTF-8, or that contains NUL, where tarfile would cut the name."""
    if not is_text(info.name):
        raise DataError(f"{shard}: a file name is not UTF-8, {info.name!r}; pack it again")
    size = min(info.offset_data - info.offset, _LONGEST_END)
    blocks = os.pread(stream.fileno(), size, info.offset)
    names = [info.name, blocks[-_BLOCK:][:_NAME_BYTES].rstrip(b"\0")]
    if blocks[156:157] == tarfile.GNUTYPE_LONGNAME:
        names.append(blocks[_BLOCK:-_BLOCK].rstrip(b"\0"))
    if any(("\0" if isinstance(name, str) else b"\0") in name for name in names):
        raise DataError(
            f"{shard}: a file name contains a NUL character, {info.name!r}; pack it again"
        )


def _end_fault(end: bytes) -> str | None:
    """Returns the error in the bytes after the last member, if any."""
    if end[:_BLOCK].strip(b"\0"):
        return "damaged after {} (no header follows)"
    if len(end) < _BLOCK:
        return "truncated after {} (the end mark is missing)"
    if end.strip(b"\0"):
        return "damaged after {} (data follows its end, as in a file that joins two tars)"
    if len(end) > _LONGEST_END:
        return "damaged after {} (zeros instead of members)"
    return None


def _check_head(shard: Path, stream: BinaryIO) -> None:
    head = stream.read(_BLOCK)
    stream.seek(0)
    if head.startswith(_COMPRESSED):
        raise DataError(
            f"{shard}: compressed, so single images cannot be read from it; unpack it to a "
            "plain .tar (gunzip, bunzip2, unxz, unzstd)"
        )
    if not head:
        raise DataError(f"{shard}: empty; {_REMEDY}")
