"""Tests the Slurm profile's commands with a fake Slurm; tests/slurm has a real one."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpprobe.devices import USER_PATH, put_python_on_path
from dpprobe.files.logs import is_lasting, last_error
from tests.support.programs import run_program

PROFILE = Path(__file__).resolve().parents[2] / "profiles/slurm"
COMMANDS_OF_PROFILE = PROFILE.parents[1] / "tests/support/profile_commands.py"
COMMANDS = ("squeue", "sacct", "scancel", "sbatch")
TOKEN = "0123456789abcdef"
# Prints <command>.out, or fails with <command>.error; records each call.
FAKE = """#!/bin/sh
name=${0##*/}; here=${0%/*}
echo "$name $*" >>"$here/calls"
test "$name" = sbatch && cat >"$here/script"
if test -e "$here/$name.error"; then cat "$here/$name.error" >&2; exit 1; fi
cat "$here/$name.out"
"""


@dataclass(frozen=True)
class Slurm:
    """A fake Slurm, and the folder in which the profile's commands run."""

    bin: Path
    folder: Path
    ask: Callable[[dict[str, Any]], int]

    @property
    def state(self) -> Path:
        return self.folder / ".snakemake/slurm"

    def says(self, command: str, *lines: str) -> None:
        (self.bin / f"{command}.error").unlink(missing_ok=True)
        text = "".join(f"{line}\n" for line in lines)
        (self.bin / f"{command}.out").write_text(text, "utf-8", "surrogateescape")

    def refuses(self, command: str, error: str) -> None:
        (self.bin / f"{command}.error").write_text(error)

    def calls(self, command: str) -> list[str]:
        path = self.bin / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.split()[0] == command]

    def environment(self, **variables: str) -> dict[str, str]:
        path = f"{self.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, **variables}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in a new process, forked from a process that has imported the command."""
        files = {name: str(self.bin.parent / name) for name in ("output", "errors")}
        status = self.ask(
            {"words": words, "folder": str(self.folder), "environment": self.environment(), **files}
        )
        output, errors = (Path(path).read_text() for path in files.values())
        return subprocess.CompletedProcess(words, status, output, errors)

    def start(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a command as Snakemake does, as an executable file."""
        return self.call(PROFILE / words[0], *words[1:], **variables)

    def call(self, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return run_program(words, cwd=self.folder, env=self.environment(**variables), check=False)

    def status(self, job: str = "17", **variables: str) -> tuple[str, str]:
        """Returns the output and messages of a new call of status.py, without its cached answer."""
        (self.state / "queue").unlink(missing_ok=True)
        (self.state / "outage").unlink(missing_ok=True)
        run = functools.partial(self.start, **variables) if variables else self.run
        result = run("status.py", job)
        assert result.returncode == 0, result.stderr
        return result.stdout, result.stderr

    def record(self) -> None:
        record = {"name": "dpprobe.train.a", "log": "x.log", "mem_mb": 500, "runtime": 1}
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / "17.json").write_text(json.dumps(record | {"token": TOKEN}))

    def exits(self, code: int, token: str = TOKEN, job: str = "17") -> None:
        (self.state / f"{job}.exit").write_text(f"{code} {token}\n")

    def missed(self) -> None:
        path = self.state / "17.missed"
        path.touch()
        os.utime(path, (time.time() - 3600,) * 2)  # an hour ago


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[[dict[str, Any]], int]]:
    """Yields a function that runs a command and returns its exit status."""
    with subprocess.Popen(
        [sys.executable, "-S", "-E", COMMANDS_OF_PROFILE, PROFILE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        stdin, stdout = server.stdin, server.stdout
        assert stdin
        assert stdout

        def asked(request: dict[str, Any]) -> int:
            stdin.write(f"{json.dumps(request)}\n")
            stdin.flush()
            return int(stdout.readline())

        yield asked


@pytest.fixture
def slurm(tmp_path: Path, ask: Callable[[dict[str, Any]], int]) -> Slurm:
    fake = Slurm(tmp_path / "bin", tmp_path / "folder", ask)
    fake.bin.mkdir()
    fake.state.mkdir(parents=True)
    for name in COMMANDS:
        (fake.bin / name).write_text(FAKE)
        (fake.bin / name).chmod(0o755)
        fake.says(name)
    fake.says("sbatch", "18")
    fake.refuses("sacct", "Slurm accounting storage is disabled")
    fake.record()
    return fake


def line(state: str = "RUNNING", job: str = "17", reason: str = "None") -> str:
    return f"{job}|{state}|{int(time.time())}|dpprobe.train.a|{reason}|dpprobe:w:v:tmp.x:{TOKEN}"


# Slurm states: running or waiting, with reasons; unable to ever run; ended.
WAITS = (
    *(("RUNNING", "None"), ("COMPLETING", "None"), ("SUSPENDED", "None"), ("REQUEUED", "None")),
    *(("PENDING", why) for why in ("None", "Priority", "Resources", "BeginTime")),
    *(("PENDING", why) for why in ("QOSMaxJobsPerUserLimit", "AssocGrpCpuLimit")),
)
NEVER = (
    *("PartitionTimeLimit", "BadConstraints", "QOSMaxWallDurationPerJobLimit"),
    *("AssocMaxCpuPerJobLimit", "InvalidQOS"),
)
STUCK = {reason: f"IMPOSSIBLE, it would wait for ever: {reason}" for reason in NEVER} | {
    "launch failed requeued held": "LAUNCH_FAILED, its node could not start it"
}
ENDED = {
    "OUT_OF_MEMORY": "it needed more than its 500 MB (mem_mb); a retry asks for more; to raise it "
    "write `train: {mem_mb: 1000 * attempt}` under set-resources of the profile",
    "TIMEOUT": "it needed more than its 1 minutes (runtime); a retry asks for more; to raise it "
    "write `train: {runtime: 2 * attempt}` under set-resources of the profile",
    "CANCELLED": "somebody, or a limit of the cluster, cancelled it",
    "NODE_FAIL": "its node went down",
}


@pytest.mark.parametrize(("state", "reason"), WAITS)
def test_a_job_that_runs_or_waits_is_running(slurm: Slurm, state: str, reason: str) -> None:
    slurm.says("squeue", line(state, reason=reason))
    assert slurm.status() == ("running\n", "")
    assert slurm.calls("scancel") == []
    asked = slurm.calls("squeue")
    slurm.says("squeue")
    assert slurm.run("status.py", "17").stdout == "running\n"
    assert slurm.calls("squeue") == asked, "the queue is not asked again at once"


@pytest.mark.parametrize("reason", STUCK)
def test_a_job_that_can_never_run_is_cancelled(slurm: Slurm, reason: str) -> None:
    slurm.says("squeue", line("PENDING", reason=reason))
    said = f"slurm: job 17 (dpprobe.train.a): {STUCK[reason]}\n"
    assert slurm.status() == ("failed\n", said)
    assert slurm.calls("scancel") == ["scancel 17"]


def test_a_held_job_is_reported_once(slurm: Slurm) -> None:
    slurm.says("squeue", line("PENDING", reason="JobHeldUser"))
    assert slurm.status() == ("running\n", "slurm: job 17 is held: JobHeldUser\n")
    assert slurm.status() == ("running\n", "")
    assert slurm.calls("scancel") == []


@pytest.mark.parametrize("state", ENDED)
def test_a_jobs_end_is_reported_with_a_remedy(slurm: Slurm, state: str) -> None:
    slurm.says("squeue", line(state, reason="None"))
    said = f"slurm: job 17 (dpprobe.train.a): {state}, {ENDED[state]}\n"
    assert slurm.status() == ("failed\n", said)
    assert slurm.calls("scancel") == []
    slurm.record()
    (slurm.folder / "x.log").touch()  # the log is missing if a job never started
    assert slurm.status() == ("failed\n", f"{said.rstrip()}; log: x.log\n")


@pytest.mark.parametrize(
    ("state", "answer", "said"),
    [
        ("COMPLETED", "success", ""),
        ("CANCELLED by 1000", "failed", f"CANCELLED, {ENDED['CANCELLED']}"),
        ("FAILED", "failed", "FAILED, no exit code"),
    ],
)
def test_a_job_that_left_the_queue_is_looked_up(
    slurm: Slurm, state: str, answer: str, said: str
) -> None:
    slurm.says("sacct", state)
    told = f"slurm: job 17 (dpprobe.train.a): {said}\n" if said else ""
    assert slurm.status() == (f"{answer}\n", told)


def test_its_own_exit_code_decides(slurm: Slurm) -> None:
    slurm.says("squeue", line("RUNNING"))
    slurm.status()
    slurm.exits(0)
    assert slurm.run("status.py", "17").stdout == "success\n", "though squeue's answer is fresh"
    assert [path.name for path in slurm.state.glob("17.*")] == ["17.exit"]
    slurm.record()
    slurm.says("squeue", line("PENDING"))
    assert slurm.status()[0] == "success\n"


def test_files_of_an_earlier_job_with_equal_id_are_ignored(slurm: Slurm) -> None:
    """Job ids repeat if slurmctld loses its state, or if a folder comes from another cluster."""
    slurm.says("squeue", line("PENDING"))
    for content in (f"0 {TOKEN[::-1]}\n", "0\n", ""):
        (slurm.state / "17.exit").write_text(content)
        assert slurm.status()[0] == "running\n"
    slurm.says("squeue", line("FAILED"))
    assert slurm.status()[0] == "failed\n"


def test_a_failed_job_on_a_node_that_hangs_has_failed(slurm: Slurm) -> None:
    slurm.says("squeue", line("COMPLETING"))
    slurm.exits(1)
    assert slurm.status()[0] == "running\n"
    os.utime(slurm.state / "17.exit", (0, 0))
    assert slurm.status()[0] == "failed\n"


def test_status_reports_a_job_as_running_if_its_state_cannot_be_written(slurm: Slurm) -> None:
    """Root may write anywhere, so a folder in place of each file makes writing fail."""
    slurm.says("squeue", line())
    for name in ("queue", "outage", "outage.noted"):
        (slurm.state / name).mkdir()
    results = [slurm.run("status.py", "17")]
    assert "the state of job 17 is unknown" in results[0].stderr
    (slurm.state / "error.noted").unlink(missing_ok=True)
    (slurm.state / "error.noted").mkdir()
    results.append(slurm.run("status.py", "17"))
    slurm.refuses("squeue", "Unable to contact slurm controller")
    results.append(slurm.run("status.py", "17"))
    assert [(each.returncode, each.stdout) for each in results] == [(0, "running\n")] * 3


def test_a_file_servers_clock_does_not_matter(slurm: Slurm) -> None:
    slurm.says("squeue", line())
    slurm.status()
    ahead = time.time() + 3600
    os.utime(slurm.state / "queue", (ahead, ahead))
    slurm.says("squeue", line("CANCELLED"))
    assert slurm.run("status.py", "17").stdout == "failed\n"


@pytest.mark.parametrize("state", ["", "RUNNING", "PENDING"])
def test_a_job_that_squeue_lost_is_cancelled_after_a_minute(slurm: Slurm, state: str) -> None:
    """The job is lost even if the accounting database still lists it as running."""
    if state:
        slurm.says("sacct", state)
    slurm.refuses("scancel", "scancel: error: Kill job error on job id 17: Invalid job id")
    assert slurm.status()[0] == "running\n"
    slurm.missed()
    answer, note = slurm.status()
    assert answer == "failed\n"
    assert "LOST" in note
    assert slurm.calls("scancel") == ["scancel 17"]


def test_jobs_run_while_slurmctld_is_away(slurm: Slurm) -> None:
    slurm.refuses("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
    slurm.missed()
    assert "no answer, waiting" in slurm.status()[1]
    assert slurm.status() == ("running\n", ""), "one note a minute"
    (slurm.state / "refused").touch()
    os.utime(slurm.state / "refused", (0, 0))
    assert slurm.status()[0] == "running\n"
    slurm.refuses("squeue", "slurm_load_jobs error: Invalid user id")
    assert slurm.status()[0] == "running\n", "counted from its first refusal after the outage"
    os.utime(slurm.state / "refused", (0, 0))
    answer, note = slurm.status()
    assert answer == "failed\n", "an error that does not pass ends the wait"
    assert "Invalid user id" in note


def test_comments_of_other_jobs_may_hold_anything(slurm: Slurm) -> None:
    slurm.says(
        "squeue",
        "3|RUNNING|N/A|other|None|x",
        f"4|RUNNING|{int(time.time())}|other|None|two",
        "lines | and | bars",
        f"5|RUNNING|{int(time.time())}|other|None|\udcff\udcfe",
        f"6_[1-9%2]|PENDING|{int(time.time())}|other|Priority|",
        "",
        line(),
    )
    assert slurm.status() == ("running\n", "")


def test_a_query_outlives_the_end_of_a_session(slurm: Slurm) -> None:
    """Each process of the run gets the signal while squeue is called, and squeue still answers."""
    shell = (slurm.bin / "squeue").read_text()
    (slurm.bin / "squeue").write_text(shell + "kill -HUP $PPID $$; kill -TERM $PPID $$\n")
    slurm.says("squeue", line())
    result = slurm.start("status.py", "17")
    assert (result.returncode, result.stdout, result.stderr) == (0, "running\n", "")


def test_settings_of_squeue_have_no_effect(slurm: Slurm) -> None:
    (slurm.bin / "squeue").write_text('#!/bin/sh\nenv >"$(dirname "$0")/environment"\n')
    slurm.status(SQUEUE_PARTITION="gpu", SACCT_FORMAT="x", LOGNAME="somebody")
    seen = (slurm.bin / "environment").read_text()
    assert not re.search("SQUEUE_PARTITION|SACCT_FORMAT", seen)


# Submission.

SCRIPT = """#!/bin/sh
# properties = {properties}
cd /somewhere && python -m snakemake --snakefile {snakefile} --target-jobs train:name=a \
--cores all --attempt 1
"""


def script(slurm: Slurm, *, folder: str = "tmp.new", more: str = "", **changes: Any) -> Path:
    """Writes a jobscript as Snakemake does; `more` is added to the options of Snakemake."""
    properties = {
        "type": "single",
        "rule": "train",
        "wildcards": {"name": "a"},
        "threads": 2,
        "input": [],
        "output": ["out/a"],
        "params": {},
        "log": ["logs/a.log"],
        "resources": {"mem_mb": 500, "runtime": 7, "gpu": 0, "tmpdir": "/tmp"},
        "jobid": 1,
    } | changes
    path = slurm.folder / ".snakemake" / folder / "snakejob.train.1.sh"
    path.parent.mkdir(parents=True, exist_ok=True)
    snakefile = slurm.folder / "Snakefile"
    if not snakefile.exists():
        snakefile.write_text("rule all:\n")
    text = SCRIPT.format(properties=json.dumps(properties), snakefile=snakefile)
    path.write_text(f"{text.rstrip()} {more}\n")
    (path.parent / "watched").touch()  # prevents a watcher
    return path


def submitted(slurm: Slurm, path: Path) -> subprocess.CompletedProcess[str]:
    return slurm.run("submit.py", str(path))


def left_behind(slurm: Slurm, *, shown: str | None = None, **changes: Any) -> str:
    """Submits job 18 and leaves it behind; returns its comment (squeue shows `shown` if given)."""
    submitted(slurm, script(slurm, folder="tmp.old", **changes))
    call = slurm.calls("sbatch")[0]
    (name,) = re.findall(r"--job-name=(\S+)", call)
    comment = shown or comment_of(call)
    slurm.says("squeue", f"18|RUNNING|{int(time.time()) + 5}|{name}|None|{comment}")
    slurm.says("sbatch", "19")
    return comment_of(call)


def let_scancel_work(slurm: Slurm) -> None:
    """Makes the first scancel empty the queue."""
    (slurm.bin / "scancel").write_text(FAKE + f': >"{slurm.bin}/squeue.out"\n')


def comment_of(call: str) -> str:
    return next(word for word in call.split() if word.startswith("--comment=")).partition("=")[2]


def test_a_job_is_submitted_with_its_resources(slurm: Slurm) -> None:
    slurm.says("sbatch", "18;cluster")
    result = slurm.start("submit.py", str(script(slurm)))
    assert result.stdout == "18\n", result.stderr
    (call,) = slurm.calls("sbatch")
    assert {"--mem=500M", "--time=7", "--cpus-per-task=2"} <= {*call.split()}
    assert "--gres" not in call
    token = comment_of(call).split(":")[-1]
    assert f"echo $code {token}" in (slurm.bin / "script").read_text()
    assert json.loads((slurm.state / "18.json").read_text())["token"] == token


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"gpu": 2}, ["--gres=gpu:2"]),
        ({"gpu": 0, "gres": ""}, []),
        ({"gpu": 0, "gres": "lscratch:50"}, ["--gres=lscratch:50"]),
        ({"gpu": 1, "gres": "lscratch:50"}, ["--gres=gpu:1,lscratch:50"]),
        # a `gres` that names a GPU already requests it
        ({"gpu": 1, "gres": "lscratch:50,gpu:a100:1"}, ["--gres=lscratch:50,gpu:a100:1"]),
        ({"gpu": 1, "gpu_model": "a100"}, ["--gres=gpu:a100:1"]),
        ({"gpu": 0, "gpu_model": "a100"}, []),
        ({"slurm_partition": "main"}, ["--partition=main"]),
        # only jobs with a GPU go to the GPU partition
        (
            {"gpu": 1, "slurm_partition": "main", "gpu_partition": "cards"},
            ["--gres=gpu:1", "--partition=cards"],
        ),
        ({"gpu": 1, "gpu_partition": "cards"}, ["--gres=gpu:1", "--partition=cards"]),
        ({"gpu": 0, "slurm_partition": "main", "gpu_partition": "cards"}, ["--partition=main"]),
        ({"gpu": 0, "gpu_partition": "cards"}, []),
    ],
)
def test_devices_and_partitions_are_one_option_each(
    slurm: Slurm, resources: dict[str, Any], words: list[str]
) -> None:
    """sbatch uses the last of two --gres: with scratch in `default-resources`, a job got no GPU."""
    submitted(slurm, script(slurm, resources=resources))
    (call,) = slurm.calls("sbatch")
    assert [word for word in call.split() if word.startswith(("--gres", "--partition"))] == words


@pytest.mark.parametrize(("gpu", "limit"), [(0, "--cores 2 "), (1, "--cores 2 --resources gpu=1 ")])
def test_a_group_uses_its_requested_resources(slurm: Slurm, gpu: int, limit: str) -> None:
    """A single job uses its own threads; for a group, Snakemake would use all CPUs of a node."""
    asked = {"mem_mb": 500, "gpu": gpu}
    submitted(slurm, script(slurm, resources=asked))
    assert "--cores all --attempt" in (slurm.bin / "script").read_text()
    group = {"type": "group", "groupid": "small", "jobid": "fab0e4d6-754e"}
    path = script(slurm, resources=asked, **group)
    submitted(slurm, path)
    assert f"{limit}--attempt" in (slurm.bin / "script").read_text()
    assert "--job-name=dpprobe.small.fab0e4d6" in slurm.calls("sbatch")[-1]
    path.write_text(path.read_text().replace("--cores all ", ""))
    assert "has no --cores" in submitted(slurm, path).stderr


@pytest.mark.parametrize("many", [False, True])
def test_a_submitted_job_does_not_need_snakemake_s_temporary_folder(
    slurm: Slurm, many: bool
) -> None:
    """If Snakemake ends with an error, it removes the folder while jobs wait in the queue."""
    path = script(slurm)
    folder, names = str(path.parent), ["in/a", "in/b c"]
    waits = "--wait-for-files " + " ".join(map(repr, [folder, *names]))
    if many:
        listed = path.with_name(f"{path.name}.waitforfilesfile.txt")
        listed.write_text("\n".join([folder, *names, ""]))
        waits = f"--wait-for-files-file '{listed}'"
    submitted(slurm, script(slurm, more=f"{waits} --force"))
    sent = (slurm.bin / "script").read_text()
    assert folder not in sent
    if many:
        (copied,) = re.findall("--wait-for-files-file '(.*)' --force", sent)
        assert Path(copied).read_text().splitlines() == names
    else:
        assert "--wait-for-files 'in/a' 'in/b c' --force" in sent


@pytest.mark.parametrize("shown", [None, "(null)"])
def test_jobs_of_an_earlier_run_are_adopted(slurm: Slurm, shown: str | None) -> None:
    """Takes over an identical job; notes in .snakemake/slurm replace comments that a site drops."""
    comment = left_behind(slurm, shown=shown)
    result = submitted(slurm, script(slurm))
    assert "is taken over" in result.stderr
    assert result.stdout == "18\n"
    assert len(slurm.calls("sbatch")) == 1
    record = json.loads((slurm.state / "18.json").read_text())
    assert record["token"] == comment.split(":")[-1], "the job writes the token it was given"
    assert ":tmp.new:" in record["comment"], "it belongs to the new run"


def test_a_job_of_older_code_is_cancelled(slurm: Slurm) -> None:
    left_behind(slurm)
    let_scancel_work(slurm)
    (slurm.folder / "Snakefile").write_text("rule all: # mended\n")
    result = submitted(slurm, script(slurm))
    assert "cancelling what was left behind: 18" in result.stderr
    assert len(slurm.calls("sbatch")) == 2


def ask_for(names: str) -> dict[str, Any]:
    """Returns Snakemake's properties for the job of one file, or for a group of several."""
    kind = {"type": "group", "groupid": "small", "jobid": names} if len(names) > 1 else {}
    return {"output": [f"out/{name}" for name in names], "wildcards": {"name": names}, **kind}


FILE, OTHER = ["out/a"], {"log": ["other/logs/a.log"], "output": ["other/a"], "params": {"x": 1}}
GROUPS = [{"type": "group", "groupid": "small", "jobid": f"{name}0000000"} for name in "ab"]
# The jobs left behind, the jobs submitted now, and if the left-behind job is cancelled.
LEFT_BEHIND: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({}, {"params": {"x": 1}}, True),
    ({}, OTHER, False),
    (GROUPS[0], GROUPS[0] | OTHER, False),
    (ask_for("ab"), ask_for("bc"), True),
    (ask_for("ab"), ask_for("cd"), False),
    (ask_for("ab"), ask_for("b"), True),
    (ask_for("b"), ask_for("ab"), True),
    *(
        (GROUPS[0] | {"output": old}, GROUPS[1] | {"output": new}, True)
        for old, new in ((FILE, None), (None, FILE), (None, None))
    ),
]


