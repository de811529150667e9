"""Unpacks stored releases of earlier versions."""

from __future__ import annotations

import zipfile
from pathlib import Path

from dpprobe.files.json_files import read_json
from tests.conftest import REPOSITORY
from tests.support.make_stored_releases import ABOUT

RELEASES = REPOSITORY / "tests/stored/releases"


def unpack_release(folder: Path, kind: str = "accuracy", version: str = "429d023c") -> Path:
    """Unpacks the files of a stored release into a folder; returns the bundle's folder."""
    with zipfile.ZipFile(RELEASES / version / f"{kind}.zip") as file:
        file.extractall(folder)
    return folder / read_json(folder / ABOUT)["bundle"]
