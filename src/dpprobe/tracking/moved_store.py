"""Handles SQLite stores whose results folder was moved or copied.

MLflow records the absolute address of each experiment's artifacts. If the results were moved or
copied with their store, every address leads to the old folder. If dpprobe wrote the whole store, it
is renamed, and tracking recreates its runs. Otherwise tracking ends with an error.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from dpprobe.counted_nouns import count_noun
from dpprobe.errors import TrackingError
from dpprobe.tracking.receipt import open_readable, set_aside

MOVED = "moved"  # suffix of a renamed store and of its artifacts
_EXPERIMENTS = """
    select artifact_location from experiments
    where experiment_id <> 0 or experiment_id in (select experiment_id from runs)
"""
# Queries for entries that dpprobe never writes into a store, by the noun for counting them.
_OTHERS = {
    "run": """
        select coalesce(name, run_uuid) from runs
        where run_uuid not in (select run_uuid from tags where key = 'result_key')
    """,
    "model version": """
        select name || ' ' || version from model_versions as each
        where current_stage <> 'Deleted_Internal' and not exists (
            select * from model_version_tags as tag
            where (tag.name, tag.version, tag.key) = (each.name, each.version, 'bundle_digest')
        )
    """,
    "logged model": "select name from logged_models",
    "trace": "select request_id from trace_info",
}
_ROLLED_BACK = "select name || ' ' || version from model_version_tags where key = 'rolled_back'"


def set_moved_aside(database: Path, artifact_root: Path) -> str | None:
    """Renames a moved store and its artifacts; returns a message, or None if it was not moved.

    A store with some artifacts here and some elsewhere does not change, nor does a store whose
    artifacts are still elsewhere and not here, because another folder's results use it.

    Raises TrackingError if a moved store has anything that tracking would not recreate.
    """
    if not database.is_file():
        return None
    with closing(open_readable(database)) as connection:
        locations = set(_list_values(connection, _EXPERIMENTS))
        if not locations or not all(_has_moved(each, artifact_root) for each in locations):
            return None
        old, here = min(locations), artifact_root.resolve().as_uri()
        told = f"{database}: its artifacts were at {old}, and the results are now at {here}"
        _refuse_others(connection, told, database)
        models = _list_values(connection, "select name from registered_models")
    kept = set_aside(database, MOVED)
    artifacts = artifact_root.with_name(f"{artifact_root.name}.{MOVED}")
    shutil.rmtree(artifacts, ignore_errors=True)
    if artifact_root.is_dir():
        artifact_root.rename(artifacts)
    line = f"{told}; only dpprobe wrote into it, so its runs are recreated; the old store is {kept}"
    if models:
        line += "; to recreate the models of releases, run `snakemake --cores all releases`"
    return line


def _refuse_others(connection: sqlite3.Connection, told: str, database: Path) -> None:
    """Raises TrackingError if a store has entries that tracking would not recreate."""
    remedy = (
        f"move the results back, or rename {database} and run the study again, which recreates "
        "dpprobe's runs in a new store"
    )
    for noun, query in _OTHERS.items():
        if found := _list_values(connection, query):
            raise TrackingError(
                f"{told}; it also holds {count_noun(len(found), noun)} that dpprobe did not write "
                f"({found[0]}{', ...' if len(found) > 1 else ''}); {remedy}"
            )
    if found := _list_values(connection, _ROLLED_BACK):
        raise TrackingError(
            f"{told}; a new store would not know of the rollback of {', '.join(found)}; {remedy}, "
            "and roll back again"
        )


def _list_values(connection: sqlite3.Connection, query: str) -> list[str]:
    """Returns the only column of a query's result; empty if the store lacks the table."""
    try:
        return [str(value) for (value,) in connection.execute(query)]
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return []
        raise


def _has_moved(location: str, artifact_root: Path) -> bool:
    """Returns True if an address is elsewhere, and its artifacts are gone or also exist here."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return False
    path, root = Path(url2pathname(parts.path)), artifact_root.resolve()
    if path.is_relative_to(root):
        return False
    _, found, inside = path.as_posix().rpartition(f"/{artifact_root.name}/")
    return not path.exists() or (bool(found) and (root / inside).is_dir())
