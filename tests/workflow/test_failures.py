"""Failures are reported with their causes: killed jobs, retried jobs, stopped runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.programs import run_program

from .conftest import TIMEOUT, WarmPython, on_cluster

# A workflow that runs scripts, with the rules that report failures.
RULES = """
import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

STUDY, CALL = SimpleNamespace(study="scripts", results_dir="results"), []
# other rule files' parts of a run, which scripts have no need of
check_devices = check_slurm = lambda: None
begin_run = lambda: end_from_thread()
GIVEN_FILES, IN_STORAGE = [], False
check_storage = ready_jobs = lambda jobs: None
shown_files = list
changed_outputs = lambda jobs: []
tell_raised = lambda dag: None


include: "{rules}/snakemake_fixes.smk"
include: "{rules}/messages.smk"


follow_run()


rule all:
    input:
        {targets},


rule make:
    input:
        [path for path in ["in.csv"] if Path(path).exists()],
    output:
        "{{name}}.txt",
    log:
        "{{name}}.log",
    params:
        shown={{"a": [1, None]}},
    message:
        "making {{wildcards.name}}"
    script:
        "{{wildcards.name}}.py"
"""
FAILS = """
import sys
from dpprobe.files.logs import job_log
with job_log(snakemake.log[0]):
    from dpprobe.errors import {error}
    raise {error}("no room for a")
"""
PASSES = "open(snakemake.output[0], 'w').close()"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
QUIET = ("--quiet", "rules", "host")
# Sends the run a signal while its scheduler holds its lock.
SIGNAL = """

import signal
from snakemake.scheduling.job_scheduler import JobScheduler

free = JobScheduler._free_resources


def end_and_free(scheduler, job):
    assert scheduler._lock.locked()
    os.kill(os.getpid(), signal.SIGTERM)
    free(scheduler, job)


