"""Manages the MLflow store: URI, SQLite database, lock for writers, readable errors."""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import requests
from filelock import FileLock, Timeout
from mlflow import MlflowClient
from mlflow.environment_variables import (
    MLFLOW_TRACKING_INSECURE_TLS,
    MLFLOW_TRACKING_SERVER_CERT_PATH,
)
from mlflow.exceptions import MlflowException
from sqlalchemy import Engine, event
from sqlalchemy.exc import SQLAlchemyError

from dpprobe.errors import TrackingError
from dpprobe.progress import report_wait
from dpprobe.study.options import sqlite_file
from dpprobe.tracking.receipt import set_aside

logger = logging.getLogger("dpprobe")
logging.getLogger("mlflow").setLevel(logging.WARNING)  # MLflow logs each table that it creates

LOCK_SECONDS = 3600.0
LOCK_NOTE_SECONDS = 5.0  # a wait for the lock is logged after this time
BUSY_SECONDS = 600.0  # longest wait of an SQL statement for a database that a program locks
HTTP_SECONDS = 10.0
# SQLite's messages about a lock, or a full, read-only or broken disk; the store itself is intact.
_LOCKED = re.compile("database (table |schema )?is locked")
UNWRITABLE = re.compile(
    "disk is full|disk I/O error|readonly database|unable to open database|File too large"
)
_TUNED: set[Path] = set()  # databases that `_sync_at_checkpoints` has set up


def create_tables(uri: str) -> None:
    """Creates the store's tables if they are missing; the caller must hold the store's lock."""
    if is_server(uri):
        reach_server(uri)
        return
    database = sqlite_file(uri)
    if database is None:
        raise TrackingError(
            f"tracking.uri: {public_uri(uri)!r} has an unsupported scheme; write "
            "sqlite:///relative/path, http://server or https://server"
        )
    database.parent.mkdir(parents=True, exist_ok=True)
    if database.is_file() and _is_half_made(database):
        logger.warning("%s: incomplete MLflow store; renamed to %s", database, set_aside(database))
    _sync_at_checkpoints(database)
    # The migration of a new database would log each of its many steps.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
    checkpoint_log(uri)


def _is_half_made(database: Path) -> bool:
    """Returns True if a store has no experiment, which MLflow adds in its last step of creation.

    Raises sqlite3.DatabaseError if the file is damaged.
    """
    with closing(sqlite3.connect(database, timeout=BUSY_SECONDS)) as connection:
        named = connection.execute("select count(*) from sqlite_master where name = 'experiments'")
        if named.fetchone() == (0,):
            return True
        return connection.execute("select count(*) from experiments").fetchone() == (0,)


def checkpoint_log(uri: str) -> None:
    """Moves the write-ahead log into the SQLite database, so that one file has all data."""
    database = sqlite_file(uri)
    if database is not None:
        with closing(sqlite3.connect(database, timeout=BUSY_SECONDS)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _sync_at_checkpoints(database: Path) -> None:
    """Sets up a write-ahead log, which avoids a sync to disk at each of a run's eight commits.

    A power cut may lose the last runs; the next update of MLflow rewrites them.
    """
    if database in _TUNED:
        return
    _TUNED.add(database)

    def tune_connection(connection: Any, record: Any) -> None:  # noqa: ARG001
        if not isinstance(connection, sqlite3.Connection):
            return
        opened = connection.execute("PRAGMA database_list").fetchone()[2]
        if opened and Path(opened) == database.resolve():
            # set first, because MLflow gives up silently if the next pragma meets a lock
            connection.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000:.0f}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")

    event.listen(Engine, "connect", tune_connection)


def is_server(uri: str) -> bool:
    return urlsplit(uri).scheme in ("http", "https")


