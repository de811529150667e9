"""Files that cannot be opened as CSV."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpprobe.data.sources.csv_files import open_csv
from dpprobe.errors import ConfigError


def test_a_pipe_is_refused_unread(tmp_path: Path) -> None:
    """Nobody writes into the pipe, so reading it would never end."""
    os.mkfifo(tmp_path / "x.csv")
    with (
        pytest.raises(ConfigError, match=r"x\.csv line 1: .*a device, a pipe or a socket"),
        open_csv(tmp_path / "x.csv", "x.csv"),
    ):
        pass
