"""`dpprobe doctor`: compares all bytes of results with recorded hashes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from dpprobe.counted_nouns import count_noun
from dpprobe.doctor.recorded_files import (
    CHANGED,
    MISSING,
    Checked,
    list_left_behind,
    list_records,
    list_unrecorded,
    read_recorded,
)
from dpprobe.errors import ConfigError, DataError, DpprobeError
from dpprobe.files.disk_errors import MEGABYTE, format_size
from dpprobe.files.json_files import read_json
from dpprobe.files.result_store import FOLDER as STORE
from dpprobe.files.result_store import list_unpublished
from dpprobe.files.written_files import FOLDER as WRITTEN_FOLDER
from dpprobe.progress import Progress
from dpprobe.release.bundle import SUMS_FILE, damaged_files
from dpprobe.shown_text import one_line
from dpprobe.study.reserved_names import COMPARISON_FILE, COMPARISONS, LEDGER_FILE
from dpprobe.study.run_command import command_line, run_command, run_words
from dpprobe.study.snapshot import Run, recent_runs
from dpprobe.tracking.receipt import CHECKED, find_store_fault, set_aside

STORE_SUFFIX = ".db"
_LOCKS = Path(".snakemake/locks")
_THREADS = 8  # threads help: reading takes most of the time, and hashing releases the GIL
# A folder that changed in the last RECENT seconds is checked up to LOOKS times more, PAUSE seconds
# apart, because a job may be publishing it.
RECENT, LOOKS, PAUSE = 60, 4, 0.5


def add_command(commands: Any) -> None:
    summary = "check every byte of results against recorded hashes"
    parser: argparse.ArgumentParser = commands.add_parser("doctor", help=summary)
    parser.set_defaults(run=_run_doctor)
    parser.add_argument(
        "results",
        nargs="?",
        type=Path,
        help="a study's results_dir; default: the results_dir of the latest run in this folder",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="the study's data_dir (split tables, downloads and privacy ledgers); default: the "
        "data_dir of the latest run that wrote to these results",
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="delete damaged files, so that the next run recreates them; damaged bundles, ledgers, "
        "comparisons and downloads are not deleted",
    )


def _run_doctor(arguments: argparse.Namespace) -> int:
    runs = recent_runs()
    there = [run.results for run in runs if run.results.is_dir()]
    results = arguments.results or next(iter(there), Path("results"))
    run = next((run for run in runs if run.results.resolve() == results.resolve()), None)
    data = arguments.data or (run.data if run and run.data.is_dir() else None)
    for folder, key in ((results, "results_dir"), (data, "data_dir")):
        if folder is not None and not folder.is_dir():
            raise DataError(f"{folder}: no such folder; name the {key} of a study")
    if arguments.fix and _LOCKS.is_dir() and any(_LOCKS.iterdir()):
        unlock = command_line(*run_words(call=[*(run.call if run else ()), "--unlock"]))
        raise ConfigError(
            f"--fix: a run has locked this folder ({_LOCKS}); wait until the run ends, or run "
            f"`{unlock}` if it was killed"
        )
    started = time.monotonic()
    checked = check_files(results, data)
    seconds = max(time.monotonic() - started, 1e-3)
    if not checked:
        raise DataError(
            f"{results}: no file here has a recorded hash; name the results_dir of a study"
        )
    damaged = sorted(each for each in checked if each.fault)
    left = 0
    for each in damaged:
        made_again, remedy = _treat_damage(each, results, data, run, fix=arguments.fix)
        left += not made_again
        print(one_line(f"{each.path}: {each.fault}; {remedy}"))
    if arguments.fix:
        with suppress(OSError):
            (results / "tracking" / CHECKED).unlink()
    folders = [results, *([data] if data else [])]
    if left_behind := list_left_behind(*folders):
        for path in left_behind if arguments.fix else ():
            path.unlink(missing_ok=True)
        what = f"{count_noun(len(left_behind), 'temporary file')} of killed jobs"
        remedy = "deleted" if arguments.fix else "the next run replaces it, or --fix deletes it"
        print(f"{what}, such as {left_behind[0]}: {remedy}")
    # files next to a damaged record are recomputed with the record
    broken = {each.path.parent for each in damaged}
    unrecorded = [
        path
        for path in list_unrecorded(results, {each.path for each in checked})
        if path.parent not in broken
    ]
    if unrecorded:
        print(
            f"not checked: {count_noun(len(unrecorded), 'file')} without a recorded hash, such as "
            f"{unrecorded[0]}. Copy {results / WRITTEN_FOLDER} too, which a copy without dot files "
            f"leaves out, or run `{run_command(*(run.call if run else ()))}`, which recreates "
            "files without records"
        )
    if former := list_unpublished(results):
        size = sum(path.stat().st_size for folder in former for path in folder.iterdir())
        print(
            f"{results / STORE}: {count_noun(len(former), 'result')} of earlier options or failed "
            f"jobs, {format_size(size)}; to free the space, delete this folder; all other files "
            "stay"
        )
    if damaged and run is None:
        print(f"no run in this folder wrote {results}: add --configfile FILE to the commands")
    others = _list_other_folders(runs, folders)
    if runs and not runs[0].results.is_dir():
        print(f"not found: {runs[0].results}, the results of the latest run")
    for folder in others:
        print(f"not checked: {folder}, the results of another study")
    size = sum(each.size for each in checked)
    where = " and ".join(str(folder) for folder in (results, data) if folder is not None)
    print(
        f"{where}: {count_noun(len(checked), 'file')}, {format_size(size)} checked in "
        f"{seconds:.1f} s ({format_size(int(size / seconds))}/s): {len(damaged):,} damaged"
        + (f", {len(unrecorded):,} not checked" if unrecorded else "")
    )
    return int(left > 0 or bool(unrecorded))


def _list_other_folders(runs: Sequence[Run], checked: Sequence[Path]) -> list[Path]:
    """Lists results folders that were not checked: those of recent runs, and below this folder."""
    places = (Path().glob("*/" * depth + WRITTEN_FOLDER) for depth in range(4))
    lying = (path.parent for path in chain.from_iterable(places))
    known = {folder.resolve() for folder in checked}
    others = {folder.resolve(): folder for folder in (*(run.results for run in runs), *lying)}
    return sorted(at for place, at in others.items() if place not in known and at.is_dir())


def check_files(results: Path, data: Path | None) -> list[Checked]:
    """Compares all files of results, and of split tables, with their recorded hashes."""
    records = [*list_records(results), *(list_records(data, data=True) if data else ())]
    folders = [results] if data is None else [results, data]
    checked = {each.path: (record, each) for record, each in _check_records(records, folders)}
    for _ in range(LOOKS):
        damaged = {record for record, each in checked.values() if each.fault}
        again = sorted(record for record in damaged if _changed_recently(record.parent))
        if not again:
            break
        time.sleep(PAUSE)
        checked = {path: pair for path, pair in checked.items() if pair[0] not in again}
        checked |= {each.path: (record, each) for record, each in _check_records(again, folders)}
    faulty = {path for path, (_, each) in checked.items() if each.fault}
    releases = [*_check_releases(results, data)]
    damaged_bundles = {each.path.parent for each in releases if each.fault}
    return [
        *(each for _, each in checked.values()),
        *(each for each in _check_stores(results) if each.path not in faulty),
        *releases,
        *(each for each in _check_places(results, data) if each.path not in damaged_bundles),
        *_check_comparisons(results, data),
    ]


def _check_records(
    records: Sequence[Path], folders: Sequence[Path]
) -> Iterator[tuple[Path, Checked]]:
    """Checks records and the files in `folders` whose hashes they contain, each file once.

    Yields each file with the record of its hash. A file's own record overrides its job's record,
    because jobs' records come first.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        read = [each for each in pool.map(read_recorded, records) if each is not None]
        yield from ((each.checked.path, each.checked) for each in read if each.hashed)
        named = {file.path: (each.checked.path, file) for each in read for file in each.files}
        files = [pair for path, pair in named.items() if any(map(path.is_relative_to, folders))]
        total = sum(file.size or 0 for _, file in files)
        progress = Progress(total // MEGABYTE, label="doctor", unit="MB", last_line=False)
        size = 0
        for (record, _), each in zip(
            files, pool.map(lambda item: item[1].check_bytes(), files), strict=True
        ):
            size += each.size
            progress.total = max(total, size) // MEGABYTE
            progress.advance_by(size // MEGABYTE - progress.done)
            yield record, each


def _check_stores(results: Path) -> Iterator[Checked]:
    """Compares runs and metrics in MLflow's SQLite stores with the receipts of tracking."""
    told = set()  # several receipts may name the same store
    for receipt in sorted((results / "tracking").rglob("[!.]*.json")):
        fault = find_store_fault(receipt, skip=False)
        if fault and fault.path not in told:
            told.add(fault.path)
            yield Checked(fault.path, 0, fault.words, receipt, heals=fault.path == receipt)


def _check_releases(results: Path, data: Path | None) -> Iterator[Checked]:
    """Checks ledgers, bundles and staged copies of bundles, none of which dpprobe can recreate.

    A bundle without SHA256SUMS is skipped as incomplete, unless its job has finished.
    """
    from dpprobe.release.ledger.ledger import Ledger  # slow import: numpy

    for path in sorted(data.glob(f"*/{LEDGER_FILE}") if data else ()):
        fault = None
        try:
            Ledger(path).read_entries()
        except DpprobeError as error:
            fault = str(error).removeprefix(f"{path}: ").partition(";")[0]
        remedy = "restore it from a backup: dpprobe cannot recreate a ledger"
        yield Checked(path, path.stat().st_size, fault, path, remedy)
    releases: dict[str, dict[Path, list[str]]] = {}
    for folder in sorted((results / "releases").glob("*")):
        staged, done = folder.name.endswith(".staged"), folder.with_name(f".{folder.name}.done")
        name = folder.name[1:].rpartition(".entry-")[0] if staged else folder.name
        if staged or done.exists() or (folder / SUMS_FILE).exists():
            try:
                releases.setdefault(name, {})[folder] = damaged_files(folder)
            except DataError:
                releases.setdefault(name, {})[folder] = [SUMS_FILE]
    for copies in releases.values():
        whole = next((folder for folder, damaged in copies.items() if not damaged), None)
        remedy = f"copy the bundle from {whole}" if whole else "restore the bundle from a backup"
        for folder, damaged in copies.items():
            for path in sorted({*folder.glob("*"), *(folder / name for name in damaged)}):
                there = path.is_file()
                fault = (CHANGED if there else MISSING) if path.name in damaged else None
                by_hand = f"{remedy}: dpprobe cannot recreate a release"
                yield Checked(path, path.stat().st_size if there else 0, fault, path, by_hand)


def _check_comparisons(results: Path, data: Path | None) -> Iterator[Checked]:
    """Checks the two copies of each comparison's record, which dpprobe cannot recreate."""
    for folder in sorted((results / COMPARISONS).glob("*/")):
        published, copies = folder / COMPARISON_FILE, sorted(folder.glob(".entry-*.json"))
        faults = {path: _find_record_fault(path) for path in (published, *copies)}
        whole = [path for path, fault in faults.items() if fault is None]
        if data:  # the record of an abandoned entry cannot replace the published record
            whole = [path for path in whole if _is_counted(data, path)]
        if faults[published] == MISSING and not (data and whole):
            del faults[published]
        for path, fault in faults.items():
            copied = f"copy it from {whole[-1]}" if whole else "restore it from a backup"
            remedy = f"{copied}: dpprobe cannot recreate a comparison"
            if fault == MISSING:
                remedy = "repeat its `dpprobe compare`, which restores it and spends nothing"
            size = 0 if fault == MISSING else path.stat().st_size
            yield Checked(path, size, fault, path, remedy)


def _find_record_fault(path: Path) -> str | None:
    from dpprobe.release.comparison_record import read_whole  # slow import: torch

    if not path.exists():
        return MISSING
    try:
        return None if read_whole(path) else CHANGED
    except DataError as error:
        return str(error).removeprefix(f"{path}: ").partition(";")[0]


def _is_counted(data: Path, record: Path) -> bool:
    """Returns False if the ledger entry of a comparison was abandoned or cannot be read."""
    from dpprobe.release.ledger.ledger import Ledger  # slow import: numpy

    values = read_json(record)
    with suppress(DpprobeError):
        entries = Ledger.of_dataset(data, values["dataset"]).read_entries()
        return any(each.number == values["entry"] and each.is_counted for each in entries)
    return False


def _check_places(results: Path, data: Path | None) -> Iterator[Checked]:
    """Checks that each bundle is in the folder with its name, and that its ledger lists it."""
    # slow import: numpy
    from dpprobe.release.bundle_folders import list_misplaced
    from dpprobe.release.release_folders import list_lacking, list_noted

    for folder, name in list_misplaced(results / "releases"):
        remedy = f"move it to {folder.with_name(name)}, if nobody renamed it on purpose"
        yield Checked(folder, 0, f"holds the release {name!r:.60}", folder, remedy)
    if data is None:
        return
    here = results / "releases"
    with suppress(DpprobeError):  # `_check_releases` reports damaged ledgers
        found = list_lacking(here, data)
        for dataset, releases in list_noted(data):
            if releases != here.resolve():
                found += list_lacking(releases, data, dataset)
        for lacking in found:
            yield Checked(lacking.folder, 0, lacking.fault, lacking.folder, lacking.remedy)


def _changed_recently(folder: Path) -> bool:
    limit = time.time() - RECENT
    with suppress(OSError):
        return any(path.lstat().st_mtime > limit for path in (folder, *folder.iterdir()))
    return True


def _treat_damage(
    damage: Checked, results: Path, data: Path | None, run: Run | None, *, fix: bool
) -> tuple[bool, str]:
    """Deletes a damaged file if `fix`; returns whether a run recreates it, and the remedy."""
    if damage.by_hand:
        return False, damage.by_hand
    # a damaged MLflow store may be outside both folders, but its receipt is inside results
    of_results, target = damage.target.is_relative_to(results), damage.target
    root = results if of_results or data is None else data
    if run:  # Snakemake knows files by the paths that the study writes
        target = (run.results if of_results else run.data) / target.relative_to(root)
    # a cached noise multiplier is not a Snakemake target; dpprobe recreates it if needed
    targets = [] if target.parent.name == "calibration" else [str(target)]
    command = f"run `{run_command(*(run.call if run else ()), targets=targets)}`"
    if damage.heals:
        return fix, command
    if not fix:
        return False, f"delete it and {command}"
    inside = damage.path.parent.resolve().is_relative_to(root.resolve())
    if damage.path.is_symlink() or not inside:
        why = f"it is behind a symbolic link, or outside {root}"
        return False, f"not deleted, because {why}; delete it and {command}"
    try:
        if damage.path.suffix == STORE_SUFFIX:  # the file may contain a person's notes
            set_aside(damage.path)
        else:
            damage.path.unlink(missing_ok=True)
    except OSError as error:
        return False, f"not deleted ({error.strerror}); delete it and {command}"
    return True, f"deleted; {command}"
