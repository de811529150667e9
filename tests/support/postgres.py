"""Starts a new PostgreSQL server for a test, with a socket in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

USER = "postgres"  # the server refuses to run as root


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Yields the URI of an empty database; skips the test if no server can be started."""
    pytest.importorskip("psycopg2", reason="psycopg2 is missing: MLflow's way to PostgreSQL")
    found = [Path(name) for name in (shutil.which("initdb"), shutil.which("pg_ctl")) if name]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    home = next(
        (p.resolve().parent for p in found if (p.resolve().parent / "pg_ctl").exists()), None
    )
    if home is None:
        pytest.skip("PostgreSQL is missing; see tests/install_system_packages.sh")
    # Not pytest's folder, which other users cannot read.
    folder = Path(tempfile.mkdtemp(prefix="dpprobe-postgres-"))
    data = folder / "data"
    try:
        if os.getuid() == 0:
            shutil.chown(folder, USER)
        _run(home / "initdb", "-D", str(data), "-A", "trust", "-U", USER, "--no-sync")
        options = f"-c listen_addresses='' -k {folder} -c fsync=off -c max_connections=60"
        log = str(folder / "log")
        _run(home / "pg_ctl", "-D", str(data), "-w", "-l", log, "-o", options, "start")
        try:
            _run(home / "createdb", "-h", str(folder), "-U", USER, "mlflow")
            yield f"postgresql://{USER}@/mlflow?host={folder}"
        finally:
            _run(home / "pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(program: Path, *arguments: str) -> None:
    """Runs a PostgreSQL program as a permitted user; skips the test if the program fails."""
    user = USER if os.getuid() == 0 else None
    try:
        done = subprocess.run(
            [str(program), *arguments],
            user=user,
            cwd="/",
            timeout=60,
            check=False,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except (OSError, LookupError) as error:
        pytest.skip(f"{program.name} cannot be run as {USER}: {error}")
    if done.returncode:
        pytest.skip(f"{program.name}: {done.stderr.strip()[-300:]}")
