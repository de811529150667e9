"""The MLflow store allows one writer at a time, and its errors name a remedy."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from threading import Timer
from typing import Any
from unittest.mock import Mock

import pytest
import requests

from dpprobe.errors import TrackingError
from dpprobe.files.atomic_writes import write_text
from dpprobe.files.json_files import read_json
from dpprobe.tracking import receipt as receipt_module
from dpprobe.tracking import store
from dpprobe.tracking.receipt import RECEIPT_FORMAT, find_store_fault, set_aside
from tests.support.tracked_study import Study


def test_a_locked_database_is_reported_and_waited_for(
    study: Study, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """MLflow itself gave up silently after 80 seconds, and advised deleting the store."""
    monkeypatch.setattr(store, "LOCK_NOTE_SECONDS", 0.2)
    with closing(sqlite3.connect(study.root / "mlflow.db", check_same_thread=False)) as other:
        other.isolation_level = None
        other.execute("BEGIN EXCLUSIVE")
        release = Timer(3, lambda: other.execute("ROLLBACK"))
        release.start()
        receipt = study.ingest()
        release.join()
    assert receipt["created"] == 13
    told = [text for text in caplog.messages if "keeps this SQLite database locked" in text]
    assert 2 <= len(told) <= 6, told
    assert "mlflow.db: another program" in told[0]
    assert "waiting up to 600 s; close the program that has it open" in told[0]
    caplog.clear()
    study.ingest()
    assert not [text for text in caplog.messages if "locked" in text]


def test_the_error_for_a_locked_store_does_not_advise_deleting_it(study: Study) -> None:
    with closing(sqlite3.connect(study.root / "mlflow.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert store.is_locked(study.root / "mlflow.db")
        with (
            pytest.raises(
                TrackingError, match="locked; close the program that has the store"
            ) as error,
            store.readable_errors(study.uri),
            closing(sqlite3.connect(study.root / "mlflow.db", timeout=0)) as writer,
        ):
            writer.execute("BEGIN IMMEDIATE")
    assert "delete" not in str(error.value)
    assert not store.is_locked(study.root / "mlflow.db")
    assert not store.is_locked(study.root / "none.db")
    assert not (study.root / "none.db").exists()


def test_one_file_has_all_data_while_another_program_has_the_store_open(tmp_path: Path) -> None:
    database = tmp_path / "store.db"
    log, uri = tmp_path / "store.db-wal", f"sqlite:///{database}"
    with closing(sqlite3.connect(database)) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("CREATE TABLE runs (name)")
        other.commit()
        assert log.stat().st_size
        store.checkpoint_log(uri)
        assert not log.stat().st_size
        copy = shutil.copy(database, tmp_path / "copy.db")
        with closing(sqlite3.connect(copy)) as copied:
            assert copied.execute("SELECT count(*) FROM runs").fetchone() == (0,)


def test_a_server_that_does_not_answer_is_named_at_once_and_without_its_password(
    study: Study,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(TrackingError, match="no answer") as caught:
        study.ingest(uri=f"http://user:secret@{address}")
    assert address in str(caught.value)
    assert "secret" not in str(caught.value)


def test_certificates_are_checked_as_mlflow_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def get(uri: str, **named: Any) -> Any:
        asked.append((uri, named["verify"]))
        if named["verify"] is True:
            raise requests.exceptions.SSLError("self-signed\nand more")
        return Mock()

    monkeypatch.setattr(requests, "get", get)
    with pytest.raises(
        TrackingError, match="self-signed.*variable MLFLOW_TRACKING_SERVER_CERT_PATH"
    ):
        store.reach_server("https://me:word@host")
    for name, value in (("SERVER_CERT_PATH", "a.pem"), ("INSECURE_TLS", "true")):
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)
        store.reach_server("https://host")
    assert asked == [("https://host", each) for each in (True, "a.pem", False)]
    lock, receipts, uri = Path("m.lock"), (Path("t/a.json"), Path("t/b.json")), "http://server:5000"
    locks = [store.lock_file(uri, lock, each) for each in receipts]  # neither waits for the other
    assert [*locks, store.lock_file("sqlite:///mlflow.db", lock, receipts[0])] == [
        Path("t/a.lock"),
        Path("t/b.lock"),
        lock,
    ]


def test_an_error_names_a_file_that_is_not_a_database(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MLflow tries ten times, for a hundred seconds, because a database may be starting
    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 1)
    write_text(study.root / "mlflow.db", "not a database, though long enough to be read as one")
    with pytest.raises(TrackingError, match="MLflow refused") as caught:
        study.ingest(uri=f"sqlite:///{study.root}/./mlflow.db")
    assert "\n" not in str(caught.value)
    assert not (study.root / "receipt.json").exists()


@pytest.mark.parametrize(
    "made", ["", "create table trace_info (a)", "create table experiments (a)"]
)
def test_a_store_whose_making_was_stopped_is_made_again(tmp_path: Path, made: str) -> None:
    database = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(made)
    before = database.read_bytes()
    store.create_tables(f"sqlite:///{database}")
    assert (tmp_path / "mlflow.db.damaged").read_bytes() == before, "may hold a person's notes"
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("select name from experiments").fetchall() == [("Default",)]


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
    # A new process would use this URI; mlflow keeps the deleted file open under the first URI.
    assert study.ingest()["created"] == 13
    assert not find_store_fault(receipt)


def test_only_a_local_store_can_be_missing(tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    record = {"format": "dpprobe-tracking", "format_version": 1, "dataset": "digits"}
    write_text(receipt, json.dumps(record | {"uri": "http://server:5000", "artifact_root": None}))
    assert not find_store_fault(receipt)
    # a receipt from before `artifact_root` was added
    write_text(receipt, json.dumps(record | {"uri": f"sqlite:///{tmp_path}/mlflow.db"}))
    assert find_store_fault(receipt)
    write_text(tmp_path / "mlflow.db", "")
    assert find_store_fault(receipt), "no tables"
    wrong: tuple[dict[str, Any], ...] = (
        {"artifact_root": "x"},
        {"uri": 3},
        {"format": "x", "uri": "http://server:5000"},
        {"uri": "sqlite:///a", "artifact_root": 1},
    )
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
    """Returns the metrics of all runs that MLflow shows."""
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


class Checked:
    """A store with known runs and two receipts; counts how often it is read."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.database, self.reads = root, root / "m.db", 0
        self.found: Any = ({"a", "b"}, set())
        monkeypatch.setattr(receipt_module, "read_runs", self._read)
        write_text(self.database, "x")
        record = {"format": RECEIPT_FORMAT, "uri": f"sqlite:///{self.database}", "dataset": "d"}
        for name in ("one", "two"):  # two results may share a run
            runs = {"k": "a", "l": "b", "m": "a"}
            write_text(root / name, json.dumps(record | {"name": name, "runs": runs}))

    def _read(self, database: Path) -> Any:
        assert database == self.database
        self.reads += 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def reads_of(self, name: str, **named: Any) -> int:
        """Checks a valid receipt; returns how often the store was read."""
        before = self.reads
        assert find_store_fault(self.root / name, **named) is None
        return self.reads - before

    def fault(self) -> Any:
        return find_store_fault(self.root / "one", skip=False)


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checked:
    return Checked(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["m.db", "m.db-wal", "two"])
