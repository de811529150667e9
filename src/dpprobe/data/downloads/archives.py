"""Unpacks a zip or tar archive into one folder, completely or not at all."""

from __future__ import annotations

import errno
import gzip
import logging
import lzma
import os
import secrets
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath

from filelock import FileLock, Timeout

from dpprobe.errors import DataError
from dpprobe.files import atomic_writes, disk_errors, json_files, plain_files
from dpprobe.progress import Progress

logger = logging.getLogger("dpprobe")

# Error numbers (errno) of a file system that cannot lock files.
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}

ZIP_SUFFIX = ".zip"
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
# Files that macOS adds to archives, which do not belong to the dataset.
IGNORED_FOLDER = "__MACOSX"
IGNORED_FILE = ".DS_Store"
COPY_BYTES = 1 << 20
# The errors that Python's modules for archives and compression raise for damaged files.
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, struct.error)


def folder_name(name: str) -> str | None:
    """Returns the name of an archive's folder, which has no suffix; None for other files."""
    for suffix in (ZIP_SUFFIX, *TAR_SUFFIXES):
        if name.lower().endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return None


def extract_archive(archive: Path, directory: Path, *, sha256: str | None = None) -> None:
    """Unpacks an archive into `directory`, and removes everything else from `directory`.

    Does not check that members are complete, because the archive's checksum was verified earlier.

    The archive is unpacked into a temporary folder, which then replaces `directory`. Errors leave
    `directory` unchanged. Waits while another process unpacks into `directory`. Does nothing if
    `directory` already has this archive's content, judged by numbers of files and bytes.

    Raises DataError, naming archive and member, for paths outside the folder and damaged members.

    Args:
      archive: a zip file, or a tar file, which may be compressed by gzip, bzip2 or xz.
      directory: the folder to unpack into; replaced if it contains another archive's content.
      sha256: the archive's hash; computed if None.
    """
    mark = directory.with_name(f".{directory.name}.extracted.json")
    state = {"archive": archive.name, "sha256": sha256 or plain_files.sha256_file(archive)}
    if _is_whole(directory, mark, state):
        return
    with _explain_errors(archive, directory), _lock_folder(directory):
        if _is_whole(directory, mark, state):
            return
        prefix = f".{directory.name}.extracting"
        for left in directory.parent.iterdir():  # removes temporary folders of killed processes
            if left.name.startswith(prefix):
                _remove_folder(left)
        temporary = directory.with_name(f"{prefix}-{secrets.token_hex(4)}")
        try:
            temporary.mkdir()
            if archive.name.lower().endswith(ZIP_SUFFIX):
                _extract_zip(archive, temporary)
            else:
                _extract_tar(archive, temporary)
            mark.unlink(missing_ok=True)
            _remove_folder(directory)
            # If the process dies before the rename, `_is_whole` finds no folder for the mark.
            json_files.write_json(mark, {**state, **_count_contents(temporary)})
            temporary.replace(directory)
        except BaseException:
            _remove_folder(temporary)
            raise
        atomic_writes.flush_to_disk(directory.parent)


def _is_whole(directory: Path, mark: Path, state: dict[str, str]) -> bool:
    """Returns True if a folder has the archive's content, judged by numbers of files and bytes."""
    if not directory.is_dir() or not mark.is_file():
        return False
    try:
        known = json_files.read_json(mark)
    except ValueError:
        return False
    return bool(known == {**state, **_count_contents(directory)})


def _count_contents(folder: Path) -> dict[str, int]:
    sizes = [
        os.lstat(f"{place}/{name}").st_size for place, _, names in os.walk(folder) for name in names
    ]
    return {"files": len(sizes), "bytes": sum(sizes)}


