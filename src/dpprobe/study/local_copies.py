"""Locates a study's folders if a storage provider (such as a bucket) has them.

Snakemake copies the files of a job into a local folder. Rules write this folder's path into an
environment variable for jobs' scripts; without a storage provider the variable is absent.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "DPPROBE_LOCAL_COPIES"


def note_copies(folder: Path, provider: str, prefix: str) -> None:
    """Sets the environment variable with the folder of a storage provider's local copies.

    Args:
      folder: Snakemake's `--local-storage-prefix`.
      prefix: Snakemake's `--default-storage-prefix`, a path or an address.
    """
    inside = prefix.rpartition("://")[2].strip("/")
    os.environ[VARIABLE] = str(folder / provider / inside)


def enter_copies(folder: str) -> str:
    """Returns the local copy of a study's folder; without a provider, the folder itself."""
    copies = os.environ.get(VARIABLE)
    return f"{copies}/{folder}" if copies else folder


def leave_copies(folder: Path) -> Path:
    """Returns a study's folder on Snakemake's own machine, from its path among local copies."""
    copies = os.environ.get(VARIABLE)
    return folder.relative_to(copies) if copies else folder
