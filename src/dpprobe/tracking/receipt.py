"""What tracking leaves behind: the receipt of a dataset's runs, and whether its store still exists.

Free of mlflow, so that a workflow can ask at each start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.artifacts import read_json, write_json
from dpprobe.study.blocks import sqlite_file

RECEIPT_FORMAT = "dpprobe-tracking"
RECEIPT_FORMAT_VERSION = 1


def write_receipt(path: Path, record: dict[str, Any]) -> None:
    write_json(path, {"format": RECEIPT_FORMAT, "format_version": RECEIPT_FORMAT_VERSION, **record})


def store_missing(receipt: Path) -> bool:
    """Whether a receipt speaks of a local store that is gone, so that its runs must be made anew.

    True where the SQLite file it names, or the dataset's folder of artifacts, does not exist;
    relative paths are taken from the working directory. True as well where the receipt cannot be
    read. False where there is no receipt, and where a server keeps the store.
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
