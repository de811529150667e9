"""The logger plugin passes Snakemake's own checks of plugins, and shortens Snakemake's messages."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from snakemake.common.configfile import load_configfile
from snakemake.exceptions import format_exception_to_string
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase
from snakemake_interface_logger_plugins.tests import MockOutputSettings

import snakemake_logger_plugin_dpprobe as plugin
from snakemake_logger_plugin_dpprobe import RUN, LogHandler
from snakemake_logger_plugin_dpprobe.failures import Failures


@pytest.fixture(autouse=True)
def _no_thread_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stops the thread of each handler, which otherwise continues to check if jobs wait."""
    made, start = [], LogHandler.__post_init__

    def note(handler: LogHandler) -> None:
        made.append(handler)
        start(handler)

    monkeypatch.setattr(LogHandler, "__post_init__", note)
    yield
    for handler in made:
        handler._ended.set()


def make_record(event: LogEvent | None, text: str = "", **fields: Any) -> logging.LogRecord:
    record = logging.LogRecord("snakemake", logging.INFO, "x.py", 1, text, (), None)
    vars(record).update(event=event, **fields)
    return record


def job_record(number: int, message: str, **changes: Any) -> logging.LogRecord:
    """Makes the log record of a job that starts."""
    fields: dict[str, Any] = {
        "jobid": number,
        "rule_name": "train",
        "rule_msg": message,
        "reason": "",
        "output": ["a"],
        "threads": 1,
        "resources": {},
        "local": False,
    }
    return make_record(LogEvent.JOB_INFO, **fields | changes)


def make_handler(*quiet: str, dry: bool = False, commands: bool = False) -> LogHandler:
    from snakemake.settings.enums import Quietness

    settings = MockOutputSettings()
    settings.quiet = [Quietness.parse_choice(word) for word in quiet]
    settings.dryrun, settings.printshellcmds = dry, commands
    return LogHandler(settings, LogHandlerSettingsBase())


@pytest.mark.parametrize(("quiet", "lines"), [(("rules", "host"), 1), (("host",), 5)])
def test_progress_is_thinned_in_a_quiet_run(
    capsys: pytest.CaptureFixture[str], quiet: tuple[str, ...], lines: int
) -> None:
    handler = make_handler(*quiet)
    for done in range(5):
        handler.handle(make_record(LogEvent.PROGRESS, done=done, total=5))
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "0 of 5 jobs (0%) done"
    assert len(told) == lines


def plan_jobs(handler: LogHandler, rules: int) -> dict[str, int]:
    """Sends a plan to a handler and closes it; returns jobs per rule, all numbers different."""
    jobs = {f"rule_{index:02}": 2 + index * 7 % 53 for index in range(rules)}
    stats = {**jobs, "all": 1, "total": sum(jobs.values()) + 1}
    about = make_record(LogEvent.RUN_INFO, "Job stats:", stats=stats)
    handler.handle(about)
    for number, rule in enumerate(list(stats)[:-1]):
        reason = "Missing output files: a.h5, b.h5; Input files updated by another job: c"
        output = ["a.h5"] if rule in jobs else []
        handler.handle(job_record(number, "a job", rule_name=rule, reason=reason, output=output))
    handler.handle(about)
    handler.close()
    return jobs


def test_a_dry_run_is_a_summary(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["snakemake", "-n"])
    for rules in (3, 50):
        jobs = plan_jobs(make_handler("rules", "host", dry=True), rules)
        first, *told, why, last = capsys.readouterr().err.splitlines()
        assert first == f"would run {sum(jobs.values()):,} jobs:"
        most = sorted(jobs.values())[-22:]
        shown = [f"  {rule} {number}" for rule, number in jobs.items() if number in most]
        rest = sum(jobs.values()) - sum(most)
        assert told == shown + [f"  and {rest} jobs of 28 other rules"] * (rules == 50)
        why_each = ("missing output files", "input files updated by another job")
        assert why == "why: " + ", ".join(f"{reason} ({rules} jobs)" for reason in why_each)
        assert last.endswith("add -p; to run the jobs, leave out -n")


def test_verbosity_options_change_a_dry_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["snakemake", "-n", "--quiet", "rules"])
    plan_jobs(make_handler("rules", "host", dry=True), 3)
    assert "a job" not in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["snakemake", "-n", "-p"])
    plan_jobs(make_handler("rules", "host", dry=True, commands=True), 3)
    told = capsys.readouterr().err
    assert "Job stats:" in told
    assert told.count("a job") == 3
    assert "would run" not in told
    assert plugin.is_quiet_typed(["-q"])
    assert not plugin.is_quiet_typed(["-n", "quiet"])


