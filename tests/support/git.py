"""Runs git in tests, and computes the version of a build in a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.programs import run_program

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    """Runs git in a folder with a fixed author, and returns its output."""
    done = run_program(["git", "-C", folder, *IDENTITY, *words])
    return done.stdout.strip()


def built(folder: Path) -> str:
    """Returns the version that a build in the folder would have."""
    done = run_program([sys.executable, "-m", "hatchling", "version"], cwd=folder)
    return done.stdout.strip()