@pytest.mark.parametrize(("left", "wanted", "cancelled"), LEFT_BEHIND)
def test_leftover_jobs_that_write_requested_files_are_cancelled(
    slurm: Slurm, left: dict[str, Any], wanted: dict[str, Any], cancelled: bool
) -> None:
    """The next run has other groups with other names; jobs of another study are not cancelled.

    Snakemake lists at most a hundred outputs: a larger group is recognised by its rules.
    """
    left_behind(slurm, **left)
    let_scancel_work(slurm)
    result = submitted(slurm, script(slurm, **wanted))
    assert result.stdout == "19\n"
    assert ("cancelling what was left behind: 18" in result.stderr) is cancelled
    assert slurm.calls("scancel") == (["scancel 18"] if cancelled else [])
    assert (slurm.state / "18.json").exists() is not cancelled


def test_a_job_of_a_snakemake_that_still_runs_is_not_cancelled(slurm: Slurm) -> None:
    left_behind(slurm)
    words = [sys.executable, "-c", "import time; time.sleep(60)", "snakemake"]
    with subprocess.Popen(words) as process:
        start = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        watched = slurm.folder / ".snakemake/tmp.old/watched"
        watched.write_text(f"{process.pid} {start} {boot}")
        result = submitted(slurm, script(slurm, params={"x": 1}))
        assert result.returncode == 1
        assert "another Snakemake" in result.stderr
        assert not slurm.calls("scancel")
        # a later process has the same process id
        let_scancel_work(slurm)
        watched.write_text(f"{process.pid} 1 {boot}")
        submitted(slurm, script(slurm, params={"x": 1}))
        process.kill()
    assert slurm.calls("scancel") == ["scancel 18"]


