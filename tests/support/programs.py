"""Runs programs and waits for their end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run_program(
    words: Sequence[str | Path], *, joined: bool = False, check: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a program and captures its output as text; raises CalledProcessError if it fails.

    Args:
      joined: True to add standard error to standard output.
      check: False if the caller checks the exit status.
      options: passed to `subprocess.run`.
    """
    errors = subprocess.STDOUT if joined else subprocess.PIPE
    return subprocess.run(
        words, stdout=subprocess.PIPE, stderr=errors, text=True, check=check, **options
    )
