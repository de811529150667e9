"""The receipt of a download folder: what it says, and which ones are refused."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest

from dpprobe import artifacts
from dpprobe.data.download_receipt import (
    Fetched,
    Receipt,
    check_receipt,
    read_receipt,
    write_receipt,
)
from dpprobe.errors import DataError

CONTENT = bytes(300_000)
FETCHED = Fetched(
    name="data.zip",
    bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    url="https://example.org/data.zip",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.zip"


def written(path: Path, **changes: Any) -> Fetched:
    """Writes the file as a download leaves it."""
    path.write_bytes(CONTENT)
    return dataclasses.replace(FETCHED, **changes)


def test_a_receipt_says_what_was_fetched(path: Path) -> None:
    directory = path.parent
    fetched = written(path)
    write_receipt(directory, [fetched], params={"name": "x"})
    receipt = read_receipt(directory)
    assert receipt == Receipt(files=(fetched,), params={"name": "x"})
    assert check_receipt(directory, params={"name": "x"}) == receipt
    with pytest.raises(
        DataError,
        match=r"options of this download have changed.*delete .*receipt\.json and run again",
    ):
        check_receipt(directory, params={"name": "y"})


def test_a_receipt_that_does_not_fit_is_refused(path: Path) -> None:
    directory = path.parent
    fetched = written(path)
    write_receipt(directory, [fetched], params=None)
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match=r"299999 bytes, but 300000 .* delete .*receipt\.json"):
        check_receipt(directory, params=None)
    path.unlink()
    with pytest.raises(DataError, match=r"missing, but 300000 .* delete .*receipt\.json"):
        check_receipt(directory, params=None)
    others: list[Any] = [{"format": "other", "format_version": 1}, {}, []]
    for damaged in others:
        artifacts.write_json(directory / "receipt.json", damaged)
        with pytest.raises(DataError, match="not the receipt of a download"):
            read_receipt(directory)
    (directory / "receipt.json").unlink()
    with pytest.raises(DataError, match="not the receipt of a download"):
        read_receipt(directory)
