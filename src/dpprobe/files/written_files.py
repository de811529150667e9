"""Records of the files that jobs wrote: one record per job, with each file's size, times and hash.

A run compares sizes and times before it plans, so that the job of a changed file runs again.
`dpprobe doctor` compares all bytes of recorded files.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpprobe.files.json_files import FILE_BYTES, parse_record, read_json, write_record
from dpprobe.files.plain_files import sha256_file
from dpprobe.files.run_marks import MARKED

logger = logging.getLogger("dpprobe")

FOLDER = ".written"  # in results_dir, with the record of `logs/<job>.log` as `<job>.json`
FORMAT, FORMAT_VERSION = "dpprobe-written", 1
# Times of modification and of change, in nanoseconds; no program can set back the time of change.
TIMES, SHA256, BYTES = "times", "sha256", "bytes"
OUTPUT = "output"  # key of a file that no rule names: the output that the file accompanies
_EXTRA_FILES: set[Path] = set()  # files that this job wrote besides its outputs


def locate_record(log: str | Path, results: Path) -> Path:
    """Returns the path of a job's record, from the path of the job's log."""
    inside = Path(log).absolute().relative_to(results.absolute() / "logs")
    return results / FOLDER / inside.with_suffix(".json")


def locate_file(results: Path, name: str) -> Path:
    """Returns the path of a file, from its name in a record."""
    # `results/..` of a linked results folder would be the folder above the link's target
    return Path(os.path.normpath(results / name))


def read_written(record: Path) -> dict[str, dict[str, Any]]:
    """Reads the files that a record lists, by path relative to results_dir; empty without record.

    Raises ValueError if the record is damaged, OSError if unreadable.
    """
    try:
        values = read_json(record)
        if values["format"] != FORMAT:
            raise ValueError(f"not a {FORMAT}")
        return dict(values["files"])
    except FileNotFoundError:
        return {}
    except (KeyError, TypeError) as error:
        raise ValueError(f"lacks {error}") from None


def lacks_record(record: Path, outputs: Iterable[str]) -> bool:
    """Returns True if a finished job's record is lost, and no other record has its files' hashes.

    Shards begin with their hash. JSON records contain hashes of themselves and accompanying files.
    """
    files = [Path(path) for path in outputs if Path(path).name[0] != "."]
    known = any(path.suffix in (".h5", ".json") for path in files)
    return bool(files) and not known and not record.exists() and all(map(Path.exists, files))


def list_changed(record: Path, results: Path, *, refresh: bool = False) -> list[Path]:
    """Lists the files of a record that have changed; the record itself if it is damaged.

    A file that differs only in time, as after copying, is compared by its hash. With `refresh`, the
    record gets a file's new time if the hash is equal. Raises PermissionError if a file or a folder
    is unreadable.
    """
    try:
        files = read_written(record)
    except PermissionError:
        raise
    except (OSError, ValueError):
        return [record]
    changed, renewed = [], False
    for name, written in files.items():
        path = locate_file(results, name)
        try:
            now = _describe_state(path)
            if now == {key: written[key] for key in now}:
                continue
            same = now[BYTES] == written[BYTES] and sha256_file(path) == written[SHA256]
        except FileNotFoundError:
            # Snakemake looks for missing outputs itself
            if path.is_symlink() or OUTPUT in written:
                changed.append(path)
            continue
        except PermissionError:
            raise
        except (OSError, KeyError, TypeError):
            same = False
        if same:
            written.update(now)
            renewed = True
        else:
            changed.append(path)
    if renewed and refresh:
        with suppress(OSError):  # this user may only read the results
            _write(record, files)
    return changed


def forget_files(record: Path, names: Collection[str]) -> None:
    """Removes files from a record, and the record if it names no other file."""
    left = {name: written for name, written in read_written(record).items() if name not in names}
    if left:
        _write(record, left)
    else:
        record.unlink()


def add_file(path: Path) -> None:
    """Adds a file that is not among the job's outputs to the record of this process's job."""
    _EXTRA_FILES.add(path)


class JobRecord:
    """The record of the job of this process; no record outside a run of a study.

    Snakemake does not delete files that no rule names. When the job starts, such files are deleted
    if they changed, so that the job cannot reuse them. Outputs are recorded when the job finishes.
    """

    def __init__(self, log: Path, outputs: Iterable[str | Path]) -> None:
        folders = json.loads(os.environ.get(MARKED, "[]"))
        # Marks, whose names begin with a dot, are left out, because Snakemake touches them later.
        self._outputs = {path for path in map(Path, outputs) if path.name[0] != "."}
        self._results = Path(folders[0]) if folders and self._outputs else None
        if self._results is None:
            return
        self._record = locate_record(log, self._results)
        for path in list_changed(self._record, self._results):
            if path.is_file() or path.is_symlink():
                logger.warning("%s: changed after it was written; recreated", path)
                path.unlink()
        if self._record.exists():
            _write(self._record, self._list_others())

    def finish(self) -> None:
        """Records the job's outputs, files named by an output, and files passed to `add_file`."""
        if self._results is None:
            return
        made = {path: path for path in sorted(self._outputs) if path.is_file()}
        made = {extra: next(iter(made), extra) for extra in sorted(_EXTRA_FILES)} | made
        for path in [path for path in self._outputs if path.suffix == ".json" and path in made]:
            with suppress(ValueError):
                values = parse_record(path.read_bytes())
                beside = values.get(FILE_BYTES, {}) if isinstance(values, dict) else {}
                made = {path.with_name(name): path for name in beside} | made
        written = {
            self._name(path): _describe_state(path)
            | {SHA256: sha256_file(path)}
            | ({} if path == output else {OUTPUT: self._name(output)})
            for path, output in made.items()
        }
        _write(self._record, {**self._list_others(), **written})

    def _list_others(self) -> dict[str, dict[str, Any]]:
        """Lists recorded files outside this job's folders, for example another study's cells."""
        assert self._results is not None
        folders = {self._name(path.parent) for path in self._outputs}
        with suppress(OSError, ValueError):
            return {
                name: written
                for name, written in read_written(self._record).items()
                if os.path.dirname(name) not in folders  # noqa: PTH120
                and locate_file(self._results, name).exists()
            }
        return {}

    def _name(self, path: Path) -> str:
        return Path(os.path.relpath(path.absolute(), self._results)).as_posix()


def _describe_state(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {BYTES: status.st_size, TIMES: [status.st_mtime_ns, status.st_ctime_ns]}


def _write(record: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    values = {"format": FORMAT, "format_version": FORMAT_VERSION}
    write_record(record, {**values, "files": dict(sorted(files.items()))})
