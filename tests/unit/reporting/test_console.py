"""The commands that a finished run prints."""

from __future__ import annotations

from pathlib import Path

from dpprobe.artifacts import write_json
from dpprobe.reporting.console import list_commands


def test_the_printed_address_opens_the_cells_and_not_one_line_per_study(tmp_path: Path) -> None:
    uri = "sqlite:///results/mlflow.db"
    for name, pages in {
        "_study": {"studies": "#/experiments/3/runs?s"},
        "digits": {"summary": "#/experiments/2/runs?a", "cells": "#/experiments/1/runs?c"},
        "scans": {"summary": "#/experiments/5/runs?a", "cells": "#/experiments/4/runs?c"},
    }.items():
        (tmp_path / "tracking").mkdir(exist_ok=True)
        write_json(tmp_path / f"tracking/{name}.json", {"uri": uri, "pages": pages})
    (command,) = list_commands(tmp_path)
    assert command.endswith("# runs: http://127.0.0.1:5000/#/experiments/1/runs?c")
