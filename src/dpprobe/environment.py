"""The environment of what Snakemake starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def put_own_python_first() -> None:
    """Commands that this process starts find its Python, its environment activated or not."""
    own = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([own, os.environ.get("PATH", os.defpath)])
