"""The receipt of a download folder: what it says, and which ones are refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dpprobe.data.download_receipt import RECEIPT, Fetched, Receipt, check_receipt, write_receipt
from dpprobe.errors import DataError

CONTENT = bytes(300_000)
FETCHED = Fetched(
    name="data.zip",
    bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    url="https://example.org/data.zip",
)


def test_a_receipt_says_what_was_fetched(tmp_path: Path) -> None:
    (tmp_path / FETCHED.name).write_bytes(CONTENT)
    write_receipt(tmp_path, [FETCHED], params={"name": "x"})
    receipt = check_receipt(tmp_path, params={"name": "x"})
    assert receipt == Receipt(files=(FETCHED,), params={"name": "x"}, revision=None)
    with pytest.raises(DataError, match=rf"options of this .* changed.*delete .*{RECEIPT}"):
        check_receipt(tmp_path, params={"name": "y"})


def test_a_receipt_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FETCHED.name
    path.write_bytes(CONTENT[:-1])
    write_receipt(tmp_path, [FETCHED], params=None)
    with pytest.raises(DataError, match=rf"299999 bytes, but 300000 .* delete .*{RECEIPT}"):
        check_receipt(tmp_path, params=None)
    path.unlink()
    with pytest.raises(DataError, match=rf"missing, but 300000 .* delete .*{RECEIPT}"):
        check_receipt(tmp_path, params=None)
    (tmp_path / RECEIPT).unlink()
    with pytest.raises(DataError, match=rf"{RECEIPT}: unreadable .*; delete it and run again"):
        check_receipt(tmp_path, params=None)
