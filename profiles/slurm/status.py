#!/usr/bin/env python3
"""Prints running, success or failed for one job, and never fails itself.

    status.py JOB

Asked in this order, the first that knows decides: the exit code that the job itself wrote; one
squeue for all jobs, kept for a few seconds; sacct, where there is an accounting database. So it
needs neither a database nor a long MinJobAge. While slurmctld is away a job counts as running. A
job that nobody knows for a minute has failed. Why a job failed, and where its log is, goes to
standard error.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import scheduler

FRESH = 4  # seconds for which one answer of squeue serves
NOTE = 60  # seconds between two notes about an outage
MISSED = 60  # seconds after which a job that nobody knows has failed
LOG_TAIL = 10_000  # bytes
MEMORY = re.compile(rb"slurmstepd.*(exceeded.* memory limit|oom.kill)", re.IGNORECASE)
LISTING = scheduler.STATE / "queue"
OUTAGE = scheduler.STATE / "outage"


def listed() -> dict[str, str]:
    """The state of each job, from the last answer of squeue when that is fresh.

    Raises:
        scheduler.SlurmError: slurmctld does not answer.
    """
    if scheduler.age(LISTING) < FRESH:
        return dict(line.split() for line in LISTING.read_text().splitlines())
    if scheduler.age(OUTAGE) < FRESH:
        raise scheduler.SlurmError("slurmctld did not answer a moment ago")
    states = {each.job: each.state for each in scheduler.queue()}
    scheduler.write(LISTING, "".join(f"{job} {state}\n" for job, state in states.items()))
    OUTAGE.unlink(missing_ok=True)
    return states


def accounted(job: str) -> str | None:
    """What the accounting database says; None without one, or while it does not know yet."""
    try:
        lines = scheduler.run(
            "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State"
        ).split("\n")
    except scheduler.SlurmError:
        return None
    return lines[0].split(" ")[0] or None  # "CANCELLED by 1000"


def exit_code(job: str) -> int | None:
    try:
        return int(scheduler.exit_file(job).read_text())
    except (FileNotFoundError, ValueError):
        return None


def state(job: str) -> str:
    """A job's state as Slurm calls it.

    Raises:
        scheduler.SlurmError: slurmctld does not answer.
    """
    if exit_code(job) == 0:
        return scheduler.SUCCESS
    known = listed().get(job)
    if known is None and scheduler.age(LISTING) > 0.5:
        LISTING.unlink(missing_ok=True)  # the job may be younger than the answer
        known = listed().get(job)
    known = known or accounted(job)
    missed = scheduler.STATE / f"{job}.missed"
    if known is not None:
        missed.unlink(missing_ok=True)
        # what ends a job is known a moment after its exit code
        return known if known not in scheduler.ALIVE or exit_code(job) is None else "COMPLETING"
    if exit_code(job) is not None:
        return "FAILED"
    if not missed.exists():
        scheduler.write(missed, "")
    return "LOST" if scheduler.age(missed) > MISSED else "COMPLETING"


def explain(job: str, state: str) -> str:
    """One line on a failed job: why, and where to read on."""
    try:
        record = json.loads(scheduler.record_file(job).read_text())
    except (FileNotFoundError, ValueError):
        record = {}
    code = exit_code(job)
    memory = f"it needed more than its {record.get('mem_mb')} MB"
    reasons = {
        "OUT_OF_MEMORY": memory,
        "TIMEOUT": f"it needed more than its {record.get('runtime')} minutes",
        "CANCELLED": "somebody, or a limit of the cluster, cancelled it",
        "NODE_FAIL": "its node went down",
        "PREEMPTED": "a job of higher priority took its place",
        "LOST": "neither slurmctld nor an accounting database knows it any more",
    }
    why = reasons.get(state, f"exit code {code}" if code is not None else "no exit code")
    if state == "FAILED" and over_memory(record.get("log")):
        why = memory
    return f"slurm: job {job} ({record.get('name')}): {state}, {why}; log: {record.get('log')}"


def over_memory(log: str | None) -> bool:
    """Whether Slurm killed a job for its memory; without cgroups only its log says so."""
    try:
        with Path(str(log)).open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - LOG_TAIL))
            return MEMORY.search(stream.read()) is not None
    except FileNotFoundError:
        return False


def forget(job: str) -> None:
    for path in scheduler.STATE.glob(f"{job}.*"):
        path.unlink(missing_ok=True)


def outage(error: scheduler.SlurmError) -> None:
    """Says now and then that slurmctld is away, and keeps the next calls from asking again."""
    if scheduler.age(OUTAGE) < FRESH:
        return
    noted = OUTAGE.with_suffix(".noted")
    if scheduler.age(noted) > NOTE:
        scheduler.write(noted, "")
        print(f"slurm: no answer, waiting: {str(error).splitlines()[-1]}", file=sys.stderr)
    scheduler.write(OUTAGE, "")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for Snakemake
    job = sys.argv[1]
    try:
        current = state(job)
    except scheduler.SlurmError as error:
        outage(error)
        print("running")
        return
    if current in scheduler.ALIVE:
        print("running")
        return
    if current != scheduler.SUCCESS:
        print(explain(job, current), file=sys.stderr)
    forget(job)
    print("success" if current == scheduler.SUCCESS else "failed")


if __name__ == "__main__":
    main()
