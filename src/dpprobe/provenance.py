"""Which code made a result."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git_commit(folder: Path) -> str | None:
    """The commit that a folder is checked out at, marked where files differ; None without git."""
    try:
        found = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{found} with local changes" if changed else found


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True, text=True, check=True, timeout=30,
    ).stdout.strip()  # fmt: skip
