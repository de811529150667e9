"""The MLflow store: its URI, its SQLite database, the lock on it, and its errors made readable."""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
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
from dpprobe.study.options import sqlite_file

logger = logging.getLogger("dpprobe")
logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells of the tables that it creates

LOCK_SECONDS = 3600.0
LOCK_NOTE_SECONDS = 60.0
HTTP_SECONDS = 10.0
# SQLite's words for a disk that is full, read-only or broken: the store itself is whole.
UNWRITABLE = re.compile("disk is full|disk I/O error|readonly database|unable to open database")
_TUNED: set[Path] = set()  # databases whose connections are set up by `_sync_at_checkpoints`


def create_tables(uri: str) -> None:
    """Creates the store's tables if it has none. Not safe beside another first call.

    Raises:
      TrackingError: when the URI is of another kind or no server answers.
    """
    if is_server(uri):
        reach_server(uri)
        return
    database = sqlite_file(uri)
    if database is None:
        raise TrackingError(
            f"tracking.uri: {public_uri(uri)!r} is not known; write sqlite:///relative/path, "
            "http://server or https://server"
        )
    database.parent.mkdir(parents=True, exist_ok=True)
    _sync_at_checkpoints(database)
    # The migration of a new database logs each of its many steps.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
    checkpoint_log(uri)


def checkpoint_log(uri: str) -> None:
    """Moves the write-ahead log into the SQLite database, so that its file alone is whole."""
    database = sqlite_file(uri)
    if database is not None:
        with closing(sqlite3.connect(database, timeout=20.0)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _sync_at_checkpoints(database: Path) -> None:
    """Spares the database the disk's sync at each of the eight commits that a run takes.

    With a write-ahead log a power cut may cost the last runs, which the next ingest writes again,
    but it does not damage the file.
    """
    if database in _TUNED:
        return
    _TUNED.add(database)

    def tune_connection(connection: Any, record: Any) -> None:  # noqa: ARG001
        if not isinstance(connection, sqlite3.Connection):
            return
        opened = connection.execute("PRAGMA database_list").fetchone()[2]
        if opened and Path(opened) == database.resolve():
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")

    event.listen(Engine, "connect", tune_connection)


def is_server(uri: str) -> bool:
    """True if an MLflow server keeps the store."""
    return urlsplit(uri).scheme in ("http", "https")


def public_uri(uri: str) -> str:
    """Returns the URI without a user name or password."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def reach_server(uri: str) -> None:
    """Fails at once if no server answers: MLflow's own retries take minutes.

    Any answer will do, even a request to log in. Certificates are checked as MLflow checks them.

    Raises:
      TrackingError: when there is no answer, or the server's certificate is not trusted.
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
            f"tracking.uri: {public_uri(uri)}: its certificate is not trusted "
            f"({first_line(error)}); "
            f"set {MLFLOW_TRACKING_SERVER_CERT_PATH.name} to the file of its authority"
        ) from None
    except (OSError, requests.RequestException) as error:
        raise TrackingError(
            f"tracking.uri: {public_uri(uri)}: no answer ({first_line(error)}); start the MLflow "
            "server or write another URI"
        ) from None


def lock_file(uri: str, lock: Path, receipt: Path) -> Path:
    """Returns the file to lock: of a SQLite store its own, of a server one beside the receipt."""
    return receipt.with_suffix(".lock") if is_server(uri) else lock


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on a file; the system frees it when the process ends.

    Raises:
      TrackingError: when another process holds it for longer than LOCK_SECONDS.
    """
    # A file system without locks is an error: a lock file left by a killed job would stay held.
    lock = FileLock(path, fallback_to_soft=False)
    started = time.monotonic()
    while True:
        left = LOCK_SECONDS - (time.monotonic() - started)
        try:
            lock.acquire(timeout=max(0.0, min(LOCK_NOTE_SECONDS, left)), poll_interval=0.1)
            break
        except Timeout:
            waited = time.monotonic() - started
            if waited >= LOCK_SECONDS:
                raise TrackingError(
                    f"{path}: held by another process for {LOCK_SECONDS:.0f} s; "
                    "wait for it or end it"
                ) from None
            logger.info("%s: held by another process for %.0f s; waiting", path, waited)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def readable_errors(uri: str) -> Iterator[None]:
    """Raises errors of MLflow and its database as one line that says what to do.

    Raises:
      TrackingError: in their place.
    """
    try:
        yield
    except (MlflowException, SQLAlchemyError, sqlite3.Error) as error:
        remedy = (
            "mend that at the server, then run the study again; what was written stays"
            if is_server(uri)
            else "make room, or have the disk mounted for writing, and run the study again"
            if UNWRITABLE.search(str(error))
            else "repair the store, or delete it and run the study again: its runs are made "
            "anew from the cells' files"
        )
        raise TrackingError(
            f"{public_uri(uri)}: MLflow refused: {first_line(error)}; {remedy}"
        ) from error


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message."""
    return str(error).strip().split("\n")[0]


def search_all(search: Callable[..., Any]) -> Iterator[Any]:
    """Yields all results of one of MLflow's searches, page by page."""
    token = None
    while True:
        page = search(max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
