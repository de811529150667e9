"""Renamed bundle folders are found by the names in their bundle.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpprobe.release.bundle_folders import list_misplaced


def write_bundle(folder: Path, facts: Any) -> None:
    folder.mkdir()
    (folder / "SHA256SUMS").touch()
    (folder / "bundle.json").write_text(json.dumps(facts))


def test_exchanged_folders_are_found(tmp_path: Path) -> None:
    """Staged copies, folders without hashes and files without a name are ignored."""
    for folder, facts in {
        "first": {"name": "second"},
        "second": {"name": "first"},
        "third": {"name": "third"},
        ".third.entry-1.staged": {"name": "third"},
        "fourth": {"more": 1},
        "fifth": [],
    }.items():
        write_bundle(tmp_path / folder, facts)
    write_bundle(tmp_path / "sixth", {"name": "seventh"})
    (tmp_path / "sixth/SHA256SUMS").unlink()
    misplaced = [(tmp_path / "first", "second"), (tmp_path / "second", "first")]
    assert list_misplaced(tmp_path) == misplaced
    assert list_misplaced(tmp_path / "none") == []