# The state of the first job, its exit code, what happened to its files, and if it is taken over.
FIRST_JOBS = [
    ("RUNNING", None, "", True),
    ("RUNNING", None, "younger input", False),
    ("RUNNING", None, "no input", False),
    ("PENDING", None, "", True),
    ("PENDING", None, "no folder", True),
    ("COMPLETED", 0, "", True),
    ("COMPLETING", 0, "", True),
    ("COMPLETED", None, "", False),
    ("FAILED", 1, "", False),
    ("forgotten", 0, "", True),
    ("forgotten", 0, "younger input", False),
    ("forgotten", None, "", False),
    *(
        ("COMPLETED", 0, what, False)
        for what in ("no output", "reported", "younger output", "younger input")
    ),
]


@pytest.mark.parametrize(("state", "code", "what", "taken"), FIRST_JOBS)
def test_only_equal_running_jobs_are_adopted(
    slurm: Slurm, state: str, code: int | None, what: str, taken: bool
) -> None:
    for name in ("in", "out/a"):
        (slurm.folder / name).parent.mkdir(exist_ok=True)
        (slurm.folder / name).touch()
        os.utime(slurm.folder / name, (0, 0))
    submitted(slurm, script(slurm, folder="tmp.old", input=["in"]))
    comment = comment_of(slurm.calls("sbatch")[0])
    if state != "forgotten":
        slurm.says("squeue", f"18|{state}|{int(time.time())}|dpprobe.train.a|None|{comment}")
    let_scancel_work(slurm)
    if code is not None:
        slurm.exits(code, comment.split(":")[-1], "18")
    if what.startswith("younger"):
        later = time.time() + 60
        path = slurm.folder / {"younger input": "in", "younger output": "out/a"}[what]
        os.utime(path, (later, later))
    elif what == "reported":
        assert slurm.status("18")[0] == "success\n"
    elif what:
        gone = {"no folder": ".snakemake/tmp.old", "no input": "in", "no output": "out"}[what]
        path = slurm.folder / gone
        path.rename(path.with_name("gone"))
    slurm.says("sbatch", "19")
    result = submitted(slurm, script(slurm, input=["in"]))
    assert result.stdout == ("18\n" if taken else "19\n"), result.stderr
    assert ("is taken over" in result.stderr) == taken


