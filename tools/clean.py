"""Removes results and split tables of the default study, or with `--all` of every study.

`make clean` runs this script. Studies without a `results_dir` share the folder `results`. If
another study wrote to `results`, `make clean` removes no results and prints the reason.

The script removes only files that dpprobe certainly wrote, then folders that became empty:
- results: files with names and suffixes that a study writes, in a folder that dpprobe's records or
  the snapshot of a run identify as a results folder;
- split tables in a folder with a `dataset.json` that describes them;
- downloads that a receipt lists, and files that were unpacked from downloads;
- logs of Slurm jobs, and Snakemake's folder `.snakemake`.

Releases, ledgers and all other files in their directory trees stay: a release cannot be recreated,
and a ledger records the spent epsilon. Symbolic links are not followed. The last line of output
counts the files that stayed. Only the standard library is needed, as the environment may be gone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from dpprobe.study.reserved_names import COMPARISONS, DOWNLOADS, RELEASES, WRITTEN  # noqa: E402

RESULTS, DATA, SNAKEMAKE = Path("results"), Path("data"), Path(".snakemake")
SLURM_LOGS = Path("logs/slurm")
LOGS = (Path("logs"), Path("benchmarks"))
STUDY, DATASETS = "digits", ("digits",)  # the default study and its datasets
TABLES = ("train.parquet", "test.parquet", "problems.csv", "dataset.json")
BUNDLE = "bundle.json"
LEDGER = re.compile(r"ledger\..+")
UNPACKED = re.compile(r"\.([^.].*)\.extracted\.json")
SLURM_LOG = re.compile(r"\d+\.log")
# Suffixes of files that a study writes; MLflow copies files with other suffixes too.
KINDS = frozenset(
    {
        ".bib",
        ".csv",
        ".db",
        ".done",
        ".h5",
        ".html",
        ".json",
        ".lock",
        ".log",
        ".md",
        ".npy",
        ".parquet",
        ".partial",
        ".png",
        ".safetensors",
        ".svg",
        ".tex",
        ".tsv",
    }
)
ARTIFACTS = "mlartifacts"
# Records that identify a results_dir, and the format that each record states.
MARKS = {
    "cells/*/*/*/eps-*/metrics.json": "dpprobe-cell",
    "features/*/*/*/manifest.json": "dpprobe-manifest",
    "calibration/*/eps-*.json": "dpprobe-plans",
    "calibration/*.json": "dpprobe-calibration",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Removes results and split tables.")
    parser.add_argument("--all", action="store_true", help="of every study in results/ and data/")
    every = parser.parse_args().all
    others = [] if every else sorted(other_studies())
    if others:
        print(
            f"{RESULTS} stays: {', '.join(others)} wrote there too, not the default study alone; "
            "`make clean-all` removes the results of every study"
        )
    trees = [] if others else [*result_trees(RESULTS)]
    if every:
        trees += [tree for folder in folders(RESULTS) for tree in result_trees(folder)]
    written = {tree: [*result_files(tree)] for tree in trees} | data_files(every)
    if every:
        written[SLURM_LOGS] = [path for path in files(SLURM_LOGS) if SLURM_LOG.fullmatch(path.name)]
    for place, paths in written.items():
        remove(place, paths)
    for tree in trees:
        remove_empty(tree)
    if every and SNAKEMAKE.is_dir() and has_no_link(SNAKEMAKE):
        shutil.rmtree(SNAKEMAKE)
        print(f"removed {SNAKEMAKE}")
    of_the_default = [RESULTS / name for name in WRITTEN] + [DATA / name for name in DATASETS]
    say_what_stayed([RESULTS, DATA, *LOGS] if every else of_the_default)


def data_files(every: bool) -> dict[Path, list[Path]]:
    """Lists, by folder, split tables of the default study; if `every`, all tables and downloads."""
    if not every:
        return {DATA / name: [*tables(DATA / name)] for name in DATASETS}
    described = [path.parent for path in sorted(found(DATA, "dataset.json"))]
    return {folder: [*tables(folder)] for folder in described} | {
        folder: [*downloaded(folder)] for folder in download_folders()
    }


def result_trees(folder: Path) -> Iterator[Path]:
    """Lists the trees that a study wrote into its results_dir; none for any other folder.

    Omits trees with a release or a ledger, and trees that are another study's results_dir.
    """
    if is_results_folder(folder):
        # the records come last, so that a later run can continue an interrupted one
        told = {pattern.partition("/")[0] for pattern in MARKS}
        for path in sorted(folder.glob("*"), key=lambda path: (path.name in told, path.name)):
            if path.name in WRITTEN and not is_results_folder(path) and not holds_release(path):
                yield path


def is_results_folder(folder: Path) -> bool:
    """Returns True if a folder has records of dpprobe, or a run's snapshot names the folder."""
    if not folder.is_dir() or not has_no_link(folder):
        return False
    if folder.resolve() in snapshot_folders():
        return True
    return any(
        has_no_link(path) and record(path).get("format") == kind
        for pattern, kind in MARKS.items()
        for path in folder.glob(pattern)
    )


