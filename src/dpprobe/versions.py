"""The version of each stage's outputs, and of the code that runs.

Snakemake's trigger for code goes by the times of scripts, which a clone changes, and ignores the
package; profiles/default switches it off. Each stage passes its number here as a parameter: raise
it when the stage's output changes, and every finished study redoes that stage and what follows.
"""

from __future__ import annotations

import json
import os
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

from dpprobe import analysis_registry
from dpprobe.artifacts import Difference, first_difference, git_commit
from dpprobe.errors import ConfigError
from dpprobe.resources import clone_root

VERSIONS = {
    "download": 1,
    "data": 2,
    "features": 2,
    "manifest": 3,  # it was written under the number of "features" until copies were counted
    "text": 2,
    "overlap": 2,
    "calibration": 5,
    "training": 3,
    "statement": 5,  # statements and metrics: cells are written again with their heads as they are
    "summary": 10,
    "figures": 10,
    "tables": 8,
    "papers": 8,
    "tracking": 13,
    "report": 14,
    "release": 1,
    "fine_tuning": 2,
    "cuts": 1,
    "search": 1,
} | analysis_registry.VERSIONS

# The variable in which a job's script finds the versions that its run began with, as JSON.
RUN_VERSIONS = "DPPROBE_VERSIONS"
UNKNOWN = "0.1.0.dev0"  # of a copy without a history that was not installed


def check_versions() -> None:
    """Raises ConfigError if the code changed after the job's run began."""
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
    """Returns the version by the tags of a clone, and as it was installed elsewhere.

    The installed version names the commit on which `make environment` ran, and a clone moves on. A
    copy without a history states its own version, as an archive of git does, unless it is the
    installed one: the environment may have another dpprobe.
    """
    from importlib.metadata import PackageNotFoundError, version  # not needed to plan

    root = clone_root()
    installed = root is None or _is_installed(root)
    if root is not None and (_find_clone() or not installed):
        # Without the library or git: as it was installed. Whatever else may be wrong with a clone,
        # a release that was drawn must not fail for its version.
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a shallow clone
            import tomllib

            from setuptools_scm import get_version

            project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
            options = project["tool"]["hatch"]["version"]["raw-options"]  # as builds have them
            return get_version(root=root, **options)
    with suppress(PackageNotFoundError):
        if installed:
            return version("dpprobe")
    return UNKNOWN


def _is_installed(folder: Path) -> bool:
    """Returns True if the environment's dpprobe is an editable installation of a folder."""
    from importlib.metadata import PackageNotFoundError, distribution  # as above
    from urllib.parse import unquote, urlsplit

    try:
        origin = json.loads(distribution("dpprobe").read_text("direct_url.json") or "{}")
        return Path(unquote(urlsplit(origin["url"]).path)).resolve() == folder
    except (PackageNotFoundError, ValueError, KeyError):
        return False


def clone_commit() -> str | None:
    """Returns the commit of the clone that runs; None if the package was installed."""
    root = _find_clone()
    return None if root is None else git_commit(root)


def _find_clone() -> Path | None:
    """Returns the clone that runs if it has a history.

    An environment, or an unpacked source distribution, may lie in a repository of its user's,
    whose commits say nothing of this code.
    """
    root = clone_root()
    return root if root is not None and (root / ".git").exists() else None