@pytest.mark.parametrize("remembered", [True, False])
def test_a_job_with_replaced_outputs_is_not_adopted(slurm: Slurm, remembered: bool) -> None:
    """The end of job 18 was never reported; then the study was changed, and changed back."""
    (slurm.folder / "out").mkdir()
    (slurm.folder / "out/a").touch()
    lines = []
    for job, value in (("18", 1), ("19", 2), ("20", 1)):
        slurm.says("sbatch", job)
        result = submitted(slurm, script(slurm, folder=f"tmp.{job}", params={"x": value}))
        assert result.stdout == f"{job}\n", result.stderr
        comment = comment_of(slurm.calls("sbatch")[-1])
        slurm.exits(0, comment.split(":")[-1], job)
        lines.append(f"{job}|COMPLETED|{int(time.time())}|dpprobe.train.a|None|{comment}")
        if remembered:
            slurm.says("squeue", *lines)


def test_options_that_do_not_change_a_result_do_not_matter(slurm: Slurm) -> None:
    left_behind(slurm)
    let_scancel_work(slurm)
    text = (again := script(slurm)).read_text()
    text = text.replace("--attempt 1", "--attempt 2 --latency-wait 5 -p --verbose")
    again.write_text(text)
    assert "is taken over" in submitted(slurm, again).stderr
    again.write_text(text.replace("train:name=a", "train:name=b"))
    other = submitted(slurm, again)
    assert "is taken over" not in other.stderr
    assert "cancelling what was left behind: 18" in other.stderr


