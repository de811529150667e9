"""Logs that cannot be written."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dpprobe.errors import DataError
from dpprobe.logs import BRIEF, job_log


def test_logs_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="^dpprobe: .*file"), job_log(tmp_path / "file/a.log"):
        pass
    monkeypatch.setenv(BRIEF, "1")
    with pytest.raises(SystemExit), job_log("/dev/full"):
        raise DataError("a.png: damaged")
    assert "ERROR a.png: damaged" in capsys.readouterr().err, "no log has it"
    monkeypatch.delenv(BRIEF)
    with job_log(tmp_path / "b.log"):
        logging.getLogger("dpprobe").info("%d", "x")
    assert "--- Logging error ---" in capsys.readouterr().err
