"""The receipt that tracking leaves for a dataset or a study: its store and the runs in it.

Free of mlflow, so that a workflow can read it at each start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.artifacts import read_json, write_record
from dpprobe.study.options import sqlite_file

RECEIPT_FORMAT = "dpprobe-tracking"
RECEIPT_FORMAT_VERSION = 1


def write_receipt(path: Path, record: dict[str, Any]) -> None:
    """Writes a receipt, with its format beside the record."""
    write_record(
        path, {"format": RECEIPT_FORMAT, "format_version": RECEIPT_FORMAT_VERSION, **record}
    )


def store_missing(receipt: Path) -> bool:
    """Returns True if a receipt names a local store that is gone, so that its runs are made again.

    That is so if the SQLite file or the dataset's folder of artifacts does not exist, relative
    paths taken from the working directory, and if the receipt cannot be read. It is not so if
    there is no receipt, or if a server keeps the store.
    """
    try:
        record = read_json(receipt)
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    try:
        if record["format"] != RECEIPT_FORMAT:
            return True
        database, root = sqlite_file(record["uri"]), record.get("artifact_root")
        artifacts = None if root is None else Path(root) / record["dataset"]
    except (KeyError, TypeError, AttributeError):
        return True
    if database is None:
        return False
    return not database.is_file() or (artifacts is not None and not artifacts.is_dir())
