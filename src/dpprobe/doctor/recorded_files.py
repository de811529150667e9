"""Finds records of results and split tables, and the files whose hashes they contain."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Container, Iterator, Mapping
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from dpprobe.analysis_registry import FOLDERS
from dpprobe.files.atomic_writes import PARTIAL_SUFFIX, is_left_behind
from dpprobe.files.json_files import FILE_BYTES, FILE_HASHES, RECORD_HASH, parse_record
from dpprobe.files.plain_files import read_bounded, sha256_file
from dpprobe.files.written_files import BYTES, OUTPUT, SHA256, locate_file
from dpprobe.files.written_files import FOLDER as WRITTEN_FOLDER
from dpprobe.files.written_files import FORMAT as WRITTEN_FORMAT
from dpprobe.json_values import hash_value
from dpprobe.results.cell_files import METRICS_FILE, PREDICTIONS_FILE
from dpprobe.results.network_record import RECORD_FILE, STATE_FILE

# Maps folders to their record and an output of the same rule: Snakemake deletes both or none.
_BESIDE = {
    "cells/*/*/*/eps-*": (METRICS_FILE, PREDICTIONS_FILE),
    "networks/*/*/*/eps-*/seed-*": (RECORD_FILE, STATE_FILE),
}
# Records that are recognised by path, below results and below split tables.
_PLACES = (
    *(f"{folder}/{record}" for folder, (record, _) in _BESIDE.items()),
    "features/*/*/*/manifest.json",
    "cuts/*/*/*/*/manifest.json",
    "calibration/*.json",
    "calibration/*/eps-*.json",
    "searches/*/*/*/eps-*.json",
)
_WRITTEN = f"{WRITTEN_FOLDER}/**/*.json"
_DATA_PLACES = ("*/dataset.json", "downloads/*/receipt.json")
# Folders, down to three levels, with records that are recognised by their format.
_FOLDERS = (*sorted(FOLDERS), "overlap", "tracking")
_CALIBRATION = "dpprobe-calibration"
# Formats that `write_record` does not write: the key of a record's own hash, and known versions.
_OWN_HASH: Mapping[str, tuple[str, tuple[int | None, ...]]] = {
    "dpprobe-manifest": ("manifest_sha256", (2,)),
    "dpprobe-plans": ("sha256", (4, 5)),
    _CALIBRATION: ("sha256", (None,)),
}
# Paths in results where each file has a hash in its own or its job's record. Cells and networks are
# left out, because their records are written last.
_HASHED = (*_FOLDERS, "calibration", "cuts", "features", "figures", "searches", "summary", "tables")
_HASHED += ("report.html",)
CHANGED, MISSING, NOT_PLAIN = "changed after it was written", "missing", "not a plain file"
_INSPECT = "inspect it, and move it elsewhere"
_LOOP = "delete the link, which leads to itself, and run the study again"
_DOWNLOAD = "delete it and the receipt.json of its dataset, to download it again"


class Checked(NamedTuple):
    """A file that was compared with a hash; `fault` is None if the file is undamaged.

    Snakemake recreates the file as part of `target`. If the file must not be deleted, `by_hand` is
    the user's remedy. If `heals` is True, the next run repairs the damage.
    """

    path: Path
    size: int
    fault: str | None
    target: Path
    by_hand: str = ""
    heals: bool = False


class RecordedFile(NamedTuple):
    """A file with a recorded hash, and a recorded size if known."""

    path: Path
    sha256: str
    size: int | None
    target: Path
    by_hand: str

    def check_bytes(self) -> Checked:
        size, fault, by_hand = 0, None, self.by_hand
        try:
            status = self.path.stat()
            size = status.st_size
            if not stat.S_ISREG(status.st_mode):
                fault, by_hand = NOT_PLAIN, _INSPECT
            elif self.size is not None and size != self.size:
                word = "truncated" if size < self.size else "too long"
                fault = f"{word}: {size} bytes, but {self.size} were written"
            elif sha256_file(self.path) != self.sha256:
                fault = CHANGED
        except OSError as error:
            fault, by_hand = _describe_error(error, by_hand)
        return Checked(self.path, size, fault, self.target, by_hand, heals=fault == MISSING)


class FoundRecord(NamedTuple):
    """A record with the files that it lists; `hashed` is True if it has a hash of itself."""

    checked: Checked
    hashed: bool = True
    files: tuple[RecordedFile, ...] = ()


class _KeptError(ValueError):
    """A record has a fault but must not be deleted; has the user's remedy."""


def _describe_error(error: OSError, by_hand: str = "") -> tuple[str, str]:
    if isinstance(error, FileNotFoundError):
        return MISSING, by_hand
    remedies = {errno.EACCES: "correct its permissions, and check again", errno.ELOOP: _LOOP}
    return f"unreadable ({error.strerror})", remedies.get(error.errno or 0, _INSPECT)


def list_records(folder: Path, *, data: bool = False) -> list[Path]:
    """Lists records of results or split tables, and missing records of finished jobs."""
    if data:
        return sorted(chain.from_iterable(map(folder.glob, _DATA_PLACES)))
    others = ("/".join((name, *"*" * depth, "*.json")) for name in _FOLDERS for depth in range(4))
    records = set(chain.from_iterable(map(folder.glob, (*_PLACES, _WRITTEN, *others))))
    for pattern, (record, beside) in _BESIDE.items():
        for place in folder.glob(pattern):
            if (place / beside).exists():
                records.add(place / record)
    return sorted(path for path in records if path.name[0] != ".")


