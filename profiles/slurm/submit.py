#!/usr/bin/env python3
"""Submits one of Snakemake's jobs with sbatch and prints its id.

    submit.py JOBSCRIPT

What the job needs is in the second line of the jobscript. A job of the same work that an earlier,
killed Snakemake left behind is taken over when it does exactly what is wanted, and cancelled when
it does not: two jobs never write the same files. While slurmctld is away this waits.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scheduler

LOGS = Path("logs/slurm")
NAME_LENGTH = 128
OUTAGE = 3600  # seconds that a submission waits for slurmctld
PAUSE = 5  # seconds between two tries
GONE = 120  # seconds for a cancelled job to end
TRANSIENT = re.compile(
    "contact slurm controller|timed out|connection (refused|reset|failure)|zero bytes|"
    "no answer in|communication|temporarily|please retry|resource busy",
    re.IGNORECASE,
)
# Options of a job's command that differ from run to run.
PASSING = ("attempt", "runtime-source-cache-path", "wait-for-files", "wait-for-files-file")
# How resources of Snakemake become options of sbatch.
OPTIONS = {
    "mem_mb": "--mem={}M",
    "runtime": "--time={}",
    "gpu": "--gres=gpu:{}",
    "gres": "--gres={}",
    "constraint": "--constraint={}",
    "slurm_partition": "--partition={}",
    "slurm_account": "--account={}",
    "qos": "--qos={}",
}


@dataclass(frozen=True)
class Job:
    """What is submitted: Snakemake's properties and jobscript, and what Slurm calls it."""

    properties: dict[str, Any]
    script: str
    name: str
    log: str
    comment: scheduler.Comment


class Stopped(Exception):
    """The controller is gone, or told to stop."""


def properties(script: str) -> dict[str, Any]:
    """What Snakemake says of a job."""
    match = re.search(r"^# properties = (.*)$", script, re.MULTILINE)
    if match is None:
        sys.exit("submit.py: the jobscript has no line of properties; it must come from Snakemake")
    return dict(json.loads(match.group(1)))


def label(job: dict[str, Any]) -> tuple[str, str]:
    """The rule (or group) of a job, and its wildcards, as parts of names."""
    if job["type"] == "group":
        return str(job["groupid"]), str(job["jobid"])[:8]
    wildcards = ".".join(str(value) for value in job["wildcards"].values())
    return str(job["rule"]), re.sub(r"[^\w.+=-]+", "_", wildcards)[:NAME_LENGTH]


def identity(job: dict[str, Any], script: str) -> tuple[str, str]:
    """What a job makes, and from what; resources may differ between two tries of the same."""
    made = [str(Path.cwd()), job.get("rule"), job.get("wildcards"), job.get("groupid")]
    if job["type"] == "group":
        made.append(job["jobid"])
    described = {key: job.get(key) for key in ("input", "output", "params", "log", "threads")}
    return digest(made), digest([described, command(script)])


def command(script: str) -> list[list[str]]:
    """What a jobscript runs, without what differs from run to run; values come in any order."""
    words = " ".join(shlex.split(script.split("\n", 2)[2]))
    parts = (part.split() for part in words.split(" --"))
    return sorted([part[0], *sorted(part[1:])] for part in parts if part[0] not in PASSING)


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def options(job: dict[str, Any]) -> list[str]:
    """The options of sbatch that a job's threads and resources ask for; 0 and "" ask for none."""
    resources = job["resources"]
    asked = [
        option.format(resources[name]) for name, option in OPTIONS.items() if resources.get(name)
    ]
    extra = shlex.split(str(resources.get("slurm_extra", "")))
    return [f"--cpus-per-task={job['threads']}", *asked, *extra]


def wrapped(script: str) -> str:
    """The jobscript, and after it the exit code in a file of its own."""
    path = shlex.quote(f"{Path.cwd()}/{scheduler.STATE}") + "/$SLURM_JOB_ID.exit"
    return (
        "#!/bin/sh\n"
        f"rm -f {path}\n(\n{script}\n)\ncode=$?\n"
        f"echo $code >{path}.part && mv {path}.part {path}\nexit $code\n"
    )


def unchanged(job: dict[str, Any], since: float) -> bool:
    """Whether nothing that a job reads was written after it was submitted, in whole seconds."""
    if job["input"] is None:  # too many for Snakemake to list
        return False
    try:
        return all(Path(path).stat().st_mtime < since + 1 for path in job["input"])
    except FileNotFoundError:
        return False


def usable(left: scheduler.Queued, job: dict[str, Any], version: str) -> bool:
    """Whether an earlier job may stand for the one to be submitted."""
    comment = left.comment
    if comment is None or comment.version != version or job["type"] != "single":
        return False
    if not unchanged(job, left.submitted):
        return False
    ended = scheduler.exit_file(left.job).exists()
    if left.state in ("PENDING", "RUNNING", "CONFIGURING", "SUSPENDED"):
        # one that waits also needs the folder of the controller that submitted it
        return not ended and Path(".snakemake", comment.folder).is_dir()
    # it ended well while nobody looked: status.py forgets what it has reported
    return left.state == scheduler.SUCCESS and ended and present(job["output"])


