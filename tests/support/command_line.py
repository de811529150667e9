"""Calls of the command `dpprobe` in this process."""

from __future__ import annotations

import sys

import pytest

from dpprobe import __main__ as program


def run_main(monkeypatch: pytest.MonkeyPatch, *words: object) -> int | str | None:
    """The exit status of a command, or its one line."""
    monkeypatch.setattr(sys, "argv", ["dpprobe", *map(str, words)])
    monkeypatch.setattr(program, "_show_progress", lambda: None)  # it would stay
    with pytest.raises(SystemExit) as ended:
        program.main()
    return ended.value.code