def test_a_long_wait_reports_the_running_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    handler = make_handler("rules", "host")
    for number in range(5):
        handler.handle(job_record(number, f"heads {number}"))
    began = handler._said
    handler._report_wait(began + 4)
    assert capsys.readouterr().err == ""
    handler._report_wait(began + 6)
    running = "".join(rf"heads {number} \(\d+ s\); " for number in range(3))
    assert re.fullmatch(f"running: {running}2 more\n", capsys.readouterr().err)
    handler._report_wait(began + 40)
    assert capsys.readouterr().err == "", "the same jobs"
    handler.handle(make_record(LogEvent.JOB_FINISHED, "Finished", job_id=0))
    handler._report_wait(began + 41)
    assert "heads 0" not in capsys.readouterr().err
    for number in range(1, 5):
        handler.handle(make_record(LogEvent.JOB_FINISHED, "Finished", job_id=number))
    handler._report_wait(began + 400)
    assert capsys.readouterr().err == "", "nothing runs"


def start_job(handler: LogHandler, log: Path) -> float:
    """Sends the start of a job to a handler; returns the time of the handler's last output."""
    handler.handle(job_record(1, "heads", log=[str(log)], wildcards={"dataset": "digits"}))
    return handler._said


@pytest.mark.parametrize("file", ["results/logs/train/digits.log", "logs/slurm/train/digits/7.log"])
def test_reasons_of_waiting_jobs_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    """On Slurm, warnings are only in the job's log, which nobody reads during a silent run."""
    monkeypatch.chdir(tmp_path)
    workflow = SimpleNamespace(non_local_exec=True, is_main_process=False)
    monkeypatch.setattr(RUN, "workflow", workflow)
    handler = make_handler("rules", "host")
    began = start_job(handler, Path("results/logs/train/digits.log"))
    log = Path(file)
    log.parent.mkdir(parents=True)
    wait = (
        "cells: no room on / (No space left on device); waiting up to 60 more minutes; free space"
    )
    log.write_text(f"10:00:00 INFO begins\n10:00:01 WARNING {wait}\n")
    handler._report_wait(began + 6)
    told = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"running: heads \(\d+ s\)", told[0])
    assert told[1:] == [f"  heads: {wait}"]
    with log.open("a") as stream:
        stream.write("10:01:00 INFO goes on\n")
    handler._report_wait(began + 100)
    assert len(capsys.readouterr().err.splitlines()) == 1
    monkeypatch.setattr(RUN, "workflow", None)
    handler.close()


