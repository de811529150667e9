"""The receipt of tracking a dataset or a study: the MLflow store, and the runs in the store.

This module does not import mlflow, so that each start of Snakemake can compare receipts and stores.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing, suppress
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from dpprobe.files.json_files import read_json, write_json
from dpprobe.json_values import hash_value
from dpprobe.study.options import sqlite_file

RECEIPT_FORMAT = "dpprobe-tracking"
RECEIPT_FORMAT_VERSION = 1
ROWS_HASH = "rows_hash"  # tag: hash of the params and metrics that were logged with a run
CHECKED = ".checked"  # file with the state of each receipt's store at the last check
_LOCKED = "locked"  # word in SQLite's error if another program writes
Row = tuple[str, float, int]  # a metric's name, value and step


def hash_rows(metrics: Iterable[Row], params: Mapping[str, str]) -> str:
    """Returns the hash of a run's params and metrics, and of each metric's latest value.

    MLflow stores equal rows only once. "Latest" means the largest value at the largest step.
    """
    rows = sorted({(name, int(step), float(value)) for name, value, step in metrics})
    return _hash_stored(rows, {name: value for name, _, value in rows}, params)


def _hash_stored(
    rows: Iterable[tuple[str, int, float]], latest: Mapping[str, float], params: Mapping[str, str]
) -> str:
    return hash_value([[list(row) for row in rows], latest, params])


class StoreFault(NamedTuple):
    """The damaged file, and the reason why a receipt's runs must be rewritten."""

    path: Path
    words: str


def find_store_fault(receipt: Path, *, skip: bool = True, note: bool = False) -> StoreFault | None:
    """Compares the runs of a receipt with their store; returns None if all runs are unchanged.

    Also returns None if the receipt is missing, if a server has the store, or if another program
    locks the store. Relative paths start from the working directory.

    Args:
      skip: True to read a store only if it has changed since the last noted check.
      note: True to note the result of this check in the file `CHECKED`.
    """
    try:
        record = read_json(receipt)
        if record["format"] != RECEIPT_FORMAT:
            raise ValueError(f"not a {RECEIPT_FORMAT}")
        database, root = sqlite_file(record["uri"]), record.get("artifact_root")
        artifacts = None if root is None else Path(root) / record["dataset"]
        runs = set(record.get("runs", {}).values())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return StoreFault(receipt, f"unreadable ({error})")
    if database is None:
        return None
    if not database.is_file() or (artifacts is not None and not artifacts.is_dir()):
        return StoreFault(receipt, "its MLflow store is gone")
    here = None if root is None else Path(root).resolve().as_uri()
    # moving a parent folder changes neither the size nor the times of a file
    states = [here, *map(_describe_state, (database, _log_of(database), receipt))]
    checked = receipt.with_name(CHECKED)
    noted: dict[str, Any] = {}
    with suppress(OSError, ValueError, TypeError):
        noted = dict(read_json(checked))
    if noted.get(receipt.name) == states and skip:
        return None
    try:
        present, changed = read_runs(database)
        elsewhere = None if here is None else _find_elsewhere(database, runs, here)
    except sqlite3.Error as error:
        return None if _LOCKED in str(error) else StoreFault(database, f"damaged ({error})")
    if elsewhere is not None:
        return StoreFault(receipt, f"artifacts of its runs are at {elsewhere}, results at {here}")
    for words, number in (("deleted", len(runs - present)), ("changed", len(runs & changed))):
        if number:
            return StoreFault(receipt, f"{number} of its runs in {database} were {words}")
    if note:
        with suppress(OSError):  # the user may have no permission to write into the results
            write_json(checked, {**noted, receipt.name: states})
    return None


def _describe_state(path: Path) -> list[int] | None:
    with suppress(FileNotFoundError):
        status = path.stat()
        return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return None


def _find_elsewhere(database: Path, runs: Collection[str], here: str) -> str | None:
    """Returns an artifact address of one of these runs that is not below `here`, if any."""
    with closing(open_readable(database)) as connection:
        for run, address in connection.execute("select run_uuid, artifact_uri from runs"):
            if run in runs and not str(address).startswith(f"{here}/"):
                return str(address)
    return None


def set_aside(database: Path, suffix: str = "damaged") -> Path:
    """Renames a store and its log, because SQLite would replay the log into a new store."""
    kept = database.with_name(f"{database.name}.{suffix}")
    for ending in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            database.with_name(database.name + ending).replace(f"{kept}{ending}")
    return kept


def _log_of(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def read_runs(database: Path) -> tuple[set[str], set[str]]:
    """Returns a SQLite store's finished runs, and the runs whose params or metrics changed.

    Raises sqlite3.Error if the store is damaged or locked.
    """
    state = tuple(str(_describe_state(path)) for path in (database, _log_of(database)))
    return _read_runs(database.absolute(), state)


@cache
def _read_runs(database: Path, _: tuple[str, ...]) -> tuple[set[str], set[str]]:
    with closing(open_readable(database)) as connection:
        if (fault := connection.execute("pragma quick_check(1)").fetchone()) != ("ok",):
            raise sqlite3.DatabaseError(str(fault[0]).splitlines()[-1])
        finished = connection.execute(
            "select run_uuid from runs where lifecycle_stage = 'active' and status = 'FINISHED'"
        )
        present = {run for (run,) in finished}
        tags = connection.execute("select run_uuid, value from tags where key = ?", [ROWS_HASH])
        hashes = dict(tags.fetchall())
        rows = _group_rows(connection, "metrics", "key, step, value")
        latest = _group_rows(connection, "latest_metrics", "key, value")
        params = _group_rows(connection, "params", "key, value")
    changed = {
        run
        for run, wanted in hashes.items()
        if wanted
        != _hash_stored(rows.get(run, []), dict(latest.get(run, [])), dict(params.get(run, [])))
    }
    return present, changed


def open_readable(database: Path) -> sqlite3.Connection:
    """Opens a store for reading only."""
    # without a log, no program is writing; SQLite opens immutable files even in a read-only folder
    options = "mode=ro" if _log_of(database).exists() else "immutable=1"
    uri = f"file:{quote(str(database.absolute()))}?{options}"
    return sqlite3.connect(uri, uri=True, timeout=1.0)


def _group_rows(connection: sqlite3.Connection, table: str, columns: str) -> dict[str, list[Any]]:
    rows = connection.execute(f"select run_uuid, {columns} from {table} order by 1, 2, 3")
    return {run: [row[1:] for row in group] for run, group in groupby(rows, key=itemgetter(0))}