@pytest.mark.parametrize(
    ("place", "taken"), [(".snakemake/dpprobe/{}.json", True), ("{}.yaml", False)]
)
def test_a_study_counts_by_its_parameters_and_its_file_only_if_a_person_wrote_it(
    slurm: Slurm, place: str, taken: bool
) -> None:
    """Adding an epsilon changes the study's snapshot, but none of its other jobs."""
    left_behind(slurm, more=f"--configfiles /a/{place.format('first')}")
    let_scancel_work(slurm)
    again = script(slurm, more=f"--configfiles /a/{place.format('second')}")
    assert ("is taken over" in submitted(slurm, again).stderr) == taken


SHORT_PAUSES = "import submit; submit.PAUSE = 1; submit.main()"


@pytest.mark.parametrize(
    ("command", "error", "why"),
    [
        ("sbatch", "Unable to contact slurm controller (connect failure)", b"slurmctld is away"),
        ("sbatch", "AssocMaxSubmitJobLimit\nJob violates policy", b"takes no more jobs: AssocMax"),
        ("sbatch", "slurm controller in standby mode", b"slurmctld is away"),
        ("squeue", "Invalid user id", b"squeue fails"),
    ],
)
def test_a_submission_waits_for_what_passes(
    slurm: Slurm, command: str, error: str, why: bytes
) -> None:
    slurm.refuses(command, f"{command}: error: {error}")
    path = script(slurm)
    with subprocess.Popen(
        [sys.executable, "-c", SHORT_PAUSES, path],
        cwd=slurm.folder,
        env=slurm.environment(PYTHONPATH=str(PROFILE)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr
        note = process.stderr.readline()
        assert b"waiting" in note
        assert why in note
        slurm.says("squeue")
        slurm.says("sbatch", "18")
        output, notes = process.communicate(timeout=60)
    assert output == b"18\n", notes


SHORT_OUTAGE = f"import submit; submit.OUTAGE = 0; {SHORT_PAUSES}"
THIRD_TIME = FAKE.replace(
    "if test", 'test $(grep -c ^sbatch "$here/calls") -lt 3 || { echo 18; exit; }\nif test'
)


@pytest.mark.parametrize(
    ("error", "tries", "output"),
    [
        ("Batch job submission failed: Job violates policy (QOSMaxSubmitJobPerUserLimit)", 3, "18"),
        ("Unable to contact slurm controller (connect failure)", 1, ""),
    ],
)
def test_a_full_queue_is_waited_for_longer_than_an_outage(
    slurm: Slurm, error: str, tries: int, output: str
) -> None:
    (slurm.bin / "sbatch").write_text(THIRD_TIME)
    slurm.refuses("sbatch", f"sbatch: error: {error}")
    path = script(slurm)
    result = slurm.call(sys.executable, "-c", SHORT_OUTAGE, path, PYTHONPATH=str(PROFILE))
    assert result.stdout.strip() == output, result.stderr
    assert len(slurm.calls("sbatch")) == tries
    assert ("was not submitted" in result.stderr) == (not output)


@pytest.mark.parametrize(
    ("disk", "cause"), [("size=4k", "No space left on device"), ("ro", "Read-only file system")]
)
def test_every_submission_is_recorded_first(slurm: Slurm, disk: str, cause: str) -> None:
    space = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*space, "true"], check=False, capture_output=True).returncode:
        pytest.skip("the system gives no mount of one's own")
    path = script(slurm)
    full = f"mount -t tmpfs -o {disk} none {slurm.state}; head -c 9999 /dev/zero >{slurm.state}/x"
    submit = PROFILE / "submit.py"
    result = slurm.call(*space, "sh", "-c", f'{full}; exec "$@"', "sh", submit, path)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    line = result.stderr.splitlines()[-1]
    assert line.startswith("slurm: dpprobe.train.a was not submitted: .snakemake/slurm/room.")
    assert f": cannot be written ({cause}); make room, or have the disk mounted" in line
    assert slurm.calls("sbatch") == []


