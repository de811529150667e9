"""Runs programs to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run_program(
    words: Sequence[str | Path], *, joined: bool = False, check: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a program and keeps what it prints, as text; CalledProcessError if it fails.

    Args:
      joined: standard error goes into standard output.
      check: False for the caller to look at the exit status.
      options: those of `subprocess.run`.
    """
    errors = subprocess.STDOUT if joined else subprocess.PIPE
    return subprocess.run(
        words, stdout=subprocess.PIPE, stderr=errors, text=True, check=check, **options
    )