JobScheduler._free_resources = end_and_free
"""


def describe_run(folder: Path, repository: Path, scripts: dict[str, str], *words: str) -> list[str]:
    """Writes scripts, named after their output; returns the command that runs all scripts."""
    targets = ", ".join(f'"{name}.txt"' for name in scripts)
    rules = RULES.format(rules=repository / "workflow/rules", targets=targets)
    (folder / "Snakefile").write_text(rules)
    for name, text in scripts.items():
        (folder / f"{name}.py").write_text(text)
    return [
        sys.executable,
        "-m",
        "snakemake",
        "--directory",
        str(folder),
        "--cores",
        "2",
        "--snakefile",
        str(folder / "Snakefile"),
        "--profile",
        "none",
        "--logger",
        "dpprobe",
        *words,
    ]


def say(
    folder: Path, repository: Path, scripts: dict[str, str], *words: str, code: int = 1
) -> list[str]:
    """Runs scripts until they end, and returns the run's output lines."""
    result = run_program(
        WarmPython.asked(describe_run(folder, repository, scripts, *words)),
        joined=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == code, result.stdout
    return result.stdout.splitlines()


def test_a_killed_job_is_reported_with_its_signal(tmp_path: Path, repository: Path) -> None:
    """A process that is killed for its memory writes no log, so no log is named."""
    lines = say(tmp_path, repository, {"a": KILLED}, *QUIET)
    assert lines[-1] == "dpprobe: making a: killed by signal 9: perhaps out of memory"
    assert "making a: failed; the reason follows at the end of this run" in lines


def test_a_clock_that_jumped_is_told_with_the_file_and_the_remedy(
    tmp_path: Path, repository: Path
) -> None:
    """The job succeeds, but Snakemake deletes its output: the job's log contains no error."""
    (tmp_path / "in.csv").write_text("a")
    later = time.time() + 7200
    os.utime(tmp_path / "in.csv", (later, later))
    lines = say(tmp_path, repository, {"a": PASSES}, *QUIET)
    told = [line for line in lines if line.startswith("dpprobe: ")]
    day = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert len(told) == 1
    assert re.fullmatch(
        rf"dpprobe: making a: in\.csv is dated {day}, but the clock says {day}: the clock was "
        r"wrong when it was written, or is wrong now; correct the clock, `touch in\.csv`, and run "
        r"again",
        told[0],
    ), told


def test_a_job_that_is_tried_again_says_so_with_its_cause(tmp_path: Path, repository: Path) -> None:
    """The log is overwritten, and nothing is reported at the end if the next attempt succeeds."""
    second = f"""
from pathlib import Path
if Path("tried").exists():
    {PASSES}
else:
    Path("tried").touch()
    {FAILS.format(error="DownloadError").replace(chr(10), chr(10) + "    ")}
"""
    lines = say(tmp_path, repository, {"a": second}, *QUIET, "--retries", "1", code=0)
    assert "making a: failed (no room for a), tried again; log: a.log" in lines
    assert not any("the reason follows at the end of" in line for line in lines)


@pytest.mark.parametrize("written", ["", "10:00:00 ERROR shard.h5: damaged"])
def test_a_group_is_told_with_the_log_of_the_scheduler_or_of_the_job_that_ended_it(
    tmp_path: Path, repository: Path, written: str
) -> None:
    kept = tmp_path / "logs/slurm/pair/5d60b7f0/17.log"
    kept.parent.mkdir(parents=True)
    kept.write_text("slurmstepd: error: Detected 1 oom_kill event\n")
    words = on_cluster(tmp_path, f"echo '{written}' >b.log; echo 17", "echo failed")
    words += ["--groups", "make=pair", "--group-components", "pair=2"]
    lines = say(tmp_path, repository, dict.fromkeys("ab", PASSES), *QUIET, *words)
    told = [line for line in lines if line.startswith(("dpprobe: ", "  log: "))]
    if written:
        assert told == ["dpprobe: making b: shard.h5: damaged", "  log: b.log"]
    else:
        log = f"  log: {kept.relative_to(tmp_path)}"
        parts = [[f"dpprobe: making {name}: Detected 1 oom_kill event", log] for name in "ab"]
        assert told in (parts[0] + parts[1], parts[1] + parts[0])


def test_a_time_limit_is_reported_with_the_option_that_raises_it(
    tmp_path: Path, repository: Path
) -> None:
    kept = tmp_path / "logs/slurm/make/a/17.log"
    kept.parent.mkdir(parents=True)
    kept.write_text(
        "slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 10:00 DUE TO TIME LIMIT ***\n"
    )
    words = on_cluster(tmp_path, "echo 17", "echo failed")
    words += ["--set-resources", "make:runtime=7"]
    lines = say(tmp_path, repository, {"a": PASSES}, *QUIET, *words)
    assert lines[-2] == (
        "dpprobe: making a: *** JOB 17 ON n1 CANCELLED AT 10:00 DUE TO TIME LIMIT ***; its limit "
        "was 7 minutes (runtime); to raise it write `make: {runtime: 14 * attempt}` under "
        "set-resources of the profile"
    )


def test_failures_without_their_last_attempt_are_reported(tmp_path: Path, repository: Path) -> None:
    """The second job fails finally while the first has an attempt left, which is never started."""
    first = """
import time
from pathlib import Path
if Path("tried").exists():
    Path("again").touch()
    while "ERROR" not in (Path("b.log").read_text() if Path("b.log").exists() else ""):
        time.sleep(0.1)
    time.sleep(3)
Path("tried").touch()
"""
    second = """
import time
from pathlib import Path
while not Path("again").exists():
    time.sleep(0.1)
"""
    scripts = {
        "a": first + FAILS.format(error="DownloadError"),
        "b": second + FAILS.format(error="ConfigError"),
    }
    lines = say(tmp_path, repository, scripts, *QUIET, "--retries", "2")
    assert "dpprobe: making a: no room for a" in lines
    assert "dpprobe: making b: no room for a" in lines


@pytest.mark.parametrize("word", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("all_of_them", [False, True])
def test_an_interrupted_run_reports_earlier_failures(
    tmp_path: Path, repository: Path, word: signal.Signals, all_of_them: bool
) -> None:
    """Ctrl-C sends a signal to all processes of a run, `kill` to one process."""
    scripts = {
        "a": FAILS.format(error="ConfigError"),
        "b": "import time; open('began', 'w').close(); time.sleep(4)",
    }
    process = subprocess.Popen(
        describe_run(tmp_path, repository, scripts, *QUIET, "--keep-going"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # processes in a shell's background ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    said: list[str] = []
    deadline = time.monotonic() + TIMEOUT
    while not any("making a: failed" in line for line in said):
        assert time.monotonic() < deadline
        said.append(process.stdout.readline())
    while not (tmp_path / "began").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)  # until the scheduler has recorded the failure
    if all_of_them:
        os.killpg(process.pid, word)
    else:
        process.send_signal(word)
    output, _ = process.communicate(timeout=TIMEOUT)
    assert output.splitlines()[-3:] == [
        "dpprobe: making a: no room for a",
        "  log: a.log",
        "dpprobe: stopped; run the same command again to resume",
    ]
    assert "making b: failed" not in output


def test_a_signal_meets_a_scheduler_that_holds_its_lock(tmp_path: Path, repository: Path) -> None:
    """The SIGTERM handler needs a lock that its own thread may hold, which would block the run."""
    command = describe_run(tmp_path, repository, {"a": PASSES, "b": PASSES}, *QUIET)
    with (tmp_path / "Snakefile").open("a") as snakefile:
        snakefile.write(SIGNAL)
    done = run_program(WarmPython.asked(command), joined=True, timeout=60, check=False)
    assert "Will exit after finishing currently running jobs" in done.stdout
