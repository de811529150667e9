"""The command `dpprobe rollback`, which moves MLflow's alias `released` to the previous release."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_command(commands: Any) -> None:
    summary = "move MLflow's alias `released` from a release back to its predecessor"
    parser: argparse.ArgumentParser = commands.add_parser("rollback", help=summary)
    parser.set_defaults(run=_run_rollback)
    parser.add_argument("bundle", type=Path, help="the release, in the results_dir of its study")
    parser.add_argument("--undo", action="store_true", help="move the alias back to this release")


def _run_rollback(arguments: argparse.Namespace) -> int:
    from dpprobe.tracking.release_aliases import roll_back  # imports mlflow

    print(roll_back(arguments.bundle, undo=arguments.undo))
    return 0