def public_uri(uri: str) -> str:
    """Returns the URI without a user name or password."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def reach_server(uri: str) -> None:
    """Raises TrackingError at once if no server answers, because MLflow's own retries take minutes.

    Any answer of the server is accepted, even a request to log in. Certificates are checked
    according to MLflow's settings.
    """
    try:
        requests.get(
            public_uri(uri),
            timeout=HTTP_SECONDS,
            stream=True,
            allow_redirects=False,
            verify=not MLFLOW_TRACKING_INSECURE_TLS.get()
            and (MLFLOW_TRACKING_SERVER_CERT_PATH.get() or True),
        ).close()
    except requests.exceptions.SSLError as error:
        raise TrackingError(
            f"tracking.uri: {public_uri(uri)}: the server's certificate is not trusted "
            f"({first_line(error)}); set the environment variable "
            f"{MLFLOW_TRACKING_SERVER_CERT_PATH.name} to the server's certificate authority file"
        ) from None
    except (OSError, requests.RequestException) as error:
        raise TrackingError(
            f"tracking.uri: {public_uri(uri)}: no answer from this address ({first_line(error)}); "
            "start the MLflow server or set another URI"
        ) from None


def lock_file(uri: str, lock: Path, receipt: Path) -> Path:
    """Returns the file to lock: `lock` for SQLite, a file in the receipt's folder for a server."""
    return receipt.with_suffix(".lock") if is_server(uri) else lock


@contextmanager
def hold_store(uri: str, *, lock: Path, receipt: Path) -> Iterator[None]:
    """Locks a store for writing and logs waits; converts errors to TrackingErrors with a remedy."""
    with (
        hold_lock(lock_file(uri, lock, receipt)),
        readable_errors(uri),
        report_database_locks(None if is_server(uri) else sqlite_file(uri)),
    ):
        yield


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on a file, after waiting up to LOCK_SECONDS for the lock.

    The system releases the lock when the process ends.
    """
    # No fallback to lock files without system locks: a killed job's file would block forever.
    lock = FileLock(path, fallback_to_soft=False)
    try:
        with _warn_of_wait(
            f"{path}: locked by another run that writes to the MLflow store; waiting; end that "
            "run if it hangs"
        ):
            held = lock.acquire(timeout=LOCK_SECONDS, poll_interval=0.1)
    except Timeout:
        raise TrackingError(
            f"{path}: locked by another process for {LOCK_SECONDS:.0f} s; wait for that process "
            "or end it"
        ) from None
    with held:
        yield


@contextmanager
def report_database_locks(database: Path | None) -> Iterator[None]:
    """Warns if another program locks a SQLite database for long, because SQL waits silently."""
    if database is None:
        yield
        return
    with _warn_of_wait(
        f"{database}: another program keeps this SQLite database locked; waiting up to "
        f"{BUSY_SECONDS:.0f} s; close the program that has it open (sqlite3, a database browser, "
        "a backup)",
        waits=partial(is_locked, database),
    ):
        yield


def _warn_of_wait(text: str, **options: Any) -> AbstractContextManager[None]:
    return report_wait(text, level=logging.WARNING, first=LOCK_NOTE_SECONDS, **options)


def is_locked(database: Path) -> bool:
    """Returns True if a SQLite database is locked against writing."""
    if not database.is_file():
        return False
    try:
        # this process's own statements hold the lock for less than the timeout
        with closing(sqlite3.connect(database, timeout=0.5, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        return _LOCKED.search(str(error)) is not None
    return False


@contextmanager
def readable_errors(uri: str) -> Iterator[None]:
    """Converts errors of MLflow and its database to TrackingErrors: one line with the remedy."""
    try:
        yield
    except (MlflowException, SQLAlchemyError, sqlite3.Error) as error:
        remedy = (
            "correct the cause at the server, then run the study again; the server keeps all data "
            "written before"
            if is_server(uri)
            else "close the program that has the store open, and run the study again; the store is "
            "intact"
            if _LOCKED.search(str(error))
            else "free space, lift the limit on sizes of files, or mount the disk for writing, and "
            "run the study again"
            if UNWRITABLE.search(str(error))
            else "repair the store, or have `dpprobe doctor --fix` move the store aside; then run "
            "the study again, which recreates its runs from the cells' files"
        )
        raise TrackingError(
            f"{public_uri(uri)}: MLflow refused: {first_line(error)}; {remedy}"
        ) from error


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def search_all(search: Callable[..., Any]) -> Iterator[Any]:
    token = None
    while True:
        page = search(max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
