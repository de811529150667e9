"""Removes figures, tables and summaries that a study no longer makes, e.g. for a removed backbone.

Studies may share a results folder. So a run lists the files that its study shows. A later run
removes a listed file only if no other study lists it, and if nobody changed the file since a job
wrote it. Cells and features remain, because the backbone may be added again, and because a release
counts cells that somebody may have seen.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from dpprobe.counted_nouns import count_noun
from dpprobe.files.json_files import read_json, write_record
from dpprobe.files.plain_files import sha256_file
from dpprobe.files.written_files import FOLDER as WRITTEN_FOLDER
from dpprobe.files.written_files import SHA256, forget_files, locate_file, read_written
from dpprobe.json_values import hash_value

FOLDER = ".shown"  # in results_dir, with one list per study
FORMAT, FORMAT_VERSION = "dpprobe-shown", 1


def remove_dropped(results: Path, study: object, shown: Collection[str]) -> list[Path]:
    """Removes files that `study` showed in an earlier run but no longer shows; returns their paths.

    `study` identifies the study as JSON with its name, folder and files. `shown` has the paths of
    all its figures, tables and summaries, relative to `results`.
    """
    listed = results / FOLDER / f"{hash_value(study)[:16]}.json"
    lists = {path: _read_list(path) for path in {listed, *listed.parent.glob("[!.]*.json")}}
    dropped = lists.pop(listed) - {*shown}.union(*lists.values())
    removed = list[Path]()
    for record in sorted((results / WRITTEN_FOLDER).rglob("[!.]*.json")) if dropped else ():
        with suppress(OSError, ValueError):  # the next run repairs a damaged record
            files = read_written(record)
            gone = {
                name: path
                for name in sorted(dropped & files.keys())
                if (path := locate_file(results, name)).is_file()
                and sha256_file(path) == files[name].get(SHA256)
            }
            for path in gone.values():
                path.unlink()
                removed.append(path)
            if gone:
                forget_files(record, gone)
    with suppress(OSError):  # in a read-only folder, an earlier run's list remains
        values = {"format": FORMAT, "format_version": FORMAT_VERSION}
        write_record(listed, {**values, "files": sorted(shown)})
    return removed


def describe_removed(removed: Collection[Path]) -> str:
    first = min(removed)
    more = f", such as {first}" if len(removed) > 1 else f": {first}"
    return f"removed {count_noun(len(removed), 'file')} that the study no longer has{more}"


def _read_list(path: Path) -> set[str]:
    try:
        return set(read_json(path)["files"])
    except (OSError, KeyError, TypeError, ValueError):
        return set()