def test_a_job_that_could_not_be_noted_down_is_named_and_taken_over(slurm: Slurm) -> None:
    (slurm.state / "18.json").mkdir()
    path = script(slurm)
    result = submitted(slurm, path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        "slurm: job 18 (dpprobe.train.a) was submitted, and the next try takes it over: "
        ".snakemake/slurm/18.json: cannot be written (Is a directory); make room, or have the disk "
        "mounted for writing, and run again\n"
    )
    assert {each.name for each in slurm.state.iterdir()} == {"17.json", "18.json"}
    (slurm.state / "18.json").rmdir()
    comment = comment_of(slurm.calls("sbatch")[0])
    slurm.says("squeue", f"18|PENDING|{int(time.time()) + 5}|dpprobe.train.a|None|{comment}")
    again = submitted(slurm, path)
    assert again.stdout == "18\n", again.stderr
    assert len(slurm.calls("sbatch")) == 1


def test_a_refusal_is_reported_immediately(slurm: Slurm) -> None:
    slurm.refuses("sbatch", "sbatch: error: invalid partition specified: nowhere")
    result = submitted(slurm, script(slurm))
    assert result.returncode == 1
    assert "dpprobe.train.a was not submitted: sbatch: error: invalid partition" in result.stderr
    # at its end a run reads each failed job's cause from the log
    log = (slurm.folder / "logs/a.log").read_text()
    assert last_error(log) == "not submitted: sbatch: error: invalid partition specified: nowhere"


