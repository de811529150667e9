"""The files of an exchange that a message carries: names without folders, and whole contents.

dpprobe signs and checks what is in them. So this module only keeps names from leaving the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

# As dpprobe names them: offer.<site>.json and sums-<round>.<site>.safetensors.
CARRIED = re.compile(r"(offer\.[a-z0-9_]+\.json|sums-[0-9]+\.[a-z0-9_]+\.safetensors)")


def read_files(folder: Path, without: Iterable[str] = ()) -> dict[str, bytes]:
    """Reads the carried files of a folder, but those in `without`."""
    known = set(without)
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.glob("*"))
        if CARRIED.fullmatch(path.name) and path.name not in known
    }


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files that a message carried; ValueError for any other name.

    A file that is there stays: what a site has sent does not change.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if CARRIED.fullmatch(name) is None:
            raise ValueError(f"{name!r}: not a file of dpprobe's sites")
        path = folder / name
        if not path.exists():
            temporary = path.with_name(f".{name}.partial")
            temporary.write_bytes(content)
            temporary.replace(path)
