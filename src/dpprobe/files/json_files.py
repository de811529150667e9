"""Reads and writes JSON files; a record ends with the hash of its own text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from dpprobe.errors import DataError
from dpprobe.files.atomic_writes import write_text
from dpprobe.files.plain_files import read_bounded, sha256_file
from dpprobe.json_values import parse_json

# The last keys of a record: sizes and hashes of accompanying files, and the hash of the record's
# text. Functions that read records remove the keys of sizes and hashes.
FILE_BYTES, FILE_HASHES, RECORD_HASH = "file_bytes", "file_sha256", "record_sha256"


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON; refuses NaN and infinity, because JSON has neither."""
    write_text(path, _format_json(value))


def _format_json(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def write_record(path: Path, values: Mapping[str, Any], *beside: Path) -> None:
    """Writes a JSON object that ends with the SHA-256 of its own text, so that damage is detected.

    The record stores the sizes of the files `beside`, and their hashes unless `values` has `files`.
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
    """Reads a record, and compares the sizes of its accompanying files with the recorded sizes.

    Raises OSError if a file cannot be read; ValueError, with a one-line message, if damaged.
    """
    values = parse_record(read_bounded(path))
    for name, recorded in values.get(FILE_BYTES, {}).items() if isinstance(values, dict) else ():
        size = path.with_name(name).stat().st_size
        if size != recorded:
            raise ValueError(f"{name} has {size} bytes, not {recorded}")
    return values


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
    """Raises DataError for a record with a newer format version, which users must not delete."""
    written = record.get("format_version")
    if record.get("format") == kind and isinstance(written, Integral) and int(written) > version:
        raise DataError(
            f"{where}: {kind} of version {written}, newer than this dpprobe's {version}; use the "
            "newer dpprobe that wrote it, or choose other folders (data_dir, results_dir)"
        )
