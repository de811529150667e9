"""The logger plugin: Snakemake's own checks of plugins, and the texts that this one shortens."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import pytest
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase
from snakemake_interface_logger_plugins.tests import MockOutputSettings, TestLogHandlerBase

from snakemake_logger_plugin_dpprobe import LogHandler, is_quiet_typed, shorten_error
from snakemake_logger_plugin_dpprobe.failures import read_status


class TestHandler(TestLogHandlerBase):
    __test__ = True

    def get_log_handler_cls(self) -> type[LogHandler]:
        return LogHandler

    def get_log_handler_settings(self) -> LogHandlerSettingsBase:
        return LogHandlerSettingsBase()


def make_record(event: LogEvent | None, text: str = "", **fields: Any) -> logging.LogRecord:
    record = logging.LogRecord("snakemake", logging.INFO, "x.py", 1, text, (), None)
    vars(record).update(event=event, **fields)
    return record


def make_handler(*quiet: str, dry: bool = False) -> LogHandler:
    from snakemake.settings.enums import Quietness

    settings = MockOutputSettings()
    settings.quiet = [Quietness.parse_choice(word) for word in quiet]
    settings.dryrun = dry
    return LogHandler(settings, LogHandlerSettingsBase())


def test_progress_is_thinned_in_a_quiet_run(capsys: pytest.CaptureFixture[str]) -> None:
    handler = make_handler("rules", "host")
    for done in range(5):
        handler.handle(make_record(LogEvent.PROGRESS, done=done, total=5))
    assert capsys.readouterr().err == "0 of 5 steps (0%) done\n"


def test_progress_is_whole_in_a_run_that_says_all(capsys: pytest.CaptureFixture[str]) -> None:
    handler = make_handler("host")
    for done in range(5):
        handler.handle(make_record(LogEvent.PROGRESS, done=done, total=5))
    assert len(capsys.readouterr().err.splitlines()) == 5


def test_a_dry_run_takes_no_notice_of_a_profiles_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []
    for words in (["snakemake", "-n"], ["snakemake", "-n", "--quiet", "rules"]):
        monkeypatch.setattr("sys.argv", words)
        handler = make_handler("rules", "host", dry=True)
        handler.handle(make_record(LogEvent.RUN_INFO, "Job stats:"))
        lines.append(capsys.readouterr().err)
    assert lines == ["Job stats:\n", ""]
    assert is_quiet_typed(["-q"])
    assert not is_quiet_typed(["-n", "quiet"])


@pytest.mark.parametrize("dry", [True, False])
def test_a_dry_run_says_what_each_job_asks_for(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, dry: bool
) -> None:
    monkeypatch.setattr("sys.argv", ["snakemake"])
    resources = {"tmpdir": "/tmp", "runtime": 9, "mem": "3 GB", "mem_mb": 3000, "gpu": 1}
    record = make_record(
        LogEvent.JOB_INFO, jobid=4, rule_name="extract", rule_msg="features of a", reason="",
        output=["a.h5"], threads=2, resources=resources | {"_cores": 2}, local=False,
    )  # fmt: skip
    make_handler("host", dry=dry).handle(record)
    written = capfd.readouterr().err
    assert "Job 4: features of a\n" in written
    assert ("\nextract: threads=2, gpu=1, mem_mb=3000, runtime=9\n" in written) is dry


def test_a_terminal_that_is_gone_ends_the_messages_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone:
        written = 0

        def write(self, _: str) -> int:
            self.written += 1
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    gone = Gone()
    monkeypatch.setattr("sys.stderr", gone)
    handler = make_handler("rules")
    for _ in range(3):
        handler.handle(make_record(None, "a line"))
    handler.close()
    assert gone.written == 1


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("Command 'x' died with <Signals.SIGKILL: 9>.", -signal.SIGKILL),
        ("Command 'x' died with unknown signal 64.", -64),
        (
            "Command 'returned non-zero exit status 1' returned non-zero exit status 137.\n  File",
            137,
        ),
        ("WorkflowError: another", None),
    ],
)
def test_how_a_process_ended_is_read_from_its_error(text: str, status: int | None) -> None:
    assert read_status(text) == status


@pytest.mark.parametrize(
    ("text", "exception", "short"),
    [
        (
            'StudyError in file "/a b/common.smk", line 90:\nconfig: a: wrong\nconfig: b: wrong\n'
            '  File "/a b/common.smk", line 90, in <module>\n  File "/x.py", line 3, in f',
            "StudyError",
            "dpprobe: config: a: wrong\nconfig: b: wrong",
        ),
        ("StudyError:\nconfig: a: wrong", "StudyError", "dpprobe: config: a: wrong"),
        ("WorkflowError:\nanother", "WorkflowError", "WorkflowError:\nanother"),
        (
            "Traceback (most recent call last):\n  File\nFileNotFoundError: [Errno 2] No such file "
            "or directory: 'x'\n",
            "FileNotFoundError",
            None,
        ),
    ],
)
def test_a_wrong_study_is_told_without_its_traceback(
    text: str, exception: str, short: str | None
) -> None:
    assert shorten_error(text, exception) == (text if short is None else short)


def test_a_file_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    text = (
        f"Traceback (most recent call last):\n  File\nOSError: [Errno 28] No space left: '{path}'\n"
    )
    told = shorten_error(text, "OSError")
    assert told.startswith("dpprobe: ")
    assert str(tmp_path) in told
    assert len(told.splitlines()) == 1
