"""Writes files whole or not at all; canonical JSON, content hashes, git commits."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpprobe.disk import unwritable
from dpprobe.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

# A temporary file carries this suffix and a random token: it never matches a pattern of finished
# files, and two processes never share one.
PARTIAL_SUFFIX = ".partial"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success it is synced and renamed to `path`.

    On an exception the temporary file is removed and `path` keeps its earlier content, if any.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        if unwritable(error) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):  # a read-only disk refuses this too
            temporary.unlink()


def sync(path: Path) -> None:
    """Flushes a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def canonical_json(value: Any) -> str:
    """Returns JSON with sorted keys and no spaces: equal values give equal text, NaN an error."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )


def fingerprint(value: Any) -> str:
    """Returns the SHA-256 (hex) of a JSON-compatible value's canonical text."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """Returns the SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Writes text as UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes readable JSON; NaN and infinity are refused, as JSON has neither."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def read_record(path: Path, *, kind: str, version: int) -> dict[str, Any]:
    """Reads a JSON object that has the keys `format` and `format_version`.

    Args:
      kind: the value that `format` must have.
      version: the value that `format_version` must have.

    Raises:
      DataError: for a file that is not such an object, or is of another format or version.
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
    """Refuses what a newer dpprobe wrote: it may be whole, and is not to be deleted unread.

    Raises:
      DataError: for a version of the format `kind` above `version`.
    """
    written = record.get("format_version")
    if record.get("format") == kind and isinstance(written, Integral) and int(written) > version:
        raise DataError(
            f"{where}: {kind} of version {written}, newer than this dpprobe's {version}; "
            "use the newer dpprobe that wrote it, or other folders (data_dir, results_dir)"
        )


def write_table(path: Path, table: pa.Table) -> None:
    """Writes an Arrow table as parquet (zstd)."""
    import pyarrow.parquet as pq  # heavy: a start of Snakemake imports this module

    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_table(path: Path) -> pa.Table:
    """Reads a table of results that is made again where it is missing.

    Raises:
      DataError: for a file that is missing, damaged or cut short.
    """
    import pyarrow as pa  # as above
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        line = str(error).splitlines()[0]
        raise DataError(f"{path}: cannot be read ({line}); delete it and run again") from error


def git_commit(folder: Path) -> str | None:
    """Returns the commit checked out in a folder, marked where files differ; None without git."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit} with local changes" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True, text=True, check=True, timeout=30,
    ).stdout.strip()  # fmt: skip
