"""Finished results of slow jobs, each in a folder named after a hash of its inputs and options.

Snakemake deletes a job's outputs before the job starts and after it failed. So cells, networks,
audits and representation laws are stored in `<results>/.cells/<key>`, and their files are linked
into a job's outputs. If the store has a result's key, its fingerprint, the job computes nothing.
So if former options return, their results are reused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from dpprobe.files.atomic_writes import PARTIAL_SUFFIX, atomic_path, flush_to_disk
from dpprobe.files.json_files import FILE_BYTES, read_json

FOLDER = ".cells"
# Patterns of the records of published results, below the results folder, with fingerprints.
_RECORDS = (
    "cells/*/*/*/eps-*/metrics.json",
    "networks/*/*/*/eps-*/seed-*/result.json",
    "audit/*/*/*/eps-*.json",
    "layers/*/*/law.json",
)


def locate_stored(results: Path, fingerprint: str, *, index: int | None = None) -> Path:
    """Returns the folder of a result; `index` is a network's seed."""
    seed = "" if index is None else f".seed-{index}"
    return results / FOLDER / f"{fingerprint}{seed}"


def locate_partial(stored: Path) -> Path:
    """Returns the folder in which a result is written before it is renamed to `stored`."""
    return stored.with_name(f".{stored.name}{PARTIAL_SUFFIX}")


def publish_files(stored: Path, target: Path, names: Sequence[str]) -> None:
    """Links a stored result's files into a job's outputs, or copies them if links are impossible.

    All files are prepared before the first replaces its target. The record, first of `names`, is
    replaced last. All files get the present time, which Snakemake compares with inputs' times.
    """
    target.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for name in names:
            temporary = stack.enter_context(atomic_path(target / name))
            _link_file(stored / name, temporary)
            os.utime(temporary)


def _link_file(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a disk without links, or a file with too many
        shutil.copyfile(source, target)
        flush_to_disk(target)


def keep_published(results: Path, record: Path) -> None:
    """Links a published result into the store, before Snakemake deletes it.

    The store lacks results of an earlier dpprobe, and results that were copied without dot folders.

    Args:
      record: the path of the result's record; any other file is ignored.
    """
    if record.suffix != ".json":
        return
    with suppress(OSError, ValueError, KeyError, TypeError):  # damaged or incomplete: recomputed
        values = read_json(record)
        stored = _locate_by_record(results, values)
        if stored.exists():
            return
        names = [record.name, *values.get("files", {}), *values.get(FILE_BYTES, {})]
        partial = locate_partial(stored)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name in names:
            _link_file(record.with_name(name), partial / name)
        partial.rename(stored)


def list_unpublished(results: Path) -> list[Path]:
    """Lists the store's folders of unpublished results, for example results of former options."""
    stored = sorted((results / FOLDER).glob("[!.]*/"))
    published = set()
    for path in (path for place in _RECORDS if stored for path in results.glob(place)):
        with suppress(OSError, ValueError, KeyError, TypeError):
            published.add(_locate_by_record(results, read_json(path)))
    return [folder for folder in stored if folder not in published]


def _locate_by_record(results: Path, record: Mapping[str, Any]) -> Path:
    """Returns a published result's folder in the store; ValueError if the record has no key."""
    fingerprint, index = record["fingerprint"], record.get("index")
    if not str(fingerprint).isalnum() or not isinstance(index, int | None):
        raise ValueError("no fingerprint")
    return locate_stored(results, str(fingerprint), index=index)
