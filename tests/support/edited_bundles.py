"""Edits bundles as an attacker would, and returns the checks that notice the edits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpprobe.files.json_files import read_json
from dpprobe.release.bundle import write_sums
from dpprobe.release.checks import Report

Change = Callable[[dict[str, Any]], object]


def edit_file(folder: Path, name: str, change: Change) -> Path:
    """Edits a JSON file of a bundle and updates all hashes, as a cheater would."""
    values = read_json(folder / name)
    change(values)
    (folder / name).write_text(json.dumps(values, indent=2))
    write_sums(folder)
    return folder


def failed(report: Report) -> list[str]:
    return [check.name for check in report.checks if check.passed is False]