def other_studies() -> set[str]:
    """Names other studies that wrote into `results`, by their records and the snapshots of runs."""
    names = {str(study) for place, study in snapshots() if place == RESULTS.resolve() and study}
    receipts = [record(path) for path in RESULTS.glob("tracking/*.json")]
    names |= {str(receipt["study"]) for receipt in receipts if receipt.get("study")}
    cells = [record(path).get("cell") for path in RESULTS.glob("cells/*/*/*/eps-*/metrics.json")]
    datasets = {cell["dataset"] for cell in cells if isinstance(cell, dict) and "dataset" in cell}
    return {f"study {name}" for name in names - {STUDY}} | {
        f"a study of {name}" for name in datasets - {*DATASETS}
    }


def snapshot_folders() -> set[Path]:
    """Returns the results_dir of each recent run in this folder."""
    return {place for place, _ in snapshots()}


@cache
def snapshots() -> tuple[tuple[Path, str | None], ...]:
    """Returns the results_dir and the study's name of each recent run in this folder."""
    named = []
    for path in SNAKEMAKE.glob("dpprobe/*.json"):
        run = record(path).get("_run")
        study = run.get("study") if isinstance(run, dict) else None
        place = study.get("results_dir") if isinstance(study, dict) else None
        if isinstance(place, str):
            named.append((Path(place).resolve(), study.get("study")))
    return tuple(named)


@cache
def holds_release(tree: Path) -> bool:
    """Returns True for a tree with a ledger, a bundle or a folder of releases, at any depth.

    MLflow's copies of bundles do not count, and neither does a folder `tracking/releases` that
    contains only MLflow's receipts.
    """
    for folder, inner, names in os.walk(tree):
        if any(LEDGER.fullmatch(name) for name in names):
            return True
        if BUNDLE in names and tree.name != ARTIFACTS:
            return True
        if RELEASES in inner:
            receipts = tree.name == "tracking" and Path(folder) == tree
            if not receipts or any(path.suffix != ".json" for path in (tree / RELEASES).iterdir()):
                return True
    return False


def result_files(tree: Path) -> Iterator[Path]:
    """Lists the files of a tree of results that have a suffix in KINDS."""
    for path in files(tree):
        if path == tree or path.suffix in KINDS or tree.name == ARTIFACTS:
            yield path


def tables(folder: Path) -> Iterator[Path]:
    """Lists the tables of a dpprobe `dataset.json`; other programs use that file name too."""
    content = record(folder / "dataset.json")
    if content.get("format") == "dpprobe-dataset" and "splits" in content:
        for path in (folder / name for name in TABLES):
            if path.is_file() and has_no_link(path):
                yield path


def download_folders() -> Iterator[Path]:
    """Lists the folders of downloads below `data`, which have a receipt of dpprobe."""
    for receipt in sorted(found(DATA, "receipt.json")):
        of_dpprobe = record(receipt).get("format") == "dpprobe-download"
        if of_dpprobe and receipt.parent.parent.name == DOWNLOADS:
            yield receipt.parent