@contextmanager
def _lock_folder(directory: Path) -> Iterator[None]:
    """Keeps other processes from unpacking into a folder at the same time."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    path = directory.with_name(f".{directory.name}.lock")
    # A lock file left by a job that was killed on another machine must not block other jobs.
    lock = FileLock(path, fallback_to_soft=False)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            logger.warning(
                "%s: another process is unpacking it; waiting for that process", directory
            )
            lock.acquire()
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in NO_LOCKS:
            raise
        logger.warning("%s: cannot be locked (%s)", path, error)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the release, so that others lock a new file
        lock.release()


def decompress_file(archive: Path, path: Path, *, largest: int) -> None:
    """Unpacks a gzip file; raises DataError if it is damaged or unpacks to over `largest` bytes."""
    with (
        _explain_errors(archive, path.parent),
        atomic_writes.atomic_path(path) as temporary,
        gzip.open(archive) as packed,
        temporary.open("wb") as stream,
    ):
        while chunk := packed.read(COPY_BYTES):
            if stream.tell() + len(chunk) > largest:
                raise DataError(f"{archive}: larger than the expected {largest} bytes; replace it")
            stream.write(chunk)


def _remove_folder(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


@contextmanager
def _explain_errors(archive: Path, directory: Path) -> Iterator[None]:
    """Turns the errors of damaged archives and full disks into one line."""
    try:
        yield
    except _DAMAGE as error:
        raise _damaged_error(archive, error) from error
    except RuntimeError as error:  # a password, or an unknown compression
        raise DataError(
            f"{archive}: Python cannot unpack it ({error}); unpack it with another tool and use "
            "the folder with `source: imagefolder`"
        ) from error
    except OSError as error:
        if error.errno is None:  # gzip and bzip2 raise OSError for content of another format
            raise _damaged_error(archive, error) from error
        if disk_errors.is_full(error):
            raise DataError(
                f"{archive}: the disk filled up while the archive was unpacked into "
                f"{directory.parent}; {disk_errors.DISK_REMEDY}"
            ) from error
        raise DataError(
            f"{archive}: cannot be unpacked into {directory.parent} ({error.strerror}); correct "
            "the permissions, or replace the archive"
        ) from error


def _damaged_error(archive: Path, error: Exception) -> DataError:
    line = (str(error) or type(error).__name__).splitlines()[0].rstrip(":")
    return DataError(
        f"{archive}: damaged or truncated ({line}); nothing was unpacked. Delete it and run "
        "again. If its checksum equals the declared checksum, get the archive from another source"
    )


def _check_place(archive: Path, name: str) -> None:
    """Refuses an archive member whose path is outside the folder."""
    places = (PurePosixPath(name), PureWindowsPath(name))
    outside = any(place.is_absolute() or ".." in place.parts for place in places)
    if outside or PureWindowsPath(name).drive:
        raise DataError(
            f"{archive}: member {name!r} lies outside the target folder; nothing was "
            "unpacked. Do not trust this archive: get it from another source"
        )


def _is_ignored(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return IGNORED_FOLDER in parts or (bool(parts) and parts[-1] == IGNORED_FILE)


def _extract_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        members = [member for member in packed.infolist() if not _is_ignored(member.filename)]
        _check_size(archive, sum(member.file_size for member in members))
        with Progress(len(members), label=f"unpack {archive.name}", unit="files") as progress:
            for member in members:
                _check_place(archive, member.filename)
                packed.extract(member, folder)
                progress.advance_by(1)


def _list_members(archive: Path, packed: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    size = 0
    for member in packed:
        _check_size(archive, size := size + tarfile.BLOCKSIZE + member.size)
        if not _is_ignored(member.name):
            yield member


def _check_size(archive: Path, size: int) -> None:
    """Refuses an archive whose unpacked `size` in bytes is out of proportion to its own size."""
    try:
        plain_files.require_proportion(archive, "all files together", size)
    except OSError as error:
        raise DataError(f"{archive}: {error}") from None


def _extract_tar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as packed:
        members = list(_list_members(archive, packed))
        with Progress(len(members), label=f"unpack {archive.name}", unit="files") as progress:
            for member in members:
                _check_place(archive, member.name)
                try:
                    packed.extract(member, folder, set_attrs=False, filter="data")
                except tarfile.FilterError as error:
                    raise DataError(
                        f"{archive}: member {member.name!r} is a device, or leads outside the "
                        f"target folder ({error}); nothing was unpacked. Do not trust this "
                        "archive: get it from another source"
                    ) from error
                progress.advance_by(1)
