"""Jobs can run in a container image; a stand-in for Apptainer records calls and runs jobs here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from .conftest import Workspace, write_scripts

# Records its arguments, and runs the command that would run in the image.
APPTAINER = """if [ "$1" = --version ]; then echo "apptainer version 1.4.0"; exit; fi
echo "$@" >>"$CALLS"
while [ "$2" != -c ]; do shift; done
exec "$@"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the file with the stand-in's arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    write_scripts(folder, apptainer=APPTAINER)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def test_jobs_run_in_a_container_only_on_request(
    workspace: Workspace, small: dict[str, Any], calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = workspace.directory / "other.sif"
    image.touch()
    monkeypatch.setenv("DPPROBE_IMAGE", str(image))
    workspace.run(small, "data")
    assert not calls.exists()
    workspace.run(small, "data", "--sdm", "apptainer", "--forcerun", "prepare_data")
    (call,) = calls.read_text().splitlines()
    assert call.startswith(f"exec --home {workspace.directory} ")
    assert str(image) in call
    assert "prepare_data.py" in call
