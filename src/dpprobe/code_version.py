"""The version of the running code, and the commit of its clone."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

from dpprobe.project_files import clone_root
from dpprobe.version_number import UNKNOWN, name_code


@cache
def code_version() -> str:
    """Returns the version of the running code: for a clone from git, else of the installation.

    In a clone the installed version may be old, because it is the commit at which `make
    environment` ran. For a copy without git history, such as a git archive, the installed version
    counts only if the copy itself is installed, because another dpprobe may be installed. A clone
    without git is UNKNOWN; a missing version causes no error, as noise may be drawn already.
    """
    from importlib.metadata import PackageNotFoundError, version  # late, as planning needs neither

    root = clone_root()
    if root is not None and (_find_clone() or not _is_installed(root)):
        return name_code(root)
    with suppress(PackageNotFoundError):
        return version("dpprobe")
    return UNKNOWN


def _is_installed(folder: Path) -> bool:
    """Returns True if the environment's dpprobe is an editable installation of this folder."""
    from importlib.metadata import PackageNotFoundError, distribution  # late, not for planning
    from urllib.parse import unquote, urlsplit

    try:
        origin = json.loads(distribution("dpprobe").read_text("direct_url.json") or "{}")
        return Path(unquote(urlsplit(origin["url"]).path)).resolve() == folder
    except (PackageNotFoundError, ValueError, KeyError):
        return False


def clone_commit() -> str | None:
    """Returns the commit of the clone whose code is running; None if the package was installed."""
    root = _find_clone()
    return None if root is None else git_commit(root)


def _find_clone() -> Path | None:
    """Returns the clone whose code is running if the clone has a git history.

    An installed package, or an unpacked source distribution, may be inside a user's repository,
    whose commits are unrelated to this code.
    """
    root = clone_root()
    return root if root is not None and (root / ".git").exists() else None


def git_commit(folder: Path) -> str | None:
    """Returns the checked-out commit, marked if files were changed; None without git."""
    try:
        commit = _run_git(folder, "rev-parse", "HEAD")
        changed = _run_git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit} with local changes" if changed else commit


def _run_git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()
