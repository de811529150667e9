"""The receipt of a download folder: which files were fetched, from where, for which options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpprobe import artifacts
from dpprobe.errors import DataError

FORMAT = "dpprobe-download"
FORMAT_VERSION = 1
RECEIPT = "receipt.json"


@dataclass(frozen=True, kw_only=True)
class Fetched:
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


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The content of `receipt.json`, which lists a download folder's files."""

    files: tuple[Fetched, ...]
    params: Mapping[str, Any] | None


def write_receipt(
    directory: Path, fetched: Iterable[Fetched], *, params: Mapping[str, Any] | None
) -> None:
    """Writes `receipt.json`, which makes the download complete."""
    files = tuple(fetched)
    revisions = {file.revision for file in files}
    artifacts.write_record(
        directory / RECEIPT,
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "params": params,
            "revision": revisions.pop() if len(revisions) == 1 else None,
            "files": [asdict(file) for file in files],
        },
    )


def read_receipt(directory: Path) -> Receipt:
    """Reads `receipt.json`; raises DataError if it is missing or not a receipt."""
    path = directory / RECEIPT
    remedy = f"delete {path} and run again"
    try:
        values = artifacts.read_json(path)
        artifacts.check_not_newer(path, values, kind=FORMAT, version=FORMAT_VERSION)
        if values["format"] != FORMAT or values["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format {values['format']} {values['format_version']}")
        files = tuple(Fetched(**file) for file in values["files"])
        return Receipt(files=files, params=values["params"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not the receipt of a download ({error}); {remedy}") from error


def check_receipt(directory: Path, *, params: Mapping[str, Any] | None) -> Receipt:
    """Reads `receipt.json` and checks that each file exists with its recorded size.

    Args:
      params: `DatasetOptions.download_params()` of the study.

    Raises:
      DataError: if a file is missing or has another size, or the download had other options.
    """
    receipt = read_receipt(directory)
    if artifacts.canonical_json(receipt.params) != artifacts.canonical_json(params):
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
