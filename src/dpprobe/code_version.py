"""The version of the code that runs, as records, statements and releases carry it."""

from __future__ import annotations

import json
import tomllib
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dpprobe.artifacts import git_commit
from dpprobe.resources import clone_root

UNKNOWN = "0.1.0.dev0"  # of a copy without a history that was not installed


@cache
def code_version() -> str:
    """Returns the version by the tags of a clone, and as it was installed elsewhere.

    What was installed tells of the commit on which `make environment` ran, and a clone moves on.
    A copy without a history says itself which it is, as an archive of git does, unless it is the
    one that was installed: the environment may have another dpprobe.
    """
    from importlib.metadata import PackageNotFoundError, version  # not needed to plan

    root = clone_root()
    installed = root is None or _is_installed(root)
    if root is not None and (_history() or not installed):
        # Without the library or git: as it was installed. Whatever else may be wrong with a clone,
        # a release that was drawn must not fail for its version.
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a shallow clone
            from setuptools_scm import get_version

            return get_version(root=root, **_options(root))
    with suppress(PackageNotFoundError):
        if installed:
            return version("dpprobe")
    return UNKNOWN


def _is_installed(folder: Path) -> bool:
    """Returns True if the environment's dpprobe is an editable installation of a folder."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        origin = json.loads(distribution("dpprobe").read_text("direct_url.json") or "{}")
        return Path(unquote(urlsplit(origin["url"]).path)).resolve() == folder
    except (PackageNotFoundError, ValueError, KeyError):
        return False


def _options(clone: Path) -> dict[str, Any]:
    """Returns how builds derive the version, which pyproject.toml says."""
    project = tomllib.loads((clone / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(project["tool"]["hatch"]["version"]["raw-options"])


def clone_commit() -> str | None:
    """Returns the commit of the clone that runs; None where the package was installed."""
    root = _history()
    return None if root is None else git_commit(root)


def _history() -> Path | None:
    """Returns the clone that runs if it has a history.

    An environment, or an unpacked source distribution, may lie in a repository of its user's,
    whose commits say nothing of this code.
    """
    root = clone_root()
    return root if root is not None and (root / ".git").exists() else None
