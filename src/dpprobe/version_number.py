"""The version number, and the version of the code in a folder.

Builds read only this file (pyproject.toml), so it imports only the standard library.
docs/versions.md explains what a version number promises.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

VERSION = "0.1.0"
TAG = f"v{VERSION}"  # the git tag of the release
UNKNOWN = f"{VERSION}+unknown"  # the version of a copy whose commit is unknown
ROOT = Path(__file__).resolve().parents[2]  # the root of a clone or of an unpacked archive
DIGITS = 8  # the number of shown digits of a commit's hash
# Variables set by git hooks of another repository; with them, git would read that repository.
_ELSEWHERE = ("GIT_DIR", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE")


def name_code(folder: Path = ROOT) -> str:
    """Returns the version of the code in a clone or in an unpacked archive of git; never fails.

    `0.1.0` is exactly the code of the tag v0.1.0. Other versions have a local part (PEP 440), which
    no registry accepts: `0.1.0+g429d023c` is a commit without that tag, and
    `0.1.0+g429d023c.edited` has tracked files that differ from the commit.
    """
    try:
        return _name_clone(folder) if (folder / ".git").exists() else _name_archive(folder)
    except Exception:  # missing git or a damaged file must not end a job
        return UNKNOWN


def _name_clone(folder: Path) -> str:
    described = subprocess.run(
        [
            "git",
            "--no-optional-locks",
            f"--git-dir={folder / '.git'}",  # never a parent folder's, even if this one is damaged
            f"--work-tree={folder}",
            "describe",
            "--tags",
            f"--match={TAG}",
            "--long",
            "--always",
            "--abbrev=40",
            "--dirty=.edited",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in _ELSEWHERE},
    ).stdout.strip()
    found = re.fullmatch(r"(?:\S+-(\d+)-g)?([0-9a-f]{40,64})(\.edited)?", described)
    if found is None:
        return UNKNOWN
    commits_since_tag, commit, edited = found.groups("")
    return VERSION if commits_since_tag == "0" and not edited else _local(commit, edited)


def _name_archive(folder: Path) -> str:
    """Reads the version from the file that `git archive` fills in; else it has placeholders."""
    text = (folder / ".git_archival.txt").read_text(encoding="utf-8")
    lines = dict(line.split(": ", 1) for line in text.splitlines())
    if lines["tag"] == TAG:
        return VERSION
    commit = lines["commit"]
    return _local(commit) if re.fullmatch(r"[0-9a-f]{40,64}", commit) else UNKNOWN


def _local(commit: str, edited: str = "") -> str:
    return f"{VERSION}+g{commit[:DIGITS]}{edited}"