@pytest.mark.parametrize(
    ("partition", "nodes", "most"),
    [
        ("", ("main*|2", "main*|1+", "large|64"), 2),
        ("large,main", ("main*|2", "large|3", "other|64"), 3),
        ("large", ("main*|2", "large|64"), None),  # refused for another reason
        ("", ("sinfo: error",), None),
    ],
)
def test_a_job_asks_for_no_more_cpus_than_its_partition_has(
    slurm: Slurm, partition: str, nodes: tuple[str, ...], most: int | None
) -> None:
    """The profile requests 4 CPUs for each job that decodes images."""
    (slurm.bin / "sinfo").write_text(FAKE)
    (slurm.bin / "sinfo").chmod(0o755)
    slurm.says("sinfo", *nodes)
    refusal = 'case "$*" in *--cpus-per-task=4*) echo "CPU count per node" >&2; exit 1;; esac\n'
    (slurm.bin / "sbatch").write_text(FAKE.replace("\n", f"\n{refusal}", 1))
    resources = {"mem_mb": 500, "runtime": 7, "slurm_partition": partition}
    result = submitted(slurm, script(slurm, threads=4, resources=resources))
    if most is None:
        assert "not submitted" in result.stderr
        assert "`train: 2` under set-threads" in (slurm.folder / "logs/a.log").read_text()
        return
    assert result.returncode == 0, result.stderr
    assert f"{most} CPUs, as no node has 4" in result.stderr


