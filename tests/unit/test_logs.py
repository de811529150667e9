"""A job's log tells the cause of a failure, and whether another try may help."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from dpprobe.errors import DataError, DownloadError, StoreError, WrongDownloadError
from dpprobe.logs import BRIEF, LASTING, is_lasting, job_log, last_error
from dpprobe.progress import Progress

TRACEBACK = """Traceback (most recent call last):
  File "job.py", line 3, in fit
    raise ValueError("x")
ValueError: x
"""


LOGS = {
    "": None,
    "10:00:00 INFO sgd: training seeds 0, 1\n": None,
    "10:00:00 ERROR shard.h5: damaged\n": "shard.h5: damaged",
    "10:00:00 INFO sgd: kept\n" + TRACEBACK: "ValueError: x",
    f"10:00:00 ERROR bad failed\n{TRACEBACK}10:00:01 ERROR bad: x\n": "bad: x",
    f"10:00:00 ERROR bad: y\n{TRACEBACK}RuleException:\n": "ValueError: x",
    "10:00:00 ERROR a: x\n  b: y\n[Sun Nov 22]\nError in rule\n": "a: x\n  b: y",
    f"10:00:00 ERROR a: x\nb: y\n{LASTING}\n": "a: x\nb: y",
    "10:00:00 ERROR a: x\n10:00:01 INFO b\n": "a: x",
    TRACEBACK.splitlines()[0] + "\n  File\n": None,
    "10:00:00 INFO a\nslurmstepd: error: Detected 1 oom_kill event\n": "Detected 1 oom_kill event",
    # where Slurm was built to run several slurmd on a node, as Debian's is
    "slurmstepd-node1: error: StepId=7.batch exceeded memory limit\n"
    "slurmstepd-node1: error: Exceeded job memory limit\n": "Exceeded job memory limit",
}


def test_the_last_error_of_a_log() -> None:
    assert {log: last_error(log) for log in LOGS} == LOGS


def test_a_full_disk_is_told_in_one_line(
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


def test_a_log_without_room_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with job_log("/dev/full"):
        logging.getLogger("dpprobe").info("first")
        logging.getLogger("dpprobe").info("second")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("INFO ")[2] for line in lines if "INFO" in line] == ["first", "second"]
    assert [line for line in lines if "INFO" not in line] == [
        "dpprobe: /dev/full: cannot be written (No space left on device); free space or have the "
        "quota raised, and run again"
    ]


def test_an_error_that_the_run_prints_at_its_end_is_in_the_log_alone(
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


@pytest.mark.parametrize(("error", "lasting"), [
    (StoreError("shard.h5: damaged"), True), (WrongDownloadError("a.zip: 404"), True),
    (DownloadError("a.zip: no answer"), False),
    (caused(StoreError("shard.h5"), OSError("bad object header")), True),
    (caused(StoreError("shard.h5"), OSError(errno.EIO, "Input/output error")), False),
    (caused(DataError("a.png"), FileNotFoundError(errno.ENOENT, "No such file")), True),
    (caused(DataError("data"), OSError(errno.ENOSPC, "No space left on device")), False),
    (caused(DataError("a.png"), MemoryError()), False),
    (caused(DataError("tables"), caused(DataError("table"), MemoryError())), False),
    (ValueError("x"), False),
])  # fmt: skip
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
