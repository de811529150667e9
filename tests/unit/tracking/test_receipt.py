"""Receipts: read without mlflow, and true to whether the store is still there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import write_text
from dpprobe.tracking.receipt import RECEIPT_FORMAT, store_missing
from tests.support.tracked_study import Study


def test_a_receipt_says_when_its_store_is_gone(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(study.root)
    receipt = study.root / "receipt.json"
    assert not store_missing(receipt), "no receipt: Snakemake makes it anyway"
    relative = {"uri": "sqlite:///mlflow.db", "artifact_root": Path("mlartifacts")}
    study.ingest(**relative)
    assert not store_missing(receipt)
    for name in ("mlartifacts/digits", "mlartifacts", "mlflow.db"):
        moved = study.root / "away"
        (study.root / name).rename(moved)
        assert store_missing(receipt), name
        moved.rename(study.root / name)
    assert not store_missing(receipt)
    (study.root / "mlflow.db").unlink()
    # By its other URI, as a new process would: mlflow keeps the deleted file open under the first.
    assert study.ingest()["created"] == 13
    assert not store_missing(receipt)


def test_only_a_local_store_can_be_missing(tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    record = {"format": "dpprobe-tracking", "format_version": 1, "dataset": "digits"}
    write_text(receipt, json.dumps(record | {"uri": "http://server:5000", "artifact_root": None}))
    assert not store_missing(receipt)
    # as written before artifact_root was in receipts
    write_text(receipt, json.dumps(record | {"uri": f"sqlite:///{tmp_path}/mlflow.db"}))
    assert store_missing(receipt)
    write_text(tmp_path / "mlflow.db", "")
    assert not store_missing(receipt)
    for text in ("{", "[]", "{}"):
        write_text(receipt, text)
        assert store_missing(receipt), f"a receipt that cannot be read: {text}"


@pytest.mark.parametrize(
    "record", [{"artifact_root": "x"}, {"uri": 3}, {"uri": "sqlite:///a", "artifact_root": 1}, []]
)
def test_a_receipt_that_says_too_little_counts_as_missing(tmp_path: Path, record: Any) -> None:
    receipt = tmp_path / "receipt.json"
    whole = {"format": RECEIPT_FORMAT, **record} if isinstance(record, dict) else record
    receipt.write_text(json.dumps(whole))
    assert store_missing(receipt)


def test_receipts_are_read_without_mlflow() -> None:
    program = (
        "import sys, dpprobe.tracking.receipt\n"
        "heavy = {'mlflow', 'numpy', 'pandas', 'pyarrow', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
