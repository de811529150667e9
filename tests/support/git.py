"""git in tests, and the version that a build in a folder would have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    """Runs git in a folder, as an author of its own, and returns what it prints."""
    done = subprocess.run(
        ["git", "-C", folder, *IDENTITY, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def built(folder: Path) -> str:
    """Returns the version that a build in a folder would have."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "version"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()