def test_a_store_is_read_again_where_it_or_its_log_or_the_receipt_changed(
    checked: Checked, name: str
) -> None:
    assert checked.reads_of("two", note=True) == 1
    path = checked.root / name
    write_text(path, path.read_text() + " " if path.exists() else "log")
    assert checked.reads_of("two") == checked.reads_of("two") == 1
    assert checked.reads_of("two", note=True) == 1
    assert checked.reads_of("two") == 0


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (({"a"}, set()), "1 of its runs in {} were deleted"),
        ((set(), {"b"}), "2 of its runs in {} were deleted"),
        (({"a", "b"}, {"a", "b", "z"}), "2 of its runs in {} were changed"),
        (({"a", "b", "z"}, {"z"}), None),
        (sqlite3.OperationalError("database is locked"), None),
        (sqlite3.DatabaseError("torn"), "damaged (torn)"),
    ],
    ids=["deleted", "all deleted", "changed", "another's", "locked", "damaged"],
)
def test_runs_that_are_gone_or_changed_are_counted(
    checked: Checked, found: Any, words: str | None
) -> None:
    checked.found = found
    fault = checked.fault()
    assert (fault and fault.words) == (words and words.format(checked.database))
    if fault:
        damaged = isinstance(found, Exception)
        assert fault.path == (checked.database if damaged else checked.root / "one")
        assert checked.fault() == fault, "a fault is not noted"


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


@pytest.mark.slow
def test_two_ingesters_of_a_new_store_wait_for_each_other(study: Study) -> None:
    root = study.root
    (root / "mlflow.db").unlink()
    program = (  # forked after MLflow's import, before its first use
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from tests.support.tracked_study import Study\n"
        "study = Study(Path(sys.argv[2]))\n"
        "for index in range(2):\n"
        "    if not os.fork():\n"
        "        study.ingest(receipt=study.root / f'receipt-{index}.json')\n"
        "        sys.exit()\n"
        "sys.exit(any([os.wait()[1] for _ in range(2)]))\n"
    )
    repository = Path(__file__).resolve().parents[3]
    write_text(root / "receipt.json", "{}")
    command = [sys.executable, "-c", program, str(repository), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    receipts = [read_json(root / f"receipt-{index}.json") for index in range(2)]
    assert sorted(receipt["created"] for receipt in receipts) == [0, 13]
    assert receipts[0]["runs"] == receipts[1]["runs"]
    assert len(study.runs()) == 8
