"""The receipt that tracking writes for a dataset or a study: the store and the runs in that store.

This module does not import mlflow, so that each start of Snakemake can read receipts.
"""

from __future__ import annotations

from pathlib import Path

from dpprobe.artifacts import read_json
from dpprobe.study.options import sqlite_file

RECEIPT_FORMAT = "dpprobe-tracking"
RECEIPT_FORMAT_VERSION = 1


def store_missing(receipt: Path) -> bool:
    """Returns True if a receipt names a local store that no longer exists; its runs are recreated.

    Also returns True if the receipt cannot be read. Returns False without a receipt, and for a
    server. Relative paths start from the working directory.
    """
    try:
        record = read_json(receipt)
        if record["format"] != RECEIPT_FORMAT:
            return True
        database, root = sqlite_file(record["uri"]), record.get("artifact_root")
        artifacts = None if root is None else Path(root) / record["dataset"]
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True
    if database is None:
        return False
    return not database.is_file() or (artifacts is not None and not artifacts.is_dir())