def present(paths: list[str] | None) -> bool:
    return paths is not None and all(Path(path).exists() for path in paths)


def submit(job: Job) -> str:
    """One try: the id of a job that was taken over, or of a new one.

    Raises:
        scheduler.SlurmError: slurmctld did not answer, or refused.
    """
    listed = scheduler.queue(f"--name={job.name}")
    same = [each for each in listed if each.comment and each.comment.work == job.comment.work]
    for left in same:
        if usable(left, job.properties, job.comment.version):
            print(f"slurm: job {left.job} ({job.name}) is taken over", file=sys.stderr)
            if left.state in scheduler.ALIVE:
                scheduler.run("scontrol", "update", f"JobId={left.job}", f"Comment={job.comment}")
            return left.job
    alive = [left.job for left in same if left.state in scheduler.ALIVE]
    if alive:
        discard(alive, job.name)
    words = ["sbatch", "--parsable", f"--job-name={job.name}", f"--comment={job.comment}"]
    words += [f"--output={job.log}", "--open-mode=append", *options(job.properties)]
    return scheduler.run(*words, text=wrapped(job.script)).strip().split(";")[0]


def discard(jobs: list[str], name: str) -> None:
    """Cancels jobs and waits until their processes are gone."""
    print(f"slurm: {name}: cancelling what was left behind: {' '.join(jobs)}", file=sys.stderr)
    scheduler.run("scancel", *jobs)
    deadline = time.monotonic() + GONE
    chosen = f"--jobs={','.join(jobs)}"
    while any(each.state in scheduler.ALIVE for each in scheduler.queue(chosen)):
        if time.monotonic() > deadline:
            raise scheduler.SlurmError(f"job {' '.join(jobs)} does not end; cancel it by hand")
        time.sleep(0.5)


def controller() -> int:
    """The process of Snakemake, which may have started this through a shell."""
    parent = os.getppid()
    if Path(f"/proc/{parent}/comm").read_text().strip() in ("sh", "dash", "bash"):
        return int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
    return parent


def watch(folder: str) -> None:
    """Starts the run's watcher, once."""
    try:
        Path(".snakemake", folder, "watched").touch(exist_ok=False)
    except FileExistsError:
        return
    subprocess.Popen(
        [Path(__file__).with_name("watch.py"), str(controller()), folder],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def persist(job: Job) -> str:
    """Tries until slurmctld answers.

    Raises:
        Stopped: The controller went away in the meantime.
        scheduler.SlurmError: slurmctld refuses, or stays away.
    """
    deadline = time.monotonic() + OUTAGE
    parent = os.getppid()
    while True:
        try:
            return submit(job)
        except scheduler.SlurmError as error:
            if not TRANSIENT.search(str(error)) or time.monotonic() > deadline:
                raise
            print(f"slurm: {job.name}: waiting: {last_line(error)}", file=sys.stderr)
        for _ in range(PAUSE):
            time.sleep(1)
            if interrupted or os.getppid() != parent:
                raise Stopped


def last_line(error: Exception) -> str:
    return str(error).splitlines()[-1]


interrupted: list[int] = []


def described(path: Path) -> Job:
    """The job of a jobscript."""
    script = path.read_text()
    read = properties(script)
    rule, wildcards = label(read)
    work, version = identity(read, script)
    folder = path.resolve().parent.name
    return Job(
        properties=read,
        script=script,
        name=".".join(filter(None, (scheduler.MARK, rule, wildcards))),
        log=f"{LOGS / rule / wildcards}/%j.log",
        comment=scheduler.Comment(work=work, version=version, folder=folder),
    )


def main() -> None:
    # Ctrl-C reaches every process: a submission is brought to its end, so that its id is not lost.
    signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    job = described(Path(sys.argv[1]))
    Path(job.log).parent.mkdir(parents=True, exist_ok=True)
    scheduler.STATE.mkdir(parents=True, exist_ok=True)
    watch(job.comment.folder)
    try:
        identifier = persist(job)
    except scheduler.SlurmError as error:
        sys.exit(f"slurm: {job.name} was not submitted: {error}")
    except Stopped:
        sys.exit(f"slurm: {job.name} was not submitted: stopped")
    record = {"name": job.name, "log": job.log.replace("%j", identifier)}
    record |= {name: job.properties["resources"].get(name) for name in ("mem_mb", "runtime")}
    scheduler.write(scheduler.record_file(identifier), json.dumps(record))
    print(identifier)


if __name__ == "__main__":
    main()
