"""The command `dpprobe results`, which prints a study's results and the next commands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dpprobe.errors import DataError
from dpprobe.study.run_command import run_command
from dpprobe.study.snapshot import recent_runs

SUMMARIES = "summary/*.parquet"
# Default results folders: of config.yaml, and of the studies in config/.
_USUAL = ("results", "results/*")
_SHOWN = 10


def add_command(commands: Any) -> None:
    summary = "print a study's results, and commands that show more"
    parser: argparse.ArgumentParser = commands.add_parser("results", help=summary)
    parser.set_defaults(run=_run_results)
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        help="results_dir of a study; default: the latest results",
    )


def _run_results(arguments: argparse.Namespace) -> int:
    folder = arguments.folder
    if folder is None:
        folder, *others = results_folders() or [Path("results")]
        if others:
            print(f"{folder}, the latest of {len(others) + 1}\n")
    print(describe_results(folder))
    return 0


def results_folders() -> list[Path]:
    """Lists the folders with finished datasets, latest first.

    Searches the default results folders, and results folders of recent runs in this directory.
    """
    usual = [path for pattern in _USUAL for path in Path().glob(pattern)]
    finished: dict[Path, Path] = {}
    for folder in [*usual, *(run.results for run in recent_runs())]:
        if any(folder.glob(SUMMARIES)):
            finished.setdefault(folder.resolve(), folder)
    return sorted(finished.values(), key=_finished_at, reverse=True)


def describe_results(folder: Path) -> str:
    """Describes a folder's results; raises DataError if no dataset is finished."""
    from dpprobe.reporting.console import describe_study  # imports pandas

    summaries = sorted(folder.glob(SUMMARIES))
    if not summaries:
        remedy = f"run `{run_command()}` first, or name a results_dir"
        if others := ", ".join(map(str, results_folders()[:_SHOWN])):
            remedy = f"finished are {others}"
        raise DataError(f"{folder}: no finished dataset; {remedy}")
    return describe_study(folder, summaries)


def _finished_at(folder: Path) -> float:
    return max((path.stat().st_mtime for path in folder.glob(SUMMARIES)), default=0.0)
