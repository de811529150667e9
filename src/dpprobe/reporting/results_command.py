"""The command that prints a study's results, and where to find more: `dpprobe results`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from dpprobe.errors import DataError
from dpprobe.study.run_command import command_line, run_command
from dpprobe.study.snapshot import recent_runs

SUMMARIES = "summary/*.parquet"
# Default results folders: of config.yaml, and of the studies in config/.
_USUAL = ("results", "results/*")
_SHOWN = 10


def add_command(commands: Any) -> None:
    summary = "print accuracies, and where to find more"
    parser: argparse.ArgumentParser = commands.add_parser("results", help=summary)
    parser.set_defaults(run=_run_results)
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        help="results_dir of a study; without it, prints the latest results and lists the others",
    )


def _run_results(arguments: argparse.Namespace) -> int:
    if arguments.folder is not None:
        print(describe_results(arguments.folder))
        return 0
    folders = results_folders()
    if not folders:
        raise DataError(
            f"{Path('results')}: no finished dataset in this folder or its subfolders; run "
            f"`{run_command()}` first, or name a study's results_dir: `dpprobe results FOLDER`"
        )
    latest, *others = folders
    if others:
        print(f"{latest}, the latest of {len(folders)}, {_format_time(latest)}\n")
    print(describe_results(latest))
    if others:
        print("\nothers:")
    for folder in others[:_SHOWN]:
        print(f"  {_format_time(folder)}  {command_line('dpprobe', 'results', str(folder))}")
    return 0


def results_folders() -> list[Path]:
    """Lists the folders with finished datasets, the latest first.

    Looks where studies usually write, and where recent runs from the working directory wrote.
    """
    usual = [path for pattern in _USUAL for path in Path().glob(pattern)]
    finished: dict[Path, Path] = {}
    for folder in [*usual, *(run.results for run in recent_runs())]:
        if any(folder.glob(SUMMARIES)):
            finished.setdefault(folder.resolve(), folder)
    return sorted(finished.values(), key=_finished_at, reverse=True)


def describe_results(folder: Path) -> str:
    """Describes the results of a folder for a terminal.

    Raises:
      DataError: if the folder has no finished dataset.
    """
    from dpprobe.reporting.console import describe_study  # imports pandas

    summaries = sorted(folder.glob(SUMMARIES))
    if not summaries:
        others = ", ".join(map(str, results_folders()[:_SHOWN]))
        remedy = f"finished are {others}" if others else f"run `{run_command()}` first"
        raise DataError(f"{folder}: no finished dataset; {remedy}")
    return describe_study(folder, summaries)


def _finished_at(folder: Path) -> float:
    return max((path.stat().st_mtime for path in folder.glob(SUMMARIES)), default=0.0)


def _format_time(folder: Path) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(_finished_at(folder)))
