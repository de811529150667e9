"""Writes files completely or not at all; handles hashes, git commits and full disks."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import logging
import math
import os
import re
import resource
import secrets
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpprobe.errors import LASTING, DataError, DiskError, DpprobeError

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

logger = logging.getLogger("dpprobe")

# Names of temporary files have their process, a random token and PARTIAL_SUFFIX. So temporary names
# match no pattern of finished files, and two processes never share a file.
PARTIAL_SUFFIX = ".partial"
_TEMPORARY = re.compile(
    r"\.(?P<name>.+?)\.(?:(?P<machine>[0-9a-f]{8})-(?P<process>\d+)\.)?[0-9a-f]{8}\.partial",
    re.DOTALL,
)
_DAY = 86400
ABSENT = "nothing"
_DEEPEST = 32  # levels of brackets in JSON from outside
LARGEST_TEXT = 1 << 28  # bytes of a JSON file; larger ones are not dpprobe's, and fill memory
_ALWAYS_READ, _MOST_EXPANSION = 1 << 28, 100
_LONGEST_HEADER = 1 << 22  # bytes of a safetensors header, of some ten thousand tensors
# First bytes of files that are sometimes saved in place of images or weights.
_KINDS = {
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF document",
    b"<!": "a web page, such as an error or a login page",
    b"<h": "a web page, such as an error or a login page",
    b"version https://git-lfs": "a pointer of Git LFS in place of the file itself",
}
_SPACES = dict.fromkeys(map(ord, "\t\r\n"), " ")
_TOO_LARGE = errno.EOVERFLOW  # a file too large to read; EFBIG is a file too large to write
# The last keys of a record: sizes and hashes of the files beside it, and the hash of the record's
# text. Functions that read records remove the keys of sizes and hashes.
FILE_BYTES, FILE_HASHES, RECORD_HASH = "file_bytes", "file_sha256", "record_sha256"

MEGABYTE = 1_000_000
ROOM = "free space or have the quota raised, and run again"
DISK_REMEDY = "free space, or choose a data_dir on another disk"
WAIT = 3600  # seconds to wait for disk space before finished work is lost
PAUSE = 60  # seconds between two attempts


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success the file is synced and renamed to `path`.

    After an exception the temporary file is removed, and `path` keeps its earlier content, if any.
    Temporary files of killed processes are removed at the next write.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{PARTIAL_SUFFIX}"):
        if is_left_behind(left, path.name):
            with suppress(OSError):
                left.unlink()
    token = f"{_this_machine()}-{os.getpid()}.{secrets.token_hex(4)}"
    temporary = path.with_name(f".{path.name}.{token}{PARTIAL_SUFFIX}")
    try:
        yield temporary
        flush_to_disk(temporary)
        temporary.replace(path)
        flush_to_disk(path.parent)
    except Exception as error:
        number = _find_error_number(error)
        if number not in {*UNWRITABLE, *LASTING}:
            raise
        named = getattr(error, "filename", None) or str(temporary)
        wanted = str(path) if named == str(temporary) else named
        raise OSError(number, os.strerror(number), wanted) from error
    finally:
        with suppress(OSError):  # a read-only disk refuses the removal
            temporary.unlink()


def is_left_behind(temporary: Path, name: str | None = None) -> bool:
    """Returns True for a temporary file, by default of any name, whose process has ended.

    A file from another machine or an earlier version counts after a day without changes.
    """
    parts = _TEMPORARY.fullmatch(temporary.name)
    if parts is None or name not in (None, parts["name"]):
        return False
    try:
        if parts["machine"] != _this_machine():
            return time.time() - temporary.lstat().st_mtime > _DAY
        os.kill(int(parts["process"]), 0)
    except (ProcessLookupError, FileNotFoundError):
        return True
    except OSError:  # another user's process
        return False
    return False


@cache
def _this_machine() -> str:
    """Names this machine, since its start, and its container, where processes have own numbers."""
    facts = [socket.gethostname()]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8"))
        facts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.sha256("".join(facts).encode()).hexdigest()[:8]


def flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def canonical_json(value: Any) -> str:
    """Returns JSON with sorted keys and no spaces: equal values give equal text; refuses NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )


def hash_value(value: Any) -> str:
    """Returns the SHA-256 (hex) of `canonical_json`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def hash_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Returns the SHA-256 (hex) of the names, types, shapes and values of arrays."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner may read, whole or not at all."""
    with atomic_path(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON; refuses NaN and infinity, because JSON has neither."""
    write_text(path, _format_json(value))


def _format_json(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def write_record(path: Path, values: Mapping[str, Any], *beside: Path) -> None:
    """Writes a JSON object that ends with the SHA-256 of its own text, so that damage is detected.

    The record stores the size of each file in `beside`, and the hash unless `values` has `files`.
    """
    values = dict(values)
    if beside:
        values[FILE_BYTES] = {file.name: file.stat().st_size for file in beside}
        if "files" not in values:
            values[FILE_HASHES] = {file.name: sha256_file(file) for file in beside}
    body = _format_json(values).removesuffix("\n}\n")
    digest = hashlib.sha256(body.encode()).hexdigest()
    write_text(path, f'{body},\n  "{RECORD_HASH}": "{digest}"\n}}\n')


def parse_record(content: bytes) -> Any:
    """Parses a record's JSON, including the keys that `write_record` added.

    Raises ValueError, with a message of one line, if the content is not JSON or was changed.
    """
    try:
        values = parse_json(content)
    except ValueError as error:
        raise ValueError(f"not valid JSON ({error})") from None
    if isinstance(values, dict):
        body, _, end = content.rpartition(b',\n  "')
        digest = hashlib.sha256(body).hexdigest()
        # if only the key of the hash is damaged, the hash itself is still at the end
        recorded = RECORD_HASH in values or digest.encode() in end
        if recorded and end != f'{RECORD_HASH}": "{digest}"\n}}\n'.encode():
            raise ValueError("changed after it was written")
    return values


def parse_values(content: bytes) -> Any:
    """Parses a record as `parse_record` does, and removes the keys that `write_record` added."""
    values = parse_record(content)
    if isinstance(values, dict):
        for key in (FILE_BYTES, FILE_HASHES, RECORD_HASH):
            values.pop(key, None)
    return values


def read_json(path: Path) -> Any:
    """Reads a file as `parse_values` does; raises OSError if unreadable, ValueError if damaged."""
    return parse_values(read_bounded(path))


def read_whole_record(path: Path) -> Any:
    """Reads a record, and compares the sizes of files beside the record with the recorded sizes.

    Raises OSError if a file cannot be read; ValueError, with a one-line message, if damaged.
    """
    values = parse_record(read_bounded(path))
    for name, recorded in values.get(FILE_BYTES, {}).items() if isinstance(values, dict) else ():
        size = path.with_name(name).stat().st_size
        if size != recorded:
            raise ValueError(f"{name} has {size} bytes, not {recorded}")
    return values


def parse_json(text: str | bytes) -> Any:
    """Parses JSON; raises ValueError for repeated keys, and brackets nested too deeply."""
    try:
        return json.loads(text, object_pairs_hook=_read_pairs)
    except RecursionError:
        raise ValueError("brackets nested too deeply to be read") from None


def _read_pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(items)
    if len(values) < len(items):
        keys = [key for key, _ in items]
        raise ValueError(f"the key {max(values, key=keys.count)!r:.60} appears twice in one object")
    return values


def parse_strict(content: str | bytes) -> Any:
    """Parses JSON from outside; raises ValueError unless all readers read the same values.

    NaN, infinity and repeated keys are refused, and deep nesting, at which some readers overflow.
    """

    def read_number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(f"the number {text[:30]}")
        return value

    too_deep = f"more than {_DEEPEST} levels of brackets"
    try:
        values = json.loads(
            content,
            parse_float=read_number,
            parse_constant=read_number,
            object_pairs_hook=_read_pairs,
        )
    except RecursionError:
        raise ValueError(too_deep) from None
    level: list[Any] = [[values]]
    for _ in range(_DEEPEST):
        blocks = [each.values() if isinstance(each, dict) else each for each in level]
        level = [one for block in blocks for one in block if isinstance(one, dict | list)]
    if level:
        raise ValueError(too_deep)
    return values


def pack_tensors(arrays: Mapping[str, npt.NDArray[Any]], metadata: dict[str, str]) -> bytes:
    """Returns arrays, which may be views, as the content of a safetensors file."""
    import numpy as np  # late, because `make clean` runs without libraries
    from safetensors.numpy import save  # late, because `make clean` runs without libraries

    # `save` would ignore strides
    return save({key: np.ascontiguousarray(each) for key, each in arrays.items()}, metadata)


def pack_arrays(arrays: Mapping[str, npt.NDArray[Any]], described: Mapping[str, Any]) -> bytes:
    """Returns arrays and their description as the content of a safetensors file."""
    return pack_tensors(arrays, {"dpprobe": canonical_json(described)})


def read_arrays(
    path: Path, *, kind: str, version: int, largest: float = math.inf
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Reads a file of `pack_arrays`, which may come from strangers; raises OSError or ValueError.

    Raises DataError for a newer version.
    """
    from safetensors import SafetensorError, safe_open  # late, as `make clean` has no libraries

    require_plain_file(path, largest)
    require_short_header(path)
    try:
        with safe_open(path, framework="numpy") as file:
            described: dict[str, Any] = parse_strict((file.metadata() or {})["dpprobe"])
            check_not_newer(path, described, kind=kind, version=version)
            return described, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error


def require_plain_file(path: Path, largest: float = math.inf) -> None:
    """Raises OSError for devices, pipes and sockets, which may never end, and for too large files.

    Args:
      largest: number of bytes that a file may have.
    """
    mode, size = (status := path.stat()).st_mode, status.st_size
    if size > largest:
        raise OSError(_TOO_LARGE, f"{size:,} bytes, more than {largest:,}", str(path))
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a folder fails by itself
        raise OSError(errno.EINVAL, "a device, a pipe or a socket, not a plain file", str(path))


def read_bounded(path: Path, largest: float = LARGEST_TEXT) -> bytes:
    """Reads a plain file of at most `largest` bytes; raises OSError for others before reading."""
    require_plain_file(path, largest)
    with path.open("rb") as stream:
        content = stream.read(int(largest) + 1)  # the file may have grown meanwhile
    if len(content) > largest:
        raise OSError(_TOO_LARGE, f"more than {largest:,} bytes", str(path))
    return content


def require_proportion(path: Path, name: str, promised: int) -> None:
    """Raises OSError if an array needs far more memory or disk than its file's bytes justify.

    Args:
      promised: bytes of the array, by the file's header; less than 256 MB are always accepted.
    """
    if promised > max(_ALWAYS_READ, _MOST_EXPANSION * (size := path.stat().st_size)):
        raise OSError(
            f"{name!r:.60} needs {format_size(promised)}, but the file has {format_size(size)}, "
            f"less than 1/{_MOST_EXPANSION}; if the file is right, write it without compression"
        )


def require_short_header(path: Path) -> None:
    """Raises OSError for a safetensors file whose header takes minutes to read."""
    require_plain_file(path)
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
    # the library itself refuses a header that is longer than its file
    if _LONGEST_HEADER < size <= path.stat().st_size:
        raise OSError(f"a header of {size:,} bytes, more than {_LONGEST_HEADER:,}")


def name_kind(start: bytes) -> str | None:
    """Names the kind of a file by its first bytes, without quoting them; None if unknown."""
    known = (words for first, words in _KINDS.items() if start.startswith(first))
    if (kind := next(known, None)) is not None or not start:
        return kind if start else "empty"
    printed = start.isascii() and start.decode().translate(_SPACES).isprintable()
    return "a text" if printed else None


def read_record(path: Path, *, kind: str, version: int) -> dict[str, Any]:
    """Reads a JSON object with the given `format` and `format_version`.

    Raises DataError if the file is unreadable, or has another format or version.
    """
    try:
        record = read_json(path)
        written = record.get("format"), record.get("format_version")
        if written != (kind, version):
            check_not_newer(path, record, kind=kind, version=version)
            raise ValueError(f"{written[0]} {written[1]}, not {kind} {version}")
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: unreadable ({error}); delete it and run again") from error
    return dict(record)


def check_not_newer(
    where: Path | str, record: Mapping[str, Any], *, kind: str, version: int
) -> None:
    """Raises DataError for a record of a newer format version, which must not be deleted."""
    written = record.get("format_version")
    if record.get("format") == kind and isinstance(written, Integral) and int(written) > version:
        raise DataError(
            f"{where}: {kind} of version {written}, newer than this dpprobe's {version}; use the "
            "newer dpprobe that wrote it, or choose other folders (data_dir, results_dir)"
        )


class Difference(NamedTuple):
    """A place in two JSON values, written as dotted keys, and the two values there."""

    place: str
    first: Any
    second: Any


def first_difference(first: Any, second: Any, place: str = "") -> Difference | None:
    """Returns the first place where two JSON values differ; a missing key is `ABSENT`."""
    if first == second:
        return None
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return Difference(place, first, second)
    for key in dict.fromkeys([*first, *second]):
        inner = f"{place}.{key}" if place else str(key)
        pair = first.get(key, ABSENT), second.get(key, ABSENT)
        if difference := first_difference(*pair, inner):
            return difference
    return Difference(place, first, second)  # one lacks a key whose other value is `ABSENT`


def write_table(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq  # late and heavy: each start of Snakemake imports this module

    with atomic_path(path) as temporary, temporary.open("wb") as stream:  # pyarrow needs UTF-8
        pq.write_table(table, stream, compression="zstd")


def read_table(path: Path) -> pa.Table:
    """Reads a table of results; raises DataError if it is missing, damaged or cut short."""
    import pyarrow.parquet as pq  # late and heavy: each start of Snakemake imports this module

    with explain_parquet(path, DataError, f"{path}: cannot be read", "delete it and run again"):
        return pq.read_table(path)


@contextmanager
def explain_parquet(
    path: Path, kind: type[DpprobeError], fault: str, remedy: str = "replace it"
) -> Iterator[None]:
    """Turns each error in reading a parquet file into an error of class `kind`, in one line."""
    import pyarrow as pa  # late and heavy: each start of Snakemake imports this module

    try:
        require_plain_file(path)
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        line = (getattr(error, "strerror", None) or str(error) or repr(error)).splitlines()[0]
        raise kind(f"{fault} ({line}); {remedy}") from error


# The system's errors about a file that cannot be written, and the user's remedies.
UNWRITABLE = {
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EFBIG: "lift the limit on sizes of files (`ulimit -f unlimited`), and run again",
    errno.ELOOP: "delete the link, which leads to itself, and run again",
    errno.EROFS: "mount the disk for writing, and run again",
    errno.EACCES: "correct the permissions of the file and its folder, and run again",
    errno.EPERM: "correct the permissions of the file and its folder, and run again",
}


def _find_error_number(error: Exception) -> int:
    """Returns an error's errno, also if a library only prints the number; 0 without a number."""
    printed = re.search(r"(?:errno = |os error |\[Errno )(\d+)", str(error), re.IGNORECASE)
    return getattr(error, "errno", None) or (int(printed[1]) if printed else 0)


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def format_size(size: int) -> str:
    return f"{size / MEGABYTE:.1f} MB" if size >= MEGABYTE / 10 else f"{size} bytes"


def file_system(path: Path) -> Path:
    """Returns the mount point of a path."""
    folder = path.resolve()
    while not folder.is_mount():
        folder = folder.parent
    return folder


def explain_unwritable(error: Exception) -> DiskError | None:
    """Returns an error with file and remedy if the system refuses access; None for other errors."""
    number = _find_error_number(error)
    if number not in UNWRITABLE:
        return None
    named = getattr(error, "filename", None) or "a file"
    refused = number in (errno.EACCES, errno.EPERM)  # the system may refuse reading or writing
    what = "no access" if refused or number == errno.ELOOP else "cannot be written"
    explained = DiskError(f"{named}: {what} ({os.strerror(number)}); {UNWRITABLE[number]}")
    explained.passes = number != errno.ELOOP
    return explained


def when_there_is_room(folder: Path, needed: int, write: Callable[[], None]) -> None:
    """Calls `write` each minute while the disk is full, and raises DiskError after an hour.

    `write` must leave no files behind if it fails; `needed` is about the number of bytes written.
    """
    deadline = time.monotonic() + WAIT
    while True:
        try:
            write()
            return
        except OSError as error:
            if not is_full(error):
                if refused := explain_unwritable(error):
                    raise refused from error
                raise
            lacking = (
                f"{folder}: disk full on {file_system(folder)} ({os.strerror(error.errno or 0)}): "
                f"about {format_size(needed)} are needed, "
                f"{format_size(shutil.disk_usage(folder).free)} are free"
            )
            left = deadline - time.monotonic()
            if left <= 0:
                raise DiskError(f"{lacking}; {ROOM}") from error
        logger.warning(
            "%s; waiting up to %.0f more minutes; free space or have the quota raised",
            lacking,
            left / 60,
        )
        time.sleep(min(PAUSE, left))


def require_room(folder: Path, needed: int) -> None:
    """Raises the system's error if `needed` bytes are not free, or are too many for one file.

    HDF5 would end the whole process on a full disk or at a limit of file sizes. The file's folder
    need not exist yet.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < needed + MEGABYTE:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(folder))
    above = (folder, *folder.absolute().parents)
    usage = shutil.disk_usage(next(each for each in above if each.exists()))
    if usage.total and usage.free < needed:  # some network file systems report sizes of 0
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


@contextmanager
def explain_full_disk(folder: Path, doing: str) -> Iterator[None]:
    """Raises DataError if the disk fills up in the `with` block; `doing` is the work there."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise DataError(f"{folder}: the disk filled up while {doing}; {DISK_REMEDY}") from error


def git_commit(folder: Path) -> str | None:
    """Returns the checked-out commit, with a mark if files were changed; None without git."""
    try:
        commit = _run_git(folder, "rev-parse", "HEAD")
        changed = _run_git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit} with local changes" if changed else commit


def _run_git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout.strip()