def list_unrecorded(results: Path, checked: Container[Path]) -> list[Path]:
    """Lists results without a record, for example if a copy lacks the records' dot folder."""
    places = [results / name for name in _HASHED]
    files = [place for place in places if place.is_file()]
    for place, folders, names in chain.from_iterable(map(os.walk, places)):
        folders[:] = [name for name in folders if name[0] != "."]
        files += [Path(place, name) for name in names if name[0] != "."]
    return sorted(path for path in files if path not in checked and path.is_file())


def list_left_behind(*folders: Path) -> list[Path]:
    """Lists the temporary files of killed jobs."""
    temporary = chain.from_iterable(folder.rglob(f".*{PARTIAL_SUFFIX}") for folder in folders)
    return sorted(path for path in temporary if path.is_file() and is_left_behind(path))


def read_recorded(path: Path) -> FoundRecord | None:
    """Reads a record and checks the record's own hash; None for a file of another program."""
    placed = any(path.match(place) for place in (*_PLACES, *_DATA_PLACES))
    placed |= WRITTEN_FOLDER in path.parts
    size, by_hand = 0, ""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _KeptError(NOT_PLAIN, _INSPECT)
        content = read_bounded(path)
        size, placed = len(content), placed or b'"dpprobe-' in content or not content.strip(b"\0")
        values = parse_record(content)
        if not isinstance(values, dict) or not str(values.get("format")).startswith("dpprobe-"):
            raise ValueError("not a record of dpprobe")
        hashed = RECORD_HASH in values or _check_own_hash(values)
        _check_place(path, values)
        files = _list_files(path, values)
        return FoundRecord(Checked(path, size, None, path), hashed, files)
    except OSError as error:
        fault, by_hand = _describe_error(error)
    except _KeptError as error:
        fault, by_hand = error.args
    except ValueError as error:
        fault = str(error)
    heals = fault == MISSING or WRITTEN_FOLDER in path.parts
    return FoundRecord(Checked(path, size, fault, path, by_hand, heals)) if placed else None


def _check_own_hash(values: Mapping[str, Any]) -> bool:
    """Checks a record's hash of its values; returns False if the record has no such hash."""
    key, versions = _OWN_HASH.get(values["format"], (None, ()))
    body = {name: value for name, value in values.items() if name != key}
    if key and values.get(key) != hash_value(body):
        if values.get("format_version") not in versions:
            raise _KeptError(
                "written by another version of dpprobe, or changed",
                "delete the record if you do not need it",
            )
        raise ValueError(CHANGED)
    return key is not None


def _check_place(path: Path, values: Mapping[str, Any]) -> None:
    """Raises an error for a record whose cell, dataset or backbone differs from its path."""
    if values["format"] == _CALIBRATION and path.stem != hash_value(values.get("inputs")):
        raise ValueError("its file name is the hash of another calibration")
    names = values.get("cell", values)
    if not isinstance(names, Mapping) or not {"dataset", "backbone"} <= names.keys():
        return
    wanted = [names["dataset"], names["backbone"], names.get("method", names["dataset"])]
    wanted += [f"eps-{names['epsilon']}"] if isinstance(names.get("epsilon"), str) else []
    named = {*path.parts[-7:], path.stem}
    if other := [name for name in dict.fromkeys(map(str, wanted)) if name not in named]:
        remedy = "the record is complete: move it to that folder, or delete it and run the study"
        raise _KeptError(f"belongs to {', '.join(other)}", remedy)


def _list_files(path: Path, values: Mapping[str, Any]) -> tuple[RecordedFile, ...]:
    """Lists the files whose hashes a record contains; refuses files outside the record's folder."""
    kind, folder = values["format"], path.parent
    try:
        if kind == WRITTEN_FORMAT:
            return tuple(_list_written(path, values["files"]))
        if kind == "dpprobe-manifest" and "members" in values:
            parts = []  # the members' manifests list the shards
        elif kind == "dpprobe-manifest":
            parts = [(part["file"], part["sha256"], part["bytes"]) for part in values["shards"]]
        elif kind == "dpprobe-dataset":
            splits = values["splits"].items()
            parts = [(f"{name}.parquet", p["sha256"], p.get("bytes")) for name, p in splits]
        elif kind == "dpprobe-download":
            parts = [(part["name"], part["sha256"], part["bytes"]) for part in values["files"]]
        else:
            hashes = values.get("files", values.get(FILE_HASHES)) or {}
            sizes = values.get(FILE_BYTES) or {}
            parts = [(name, sha256, sizes.get(name)) for name, sha256 in hashes.items()]
        for pure in (PurePath(name) for name, *_ in parts):
            nested = len(pure.parts) > 1 and kind != "dpprobe-download"
            if pure.is_absolute() or ".." in pure.parts or nested:
                raise _KeptError(
                    f"names {pure}, outside the record's folder", "find out what wrote the record"
                )
    except (KeyError, TypeError, AttributeError):
        raise _KeptError(
            "lacks hashes of files", "check if another version of dpprobe wrote the record"
        ) from None
    by_hand = _DOWNLOAD if kind == "dpprobe-download" else ""
    targets_itself = kind in ("dpprobe-manifest", "dpprobe-dataset")
    return tuple(
        RecordedFile(
            folder / name, sha256, size, folder / name if targets_itself else path, by_hand
        )
        for name, sha256, size in parts
    )


def _list_written(path: Path, files: Mapping[str, Mapping[str, Any]]) -> Iterator[RecordedFile]:
    """Lists the files in a job's record, whose names are relative to the results folder."""
    root = next(folder.parent for folder in path.parents if folder.name == WRITTEN_FOLDER)
    for name, written in files.items():
        target = locate_file(root, written.get(OUTPUT, name))
        yield RecordedFile(locate_file(root, name), written[SHA256], written[BYTES], target, "")