def test_a_job_larger_than_every_node_is_refused_once_with_the_remedy(slurm: Slurm) -> None:
    """The profile requests 4 CPUs on a node that has 2, so no retry can help."""
    slurm.refuses(
        "sbatch",
        "sbatch: error: CPU count per node can not be satisfied\n"
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
    )
    result = submitted(slurm, script(slurm, threads=4))
    assert result.returncode == 1
    log = (slurm.folder / "logs/a.log").read_text()
    assert is_lasting(log), "the same job is submitted again"
    error = last_error(log) or ""
    assert "4 CPUs" in error
    assert "`train: 2` under set-threads" in error, "no remedy"


# The watcher.


def until_it_watches(watcher: subprocess.Popen[bytes]) -> None:
    """Waits until the watcher has set up its signals, which it does first."""
    status = Path(f"/proc/{watcher.pid}/status")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert watcher.poll() is None
        masks = dict(re.findall(r"(\w+):\t(\w+)", status.read_text()))
        ignored, blocked = int(masks["SigIgn"], 16), int(masks["SigBlk"], 16)
        if ignored & 1 << signal.SIGTERM - 1 and not blocked & 1 << signal.SIGINT - 1:
            return
        time.sleep(0.05)
    raise AssertionError("the watcher does not watch")


@pytest.mark.parametrize("ending", ["orderly", "killed", "interrupted twice"])
def test_the_watcher_cancels_what_is_left_unless_snakemake_was_killed(
    slurm: Slurm, ending: str
) -> None:
    mine = line().replace("tmp.x", "tmp.run")
    slurm.says("squeue", mine, line(job="18"))
    let_scancel_work(slurm)
    folder = slurm.folder / ".snakemake/tmp.run"
    folder.mkdir()
    for name, age in {"5.json": 1e7, "5.exit": 1e7, ".6.json.99": 1e7, "7.exit": -1e4}.items():
        (slurm.state / name).touch()
        os.utime(slurm.state / name, (time.time() - age,) * 2)
    with subprocess.Popen(["sleep", "100"]) as snakemake:
        words = [sys.executable, str(PROFILE / "watch.py"), str(snakemake.pid), "tmp.run"]
        # as in submit.py: signals are blocked until the watcher has set up their handling
        signals = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        watcher = subprocess.Popen(
            words,
            cwd=slurm.folder,
            env=slurm.environment(),
            # as in a terminal; tests in a script's background would ignore SIGINT
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        until_it_watches(watcher)
        if ending == "interrupted twice":
            watcher.send_signal(signal.SIGINT)
        if ending == "orderly":
            folder.rmdir()
        snakemake.kill()
    assert watcher.wait(timeout=60) == 0
    assert slurm.calls("scancel") == ([] if ending == "killed" else ["scancel 17"])
    assert {path.name for path in slurm.state.iterdir()} == {"7.exit", "17.json"}, "old notes go"


# A setting in the profile's comments, or an entry of a setting.
SETTING = re.compile(
    r"(?m)^( *)# ((?:  )+[\w-]+:.*|[a-z]+[-_][a-z-]+:.*|(?:qos|tmpdir|groups|resources):.*)$"
)


@pytest.mark.parametrize(
    ("shards", "groups"), [(False, {"prices", "manifests", "plots"}), (True, {"extraction"})]
)
def test_commented_blocks_of_the_profile_work(slurm: Slurm, shards: bool, groups: set[str]) -> None:
    """Removes each comment sign and the space after it, for one of the two blocks of groups."""
    written = (PROFILE / "config.yaml").read_text()
    text, block = written.split("# This group extracts four short shards")
    if shards:
        text = text.split("# groups:")[0] + SETTING.sub(r"\1\2", f"# {block}")
    else:
        text = SETTING.sub(r"\1\2", text) + f"# {block}"
    changed = slurm.folder / "changed"
    shutil.copytree(PROFILE, changed)
    (changed / "config.yaml").write_text(text)
    root = PROFILE.parents[1]
    words = ["--profile", str(changed), "--snakefile", str(root / "Snakefile")]
    words += ["--configfile", str(root / "config.yaml"), "--quiet", "host", "--dry-run"]
    result = slurm.call(sys.executable, "-m", "snakemake", *words)
    assert result.returncode == 0, result.stdout + result.stderr
    assert set(re.findall(r"Group job (\w+)", result.stdout)) == groups


def test_the_profiles_commands_find_a_python_in_any_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv(USER_PATH, "/somewhere")  # monkeypatch restores it after the test
    put_python_on_path()
    assert Path(shutil.which("python3") or "").parent == Path(sys.executable).parent
