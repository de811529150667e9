"""Builds wheels and source distributions, and installs wheels, without a network."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import venv
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.support.programs import run_program

TIMEOUT = 1200  # seconds, enough for a busy machine


def build(folder: Path, target: str, output: Path) -> Path:
    """Builds with the build tools of this environment; returns the file."""
    run_program(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", output],
        cwd=folder,
        timeout=TIMEOUT,
    )
    (path,) = output.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return path


def install(wheel: Path, folder: Path) -> Path:
    """Makes an environment with the wheel, which imports this one's packages; returns its bin."""
    venv.create(folder, with_pip=False)
    places = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", vars=places))
    (site / "environment.pth").write_text(sysconfig.get_path("purelib"))
    uv = Path(sys.executable).with_name("uv")
    run_program(
        [
            uv,
            "pip",
            "install",
            "--offline",
            "--no-deps",
            "--compile-bytecode",
            "--python",
            folder / "bin/python",
            wheel,
        ],
        timeout=TIMEOUT,
    )
    return folder / "bin"


def copy_machine_code(folder: Path) -> dict[str, str]:
    """Copies this clone's compiled functions; returns the variable that makes dpprobe use them.

    File names contain hashes of all inputs, so no code of other modules is used. Functions that
    were not compiled before are compiled only once for all environments.
    """
    folder.mkdir(exist_ok=True)
    for path in (REPOSITORY / "src/dpprobe").rglob("__pycache__/*"):
        if path.suffix != ".pyc":
            shutil.copy(path, folder)
    return {"NUMBA_CACHE_DIR": str(folder)}
