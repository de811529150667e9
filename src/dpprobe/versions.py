"""The version of each stage's outputs, and the version of the running code.

Snakemake's trigger for changed code compares the times of scripts, which cloning changes, and
ignores the package; so profiles/default disables the trigger. Instead, each stage's version number
is a parameter of the stage's rules. Raise a stage's number when its output changes: each finished
study then repeats that stage and all later stages.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

from dpprobe import analysis_registry
from dpprobe.errors import ConfigError
from dpprobe.json_values import Difference, first_difference
from dpprobe.resources import clone_root
from dpprobe.version_number import UNKNOWN, name_code

VERSIONS = {
    "download": 1,
    "data": 3,
    "features": 2,
    "manifest": 4,  # before manifests counted copies, they used the number of "features"
    "text": 2,
    "overlap": 2,
    "calibration": 7,
    "training": 5,
    "statement": 7,  # statements and metrics: cells are rewritten, with unchanged heads
    "summary": 10,
    "figures": 11,
    "tables": 9,
    "papers": 9,
    "tracking": 17,
    "report": 18,
    "release": 1,
    "fine_tuning": 2,
    "cuts": 1,
    "search": 1,
} | analysis_registry.VERSIONS

# The version in the identity, and so in the seeds, of each cell of a linear head. If only some
# heads change, raise their `MethodOptions.fit_version` and "training"; only these are retrained.
ALL_HEADS = 4

# The environment variable with the versions at the run's start, as JSON, for the run's jobs.
RUN_VERSIONS = "DPPROBE_VERSIONS"


def check_versions() -> None:
    """Raises ConfigError if the code has changed since the job's run began."""
    began = json.loads(os.environ.get(RUN_VERSIONS, "null"))
    if difference := first_difference(began or VERSIONS, VERSIONS, "versions"):
        raise ConfigError(describe_edit(difference))


def describe_edit(difference: Difference) -> str:
    return (
        f"{difference.place}: {difference.first} when this run began, {difference.second} "
        "now. The code was edited meanwhile; run again"
    )


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
