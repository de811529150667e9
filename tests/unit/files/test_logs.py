"""A job's log explains a failure, and whether a retry may help."""

from __future__ import annotations

import errno
import http.client
import json
import logging
from pathlib import Path

import pytest
import requests

from dpprobe.errors import (
    ConfigError,
    DataError,
    DeviceError,
    DiskError,
    DownloadError,
    StoreError,
    WrongDownloadError,
    may_pass,
)
from dpprobe.files.logs import BRIEF, is_lasting, job_log, last_error
from dpprobe.progress import Progress

LOGS = json.loads(Path(__file__).with_name("logs.json").read_text())


def test_the_last_error_of_a_log() -> None:
    assert {log: last_error(log) for log in LOGS} == LOGS


def test_a_full_disk_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.log"
    with pytest.raises(SystemExit, match="^1$"), job_log(path):
        raise OSError(errno.ENOSPC, "write failed", "results/cells/metrics.json")
    line = (
        "results/cells/metrics.json: cannot be written (No space left on device); free space or "
        "have the quota raised, and run again"
    )
    assert last_error(path.read_text()) == line
    assert "Traceback" not in path.read_text()
    with pytest.raises(KeyError), job_log(path):
        raise KeyError("a fault of dpprobe")
    assert last_error(path.read_text()) == "KeyError: 'a fault of dpprobe'"
    assert not is_lasting(path.read_text())
    assert capsys.readouterr().err.endswith(f"ERROR {line}\n")


def test_a_log_without_room_is_reported_once(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(35)
    caplog.set_level(45, logger="dpprobe")
    before = logging.getLogger().handlers[:]
    with job_log("/dev/full"):
        logging.getLogger("dpprobe").info("first")
        logging.getLogger("dpprobe").info("second")
    assert logging.getLogger().handlers == before
    assert [logging.getLogger(name).level for name in (None, "dpprobe")] == [35, 45]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("INFO ")[2] for line in lines if "INFO" in line] == ["first", "second"]
    assert [line for line in lines if "INFO" not in line] == [
        "dpprobe: /dev/full: cannot be written (No space left on device); free space or have the "
        "quota raised, and run again"
    ]


def test_an_error_that_the_run_prints_at_its_end_is_only_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BRIEF, "1")
    path = tmp_path / "job.log"
    with pytest.raises(SystemExit), job_log(path):
        raise DataError("a.png: damaged")
    assert last_error(path.read_text()) == "a.png: damaged"
    assert "damaged" not in capsys.readouterr().err


def test_a_brief_run_shows_warnings_and_how_far_long_work_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BRIEF, "1")
    log = logging.getLogger("dpprobe")
    with job_log(tmp_path / "job.log"), Progress(4, label="train", interval=0) as progress:
        log.info("training seeds 0, 1")
        progress.advance_by(1)
        log.warning("seed 1 failed")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[2].partition(" (")[0] for line in lines] == [
        "INFO train: 1/4 rows",
        "WARNING seed 1 failed",
    ]
    assert len((tmp_path / "job.log").read_text().splitlines()) == 4


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (StoreError("shard.h5: damaged"), True),
        (WrongDownloadError("a.zip: 404"), True),
        (DownloadError("a.zip: no answer"), False),
        (caused(StoreError("shard.h5"), OSError("bad object header")), True),
        (caused(StoreError("shard.h5"), OSError(errno.EIO, "Input/output error")), False),
        (caused(DataError("a.png"), FileNotFoundError(errno.ENOENT, "No such file")), True),
        (caused(DataError("data"), OSError(errno.ENOSPC, "No space left on device")), False),
        (caused(DataError("a.png"), MemoryError()), False),
        (caused(DataError("tables"), caused(DataError("table"), MemoryError())), False),
        (ValueError("x"), False),
    ],
)
def test_a_log_says_when_another_try_would_end_the_same_way(
    tmp_path: Path, error: Exception, lasting: bool
) -> None:
    path = tmp_path / "job.log"
    with pytest.raises((SystemExit, ValueError)) as caught, job_log(path):
        raise error
    assert getattr(caught.value, "code", 1) == 1
    assert is_lasting(path.read_text()) == lasting
    with job_log(path):
        pass
    assert not is_lasting(path.read_text()), "the next try begins a new log"


def met(cause: Exception, *, within: bool = False) -> ConfigError:
    """Returns an error for users, raised from `cause` or (`within`) while `cause` was handled."""
    error = ConfigError("model: cannot be created")
    setattr(error, "__context__" if within else "__cause__", cause)
    return error


PASSING = [
    DiskError("no room"),
    DeviceError("no GPU"),
    ValueError("nobody foresaw this"),
    met(TimeoutError("timed out"), within=True),
    *map(
        met,
        [
            TimeoutError("timed out"),
            http.client.RemoteDisconnected("gone"),
            requests.HTTPError("503 Server Error"),
            OSError(5, "Input/output error"),
            MemoryError(),
            RuntimeError("CUDA out of memory"),
        ],
    ),
]
STAYING = [
    ConfigError("learning_rate"),
    DataError("a damaged image"),
    met(KeyError(), within=True),
    *map(
        met,
        [
            ValueError("unknown model"),
            OSError("file signature not found"),
            FileNotFoundError(2, "No such file or directory", "weights.pt"),
            PermissionError(13, "Permission denied", "weights.pt"),
        ],
    ),
]


def test_only_errors_that_may_pass_without_changes_are_retried() -> None:
    assert [error for error in [*PASSING, *STAYING] if may_pass(error)] == PASSING


# Logs that cannot be written.


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
