"""git in tests, and the version that a build in a folder would have."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.programs import run_program

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    """Runs git in a folder, as an author of its own, and returns what it prints."""
    done = run_program(["git", "-C", folder, *IDENTITY, *words])
    return done.stdout.strip()


def built(folder: Path) -> str:
    """Returns the version that a build in a folder would have."""
    done = run_program([sys.executable, "-m", "hatchling", "version"], cwd=folder)
    return done.stdout.strip()