def downloaded(folder: Path) -> Iterator[Path]:
    """Lists the files that were downloaded into a folder, unpacked files, and the receipt."""
    receipt = folder / "receipt.json"
    listed = record(receipt).get("files")
    for file in listed if isinstance(listed, list) else []:
        path = folder / str(file.get("name", "")) if isinstance(file, dict) else folder
        # `has_no_link` refuses names with `..`, which resolve to another path
        if path.is_file() and path.is_relative_to(folder) and has_no_link(path):
            yield path
    for mark in [*files(folder)]:
        named = UNPACKED.fullmatch(mark.name)
        unpacked = mark.with_name(named[1]) if named else mark
        if named and {"archive", "sha256"} <= record(mark).keys() and not holds_release(unpacked):
            yield from files(unpacked)
            yield mark
    yield receipt


def record(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file; empty if the file has none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def has_no_link(path: Path) -> bool:
    """Returns True if no part of a path, relative to the working folder, is a symbolic link."""
    return path.resolve() == Path.cwd().resolve() / path


def folders(folder: Path) -> Iterator[Path]:
    """Lists the folders in a folder, except folders of releases and of comparisons."""
    for path in sorted(folder.glob("*")):
        if path.is_dir() and path.name not in (RELEASES, COMPARISONS):
            yield path


def files(tree: Path) -> Iterator[Path]:
    """Lists the files of a tree, or the file `tree` itself; skips symbolic links."""
    if not has_no_link(tree):
        return
    if tree.is_file():
        yield tree
    for folder, _, names in os.walk(tree):
        for path in (Path(folder, name) for name in sorted(names)):
            if not path.is_symlink():
                yield path


def found(tree: Path, name: str) -> Iterator[Path]:
    """Lists the files of a tree whose file name is `name`."""
    return (path for path in files(tree) if path.name == name)


def remove(place: Path, paths: Iterable[Path]) -> None:
    """Removes files, and folders that become empty."""
    removed = 0
    for path in dict.fromkeys(paths):
        if not path.exists():
            continue  # was removed for another folder
        path.unlink()
        removed += 1
        for folder in path.parents:
            if folder == Path() or any(folder.iterdir()):
                break
            folder.rmdir()
    if removed:
        print(f"removed {place}" + (f": {removed} files" if removed > 1 else ""))


def remove_empty(tree: Path) -> None:
    """Removes empty folders of a tree, or the whole tree; failed jobs leave empty folders."""
    if not tree.is_dir() or not has_no_link(tree):
        return
    for folder, _, _ in os.walk(tree, topdown=False):
        if not any(Path(folder).iterdir()):
            Path(folder).rmdir()


def say_what_stayed(places: Iterable[Path]) -> None:
    """Prints how many files and links are still there, and why."""
    reasons = Counter(
        reason for place in places for path in [place, *everything(place)] if (reason := why(path))
    )
    if reasons:
        print("stayed:", ", ".join(f"{reasons[reason]} {reason}" for reason in sorted(reasons)))


def why(path: Path) -> str | None:
    """Describes why a file or link stayed; None for a folder."""
    if path.is_symlink():
        return "links, which are not followed"
    if not path.is_file():
        return None
    tree = Path(*path.parts[:2])
    precious = (
        {RELEASES, COMPARISONS} & {*path.parts}
        or LEDGER.fullmatch(path.name)
        or path.name == BUNDLE
    )
    if precious or (tree.parent == RESULTS and tree.name in WRITTEN and holds_release(tree)):
        return "files of releases and ledgers, or beside them"
    return "files that are not certainly dpprobe's"


def everything(tree: Path) -> Iterator[Path]:
    """Lists all files, folders and links of a tree, without following links."""
    if not tree.is_symlink():
        for folder, inner, names in os.walk(tree):
            yield from (Path(folder, name) for name in (*inner, *names))


if __name__ == "__main__":
    main()
