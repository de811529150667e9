"""The receipt of a download folder: which files were fetched, and from where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from dpprobe import json_values
from dpprobe.errors import DataError
from dpprobe.files.records import Record, RecordPart

RECEIPT = "receipt.json"


class Fetched(RecordPart):
    """One file that was fetched.

    Attributes:
      name: the file's path relative to the download folder.
      url: the file's address, without user, password and query.
      revision: the requested version, if the source has versions.
    """

    name: str
    bytes: int
    sha256: str
    url: str
    revision: str | None = None


class Receipt(Record):
    """The content of `receipt.json`, which lists a download folder's files."""

    format: Literal["dpprobe-download"] = "dpprobe-download"
    format_version: Literal[1] = 1
    params: Mapping[str, Any] | None
    revision: str | None
    files: tuple[Fetched, ...]


def write_receipt(
    directory: Path, fetched: Iterable[Fetched], *, params: Mapping[str, Any] | None
) -> None:
    """Writes `receipt.json`, which marks the download as complete."""
    files = tuple(fetched)
    revisions = {file.revision for file in files}
    revision = revisions.pop() if len(revisions) == 1 else None
    Receipt(params=params, revision=revision, files=files).write(directory / RECEIPT)


def check_receipt(directory: Path, *, params: Mapping[str, Any] | None) -> Receipt:
    """Reads `receipt.json` and checks that each file exists with its recorded size.

    Raises DataError if a file is missing or has another size, or if the download was made with
    other options than `params`, the study's `DatasetOptions.download_params()`.
    """
    receipt = Receipt.read(directory / RECEIPT)
    if json_values.canonical_json(receipt.params) != json_values.canonical_json(params):
        raise DataError(
            f"{directory}: the options of this download have changed since, for example a "
            f"checksum or revision; delete {directory / RECEIPT} and run again; unchanged files "
            "are reused"
        )
    for file in receipt.files:
        path = directory / file.name
        size = path.stat().st_size if path.is_file() else None
        if size != file.bytes:
            state = "missing" if size is None else f"{size} bytes"
            raise DataError(
                f"{path}: {state}, but {file.bytes} bytes were downloaded; delete "
                f"{directory / RECEIPT} and run again"
            )
    return receipt
