"""Finds the bundles in a folder of releases; imports no NumPy, so that planning stays fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.files.json_files import read_json
from dpprobe.release.bundle import FACTS_FILE, SUMS_FILE


def list_sums(releases: Path) -> list[Path]:
    """Lists the SHA256SUMS files of a folder's bundles, with staged copies last."""
    found = sorted(releases.glob(f"*/{SUMS_FILE}"))
    return sorted(found, key=lambda path: path.parent.name.startswith("."))


def list_misplaced(releases: Path) -> list[tuple[Path, str]]:
    """Lists folders whose release has another name than the folder, with that name."""
    named = ((sums.parent, read_bundle_facts(sums.parent)) for sums in list_sums(releases))
    return [
        (folder, str(facts["name"]))
        for folder, facts in named
        if facts.get("name", folder.name) != folder.name and not folder.name.startswith(".")
    ]


def read_bundle_facts(folder: Path) -> dict[str, Any]:
    """Reads a bundle's bundle.json without checks; empty if it cannot be used."""
    return read_object(folder / FACTS_FILE)


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object of a bundle; empty if it cannot be used."""
    try:
        values = read_json(path)
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
