"""Runs the command `dpprobe` in this process."""

from __future__ import annotations

import logging
import sys

import pytest

from dpprobe.__main__ import main


def run_main(monkeypatch: pytest.MonkeyPatch, *words: object) -> int | str | None:
    """Returns the exit status of a command, or its one-line message."""
    monkeypatch.setattr(sys, "argv", ["dpprobe", *map(str, words)])
    logger = logging.getLogger("dpprobe")
    level = logger.level
    with pytest.raises(SystemExit) as ended:
        main()
    logger.setLevel(level)  # the command's level would remain
    return ended.value.code
