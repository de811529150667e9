"""Receipts: read without mlflow, and true to whether the store is still there."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import write_text
from dpprobe.tracking import receipt as receipt_module
from dpprobe.tracking.receipt import RECEIPT_FORMAT, find_store_fault, set_aside
from tests.support.stored_records import check_values
from tests.support.tracked_study import Study


def test_a_receipt_says_when_its_store_is_gone(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(study.root)
    receipt = study.root / "receipt.json"
    assert not find_store_fault(receipt), "no receipt: Snakemake makes it anyway"
    relative = {"uri": "sqlite:///mlflow.db", "artifact_root": Path("mlartifacts")}
    study.ingest(**relative)
    assert not find_store_fault(receipt)
    for name in ("mlartifacts/digits", "mlartifacts", "mlflow.db"):
        moved = study.root / "away"
        (study.root / name).rename(moved)
        assert find_store_fault(receipt), name
        moved.rename(study.root / name)
    assert not find_store_fault(receipt)
    (study.root / "mlflow.db").unlink()
    # By its other URI, as a new process would: mlflow keeps the deleted file open under the first.
    assert study.ingest()["created"] == 13
    assert not find_store_fault(receipt)


def test_only_a_local_store_can_be_missing(tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    record = {"format": "dpprobe-tracking", "format_version": 1, "dataset": "digits"}
    write_text(receipt, json.dumps(record | {"uri": "http://server:5000", "artifact_root": None}))
    assert not find_store_fault(receipt)
    # as written before artifact_root was in receipts
    write_text(receipt, json.dumps(record | {"uri": f"sqlite:///{tmp_path}/mlflow.db"}))
    assert find_store_fault(receipt)
    write_text(tmp_path / "mlflow.db", "")
    assert find_store_fault(receipt), "no tables"
    wrong: tuple[dict[str, Any], ...] = (
        {"artifact_root": "x"}, {"uri": 3}, {"format": "x", "uri": "http://server:5000"},
        {"uri": "sqlite:///a", "artifact_root": 1},
    )  # fmt: skip
    records = [json.dumps({"format": RECEIPT_FORMAT, **each}) for each in wrong]
    for text in ("{", "[]", "{}", *records):
        write_text(receipt, text)
        assert find_store_fault(receipt), f"a receipt that cannot be read: {text}"


RUN = "(select run_uuid from runs where name like '%sgd%' and lifecycle_stage = 'active' limit 1)"
EDITS = {
    "metric": f"update metrics set value = 0.999 where key = 'test/accuracy' and run_uuid = {RUN}",
    "shown": f"update latest_metrics set value = 0.999 where run_uuid = {RUN}",
    "curve": f"update metrics set value = 9 where key like 'curve/%' and run_uuid = {RUN}",
    "step": f"update metrics set step = step + 1 where run_uuid = {RUN}",
    "no metrics": f"delete from metrics where run_uuid = {RUN}",
    "parameter": f"update params set value = '9' where key = 'epsilon' and run_uuid = {RUN}",
    "added": f"insert into params (key, value, run_uuid) select 'x', 'y', {RUN}",
    "trash": "update runs set lifecycle_stage = 'deleted' where name like '%sgd%'",
    "unfinished": f"update runs set status = 'RUNNING' where run_uuid = {RUN}",
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_run_is_noticed_and_written_again(study: Study, edit: str) -> None:
    study.ingest()
    receipt, database = study.root / "receipt.json", study.root / "mlflow.db"
    assert find_store_fault(receipt, note=True) is None
    rows = list(read_rows(database))
    with closing(sqlite3.connect(database)) as connection, connection:
        assert connection.execute(edit).rowcount > 0
    fault = find_store_fault(receipt)
    assert fault is not None
    assert fault.path == receipt
    again = study.ingest()
    assert again["replaced"] + again["created"] > 0
    assert find_store_fault(receipt) is None
    assert list(read_rows(database)) == rows


def read_rows(database: Path) -> list[tuple[Any, ...]]:
    """Reads the metrics of all runs that MLflow shows."""
    with closing(sqlite3.connect(database)) as connection:
        return sorted(
            connection.execute(
                "select runs.name, m.key, m.value, m.step, l.value from runs join metrics m using "
                "(run_uuid) join latest_metrics l on l.run_uuid = m.run_uuid and l.key = m.key "
                "where lifecycle_stage = 'active' and status = 'FINISHED'"
            )
        )


@pytest.mark.parametrize("part", [0.1, 0.66, 0.99])
def test_a_store_that_is_cut_is_damaged(study: Study, part: float) -> None:
    study.ingest()
    receipt, database = study.root / "receipt.json", study.root / "mlflow.db"
    content = database.read_bytes()
    for damaged in (content[: int(part * len(content))], bytes(len(content)), b"x" * 4096):
        database.write_bytes(damaged)
        fault = find_store_fault(receipt)
        assert fault is not None
        assert fault.path == database


def test_a_store_is_read_again_where_it_or_its_receipt_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = [({"a", "b"}, set())]
    asked = []

    def read(database: Path) -> Any:
        asked.append(database)
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    monkeypatch.setattr(receipt_module, "read_runs", read)
    database = tmp_path / "m.db"
    write_text(database, "x")
    record = {"format": RECEIPT_FORMAT, "uri": f"sqlite:///{database}", "dataset": "d"}
    for name in ("one", "two"):  # two results may have one run
        runs = {"k": "a", "l": "b", "m": "a"}
        write_text(tmp_path / name, json.dumps(record | {"name": name, "runs": runs}))

    def check(name: str, **named: Any) -> Any:
        before, fault = len(asked), find_store_fault(tmp_path / name, **named)
        return [name, str(named), len(asked) - before, fault and [fault.path.name, fault.words[:5]]]

    told = [check(name) for name in ("one", "one")]
    told += [check(name, note=True) for name in ("one", "two", "one")]
    told += [check("two", skip=False), check("one"), check("two")]
    for path in (database, tmp_path / "m.db-wal", tmp_path / "two"):
        write_text(path, path.read_text() + " " if path.exists() else "log")
        told += [check("two"), check("two", note=True), check("two")]
    locked = sqlite3.OperationalError("database is locked")
    for fault in (({"a"}, set()), (set(), {"b"}), ({"a", "b"}, {"a", "b", "z"}), locked,
                  sqlite3.DatabaseError("torn")):  # fmt: skip
        found[0] = fault
        told += [check("one", skip=False, note=True)]
    check_values("receipt_checks", told)


def test_people_may_name_and_tag_runs(study: Study) -> None:
    study.ingest()
    with closing(sqlite3.connect(study.root / "mlflow.db")) as connection, connection:
        connection.execute("update runs set name = 'mine'")
        note = "select 'note', 'x', run_uuid from runs limit 1"
        connection.execute(f"insert into tags (key, value, run_uuid) {note}")
    assert find_store_fault(study.root / "receipt.json") is None


def test_receipts_are_read_without_mlflow() -> None:
    program = (
        "import sys, dpprobe.tracking.receipt\n"
        "heavy = {'mlflow', 'numpy', 'pandas', 'pyarrow', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_store_is_set_aside_with_its_log(tmp_path: Path) -> None:
    for suffix in ("", "-wal"):
        (tmp_path / f"mlflow.db{suffix}").write_text(suffix)
    kept = set_aside(tmp_path / "mlflow.db")
    names = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert names == {kept.name: "", f"{kept.name}-wal": "-wal"}
