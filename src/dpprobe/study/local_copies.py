"""A study's folders where a storage provider holds them, such as a bucket.

Snakemake copies the files of a job into a local folder. Rules name this folder in an environment
variable, for scripts of jobs; without a storage provider the variable is absent.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "DPPROBE_LOCAL_COPIES"


def note_copies(folder: Path, provider: str, prefix: str) -> None:
    """Notes, for scripts of jobs, where Snakemake copies files of a storage provider.

    Args:
      folder: Snakemake's `--local-storage-prefix`.
      prefix: Snakemake's `--default-storage-prefix`, a path or an address.
    """
    inside = prefix.rpartition("://")[2].strip("/")
    os.environ[VARIABLE] = str(folder / provider / inside)


def enter_copies(folder: str) -> str:
    """Returns where a study's folder is copied to; the folder itself without a provider."""
    copies = os.environ.get(VARIABLE)
    return f"{copies}/{folder}" if copies else folder


def leave_copies(folder: Path) -> Path:
    """Returns a study's folder on Snakemake's own machine, from the folder of local copies."""
    copies = os.environ.get(VARIABLE)
    return folder.relative_to(copies) if copies else folder