def test_a_full_disk_is_reported_while_jobs_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even logs cannot be written then, so the handler checks the disk itself."""
    monkeypatch.setattr(RUN, "results", tmp_path)
    handler = make_handler("rules", "host")
    began = start_job(handler, tmp_path / "a.log")
    handler._report_wait(began + 6)
    assert "full" not in capsys.readouterr().err
    usage = shutil.disk_usage(tmp_path)._replace(free=12_288)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    handler._report_wait(began + 100)
    told = capsys.readouterr().err.splitlines()[1]
    assert told.startswith(f"  {tmp_path}: the disk is full (12288 bytes free on ")
    assert told.endswith("free space; free some, or have the quota raised")
    handler.close()


@pytest.mark.parametrize("dry", [True, False])
def test_a_dry_run_lists_resources_of_each_job(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, dry: bool
) -> None:
    monkeypatch.setattr("sys.argv", ["snakemake"])
    resources = {"tmpdir": "/tmp", "runtime": 9, "mem": "3 GB", "mem_mb": 3000, "gpu": 1}
    asked = {"threads": 2, "resources": resources | {"_cores": 2}}
    record = job_record(4, "features of a", rule_name="extract", **asked)
    make_handler("host", dry=dry, commands=True).handle(record)
    written = capfd.readouterr().err
    assert "Job 4: features of a\n" in written
    assert ("\nextract: threads=2, gpu=1, mem_mb=3000, runtime=9\n" in written) is dry


def test_a_terminal_that_is_gone_ends_the_messages_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = Mock(spec=["write", "flush"])
    gone.write.side_effect = gone.flush.side_effect = BrokenPipeError
    monkeypatch.setattr("sys.stderr", gone)
    handler = make_handler("rules")
    for _ in range(3):
        handler.handle(make_record(None, "a line"))
    handler.close()
    assert gone.write.call_count == 1


IN_CONFIG = 'Traceback (most recent call last):\n  File "x", in load_configfile\n'
NO_RULE = 'MissingRuleException in file "/a", line 4:\nNo rule to produce {} (if you use'
NO_ACCESS = "no access (Permission denied); correct the permissions of the file and its folder"
# Snakemake's error name, its message, and dpprobe's message.
ERRORS = (
    (
        "OSError",
        f"{IN_CONFIG}OSError: [Errno 28] No space left: '/some/notes'\n",
        "/some/notes: cannot be written (No space left on device); free space or have the quota",
    ),
    (
        "LockException",
        "LockException:\nError: not locked, in the following directory:\n/a b\nIf",
        "/a b: another run uses this folder; wait until it ends, or add --unlock if it was killed",
    ),
    (
        "Traceback",
        "Traceback (most recent call last):\nPermissionError: [Errno 13] x: '.x'",
        f".x: {NO_ACCESS}",
    ),
    (
        "WorkflowError",
        "WorkflowError:\nFailed to create a/logs.\nOSError: [Errno 30] No: 'a/logs'",
        "a/logs: cannot be written (Read-only file system); mount the disk for writing",
    ),
    (
        "PermissionError",
        "PermissionError in file \"a.smk\", line 5:\n[Errno 13] No: '/a b/.runs'\n"
        '  File "run.smk", line 4, in begin_run\n  File "x.py", line 3, in stat\n',
        f"/a b/.runs: {NO_ACCESS}",
    ),
    (
        "WorkflowError",
        "WorkflowError:\nInsufficient permissions to access data/a.parquet. Please",
        f"data/a.parquet: {NO_ACCESS}",
    ),
    *(
        ("MissingRuleException", NO_RULE.format(name), f"{name}: no such target; {remedy}list all")
        for name, remedy in (
            ("x/y.csv", ""),
            ("pln", "write plan, or "),
            ("paper-tables", "write paper_tables, or "),
            ("training_digits", "write heads_digits, or "),
            ("feature_digits", "write features_digits, or "),
            ("fairness_digits", ""),  # not the audit's rule, which has another purpose
            ("zzz", ""),
        )
    ),
    (
        "InputFunctionException",
        'InputFunctionException in rule a in file "b.smk", line 4:\nError:\n  StudyError:\n    '
        "device: auto: c; write cpu\nWildcards:\n  split=train\nTraceback:\n  File x",
        "device: auto: c; write cpu",
    ),
)


@pytest.mark.parametrize(("kind", "text", "told"), ERRORS)
def test_long_messages_of_snakemake_become_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, text: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("all", "plan", "paper_tables", "audit_digits", "features_digits", "heads_digits")
    rules = [SimpleNamespace(name=name) for name in names]
    monkeypatch.setattr(RUN, "workflow", SimpleNamespace(rules=rules))
    line = plugin.shorten_error(text, kind)
    assert line.startswith(f"dpprobe: {told}")
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a: 1\n# caf\xe9\n", "lesion.yaml:2: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        ("a: 1\n".encode("utf-16"), "lesion.yaml:1: byte 0xff is not UTF-8; save the file as"),
        (b"a:\n\t- 1\n", "lesion.yaml:2: a tab, but YAML accepts only spaces"),
        (b"a: 2024-13-40\n", "lesion.yaml: not YAML (month must be in 1..12)"),
        (b"- a\n", "lesion.yaml: no mapping; write a study"),
        (b"", "lesion.yaml: empty; write a study"),
        ("folder", "--configfile lesion.yaml: a folder; name the file of a study"),
        ("link", "--configfile lesion.yaml: a link that leads to no file; correct the link"),
        (None, "--configfile lesion.yaml: no such file; correct it, as in lesions.yaml"),
    ],
)
def test_an_unreadable_study_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | str | None, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["snakemake", "-n", "--configfile", "lesion.yaml"])
    (tmp_path / "lesions.yaml").touch()
    study = tmp_path / "lesion.yaml"
    if isinstance(content, bytes):
        study.write_bytes(content)
    elif content == "folder":
        study.mkdir()
    elif content == "link":
        study.symlink_to(study.name)
    with pytest.raises(Exception, match=r".") as caught:
        load_configfile(study.name)
    text = format_exception_to_string(caught.value)
    line = plugin.shorten_error(text, type(caught.value).__name__)
    assert line.startswith(f"dpprobe: {told}")
    assert len(line.splitlines()) == 1


def test_a_job_that_never_started_has_no_log_to_read(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    record = {"log": [str(log)], "rule_name": "train_heads", "jobid": 1}
    assert "log" not in Failures().describe_at_once(None, record)
    log.write_text("12:00:00 ERROR x\n")
    assert Failures().describe_at_once(None, record).endswith(f"; log: {log}")
