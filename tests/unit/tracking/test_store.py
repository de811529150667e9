"""The MLflow store: one writer at a time, and errors that name what to do."""

from __future__ import annotations

import fcntl
import shutil
import socket
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from itertools import product
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from dpprobe.artifacts import read_json, write_text
from dpprobe.errors import TrackingError
from dpprobe.tracking import store
from tests.support.stored_records import check_values
from tests.support.tracked_study import Study

LOCALHOST = IPv4Address("127.0.0.1")


@pytest.mark.slow
def test_two_ingesters_of_a_new_store_wait_for_each_other(study: Study) -> None:
    root = study.root
    (root / "mlflow.db").unlink()
    program = (  # they are forked from one that has imported MLflow and asked it for nothing
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


def test_a_long_wait_for_the_lock_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store, "LOCK_SECONDS", 0.5)
    monkeypatch.setattr(store, "LOCK_NOTE_SECONDS", 0.1)
    caplog.set_level("INFO", logger="dpprobe")
    path = tmp_path / "new" / "lock"
    with store.hold_lock(path):
        pass
    with path.open() as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(TrackingError, match="locked by another process"), store.hold_lock(path):
            pytest.fail("two processes hold one lock")
    assert 2 <= len([text for text in caplog.messages if "waiting" in text]) <= 4
    with pytest.raises(KeyError), store.hold_lock(path):
        raise KeyError
    with store.hold_lock(path):
        pass


def test_a_locked_database_is_told_of_and_waited_for(
    study: Study, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """MLflow gave up after 80 seconds without a word, and its message said to delete the store."""
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


def test_a_lock_that_stays_is_no_reason_to_delete_the_store(study: Study) -> None:
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


def test_writers_of_a_server_do_not_wait_for_each_other(tmp_path: Path) -> None:
    lock, receipt = tmp_path / "mlflow.lock", tmp_path / "tracking/digits.json"
    assert store.lock_file("http://server:5000", lock, receipt) != lock
    assert store.lock_file("http://server:5000", lock, receipt) != store.lock_file(
        "http://server:5000", lock, receipt.with_name("letters.json")
    )
    assert store.lock_file("sqlite:///mlflow.db", lock, receipt) == lock


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


@pytest.fixture
def login_server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Serves a page that wants a login; yields its address and its certificate, not trusted yet."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mlflow.hospital")])
    today = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - timedelta(1)).not_valid_after(today + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(LOCALHOST)]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    path = tmp_path / "authority.pem"
    path.write_bytes(certificate.public_bytes(Encoding.PEM))
    private = tmp_path / "key.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, private)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_address[1]}", path
    server.shutdown()


def test_a_certificate_that_is_not_trusted_is_named_at_once(
    login_server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, path = login_server
    with pytest.raises(TrackingError, match="variable MLFLOW_TRACKING_SERVER_CERT_PATH"):
        store.reach_server(address)
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(path))
        store.reach_server(address)
    monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "true")
    store.reach_server(address)


@pytest.mark.parametrize("uri", ["results/mlruns", "sqlite:///", "ftp://server", "databricks"])
def test_another_kind_of_store_is_refused(uri: str) -> None:
    with pytest.raises(TrackingError, match="write sqlite:///relative/path"):
        store.create_tables(uri)


def test_a_file_that_is_no_database_is_named(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    # MLflow tries ten times, for a hundred seconds: a database may be starting
    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 1)
    write_text(study.root / "mlflow.db", "not a database, though long enough to be read as one")
    with pytest.raises(TrackingError, match="MLflow refused") as caught:
        study.ingest(uri=f"sqlite:///{study.root}/./mlflow.db")
    assert "\n" not in str(caught.value)
    assert not (study.root / "receipt.json").exists()


ERRORS: list[Exception] = [
    sqlite3.OperationalError("database or disk is full"), MlflowException("\nno run\nof the name"),
    SQLAlchemyError("database is locked"), sqlite3.OperationalError("database table is locked"),
    sqlite3.DatabaseError("malformed"), sqlite3.OperationalError("disk I/O error"),
]  # fmt: skip


def test_errors_of_the_store_have_a_remedy() -> None:
    """A full or locked one need not be deleted."""
    told = []
    for uri, error in product(("sqlite:///m.db", "https://me:word@host"), ERRORS):
        with pytest.raises(TrackingError) as caught, store.readable_errors(uri):
            raise error
        told.append(str(caught.value))
    check_values("store_errors", told)


def test_all_pages_of_a_search_are_read() -> None:
    pages = {None: ("ab", "1"), "1": ("", "2"), "2": ("c", None)}
    asked = []

    def search(*, max_results: int, page_token: str | None) -> Any:
        asked.append((max_results, page_token))
        content, token = pages[page_token]
        return type("Page", (list,), {"token": token})(content)

    assert list(store.search_all(search)) == ["a", "b", "c"]
    assert asked == [(1000, None), (1000, "1"), (1000, "2")]


def test_the_databases_file_alone_is_whole(study: Study) -> None:
    receipt = study.ingest()
    copy = study.root / "copy.db"
    shutil.copyfile(study.root / "mlflow.db", copy)
    with closing(sqlite3.connect(copy)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        finished = database.execute("select count(*) from runs where status = 'FINISHED'")
        assert finished.fetchone() == (len(receipt["runs"]),)


def test_the_receipt_holds_no_password() -> None:
    assert store.public_uri("https://me:word@host:5000/x") == "https://host:5000/x"
    assert store.public_uri("sqlite:///results/mlflow.db") == "sqlite:///results/mlflow.db"


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
