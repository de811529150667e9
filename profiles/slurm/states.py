"""Determines a job's state for Snakemake: running, success or failed.

The first source that knows the job decides:

- the exit code that the job itself wrote
- one squeue for all jobs, cached for a few seconds
- sacct, if there is an accounting database

Neither a database nor a long MinJobAge is needed. While slurmctld is unreachable, a job counts as
running. A job that no source knows for a minute has failed. A job that Slurm can never start counts
as failed and is cancelled, so that it does not run beside the next attempt. The cause of a failure
and the path of the log go to standard error.
"""

from __future__ import annotations

import contextlib
import re
import signal
import sys
from pathlib import Path
from typing import Any

import scheduler
from answer import FRESH, QUEUE

NOTE = 60  # seconds between two notes about an outage
MISSED = 60  # seconds after which a job that no source knows has failed
REFUSED = 600  # seconds after which an error that does not pass by itself ends the wait
LOG_TAIL = 10_000  # bytes at the end of a job's log that are searched
MEMORY = re.compile(rb"slurmstepd.*(exceeded.* memory limit|oom.kill)", re.IGNORECASE)
LISTING = Path(QUEUE)
OUTAGE = scheduler.STATE / "outage"
REFUSAL = scheduler.STATE / "refused"


def listed() -> dict[str, tuple[str, str]]:
    """Lists each job's state, and an unusual reason to wait, from a fresh answer of squeue.

    Raises:
        scheduler.SlurmError: slurmctld does not answer.
    """
    if scheduler.age(LISTING) < FRESH:
        lines = [line.split() for line in LISTING.read_text().splitlines() if line]
        return {job: (state, reason) for job, state, reason in lines}
    if scheduler.age(OUTAGE) < FRESH:
        raise scheduler.SlurmError("no answer in the last seconds")
    states = {each.job: (each.state, telling(each)) for each in scheduler.queue()}
    lines = [f"{job} {state} {reason}" for job, (state, reason) in states.items()]
    with contextlib.suppress(OSError):  # the disk may be full
        scheduler.write(LISTING, "\n".join(["", *lines, ""]))
    for path in (OUTAGE, REFUSAL):
        path.unlink(missing_ok=True)
    return states


def telling(job: scheduler.Queued) -> str:
    """Returns why a job waits, if the reason is unusual; else "-"."""
    if job.state in scheduler.HELD:
        return job.state
    tells = job.state == scheduler.IMPOSSIBLE or job.reason in scheduler.HELD
    return job.reason if tells else "-"


def accounted(job: str) -> str | None:
    """Asks the accounting database how a job ended.

    Returns None without a database, and before the job's end. In the database, a job that slurmctld
    has lost counts as running until an administrator corrects the entry.
    """
    try:
        lines = scheduler.run(
            "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State"
        ).split("\n")
    except scheduler.SlurmError:
        return None
    state = lines[0].split(" ")[0]  # a line may be "CANCELLED by 1000"
    return state if state and state not in scheduler.ALIVE else None


def exit_code(job: str) -> int | None:
    """Returns the exit code that a job wrote; None before the job ends."""
    return scheduler.exit_code(job, scheduler.read_record(job).get("token"))


def state(job: str) -> tuple[str, str]:
    """Returns a job's state in Slurm's words, and the reason to wait, if unusual.

    Raises:
        scheduler.SlurmError: slurmctld does not answer.
    """
    if exit_code(job) == 0:
        return scheduler.SUCCESS, "-"
    queued = listed().get(job)
    if queued is None and scheduler.age(LISTING) > 0.5:
        LISTING.unlink(missing_ok=True)  # the job may be younger than squeue's answer
        queued = listed().get(job)
    known, reason = queued or (accounted(job), "-")
    if known is None:
        return unknown(job), "-"
    (scheduler.STATE / f"{job}.missed").unlink(missing_ok=True)
    if known in scheduler.ALIVE and exit_code(job) is not None:
        # Slurm knows how a job ended soon after the exit code is written, unless the node hangs
        ended = scheduler.age(scheduler.exit_file(job)) > MISSED
        return ("FAILED" if ended else "COMPLETING"), "-"
    return known, reason


def unknown(job: str) -> str:
    """Returns the state of a job that neither slurmctld nor a database knows."""
    if exit_code(job) is not None:
        return "FAILED"
    missed = scheduler.STATE / f"{job}.missed"
    if not missed.exists():
        scheduler.write(missed, "")
    return "LOST" if scheduler.age(missed) > MISSED else "COMPLETING"


def explain(job: str, state: str, reason: str) -> str:
    """Returns a line about a failed job, with the cause and the log."""
    record = scheduler.read_record(job)
    code = exit_code(job)
    memory = f"it needed more than its {record.get('mem_mb')} MB{raise_limit(record, 'mem_mb')}"
    reasons = {
        "OUT_OF_MEMORY": memory,
        "TIMEOUT": f"it needed more than its {record.get('runtime')} minutes"
        f"{raise_limit(record, 'runtime')}",
        "CANCELLED": "somebody, or a limit of the cluster, cancelled it",
        "NODE_FAIL": "its node went down",
        scheduler.LAUNCH_FAILED: "its node could not start it",
        scheduler.IMPOSSIBLE: f"it would wait for ever: {reason}",
        "PREEMPTED": "a job of higher priority took its place",
        "LOST": "neither slurmctld nor an accounting database knows it any more"
        if reason == "-"
        else reason,
    }
    why = reasons.get(state, f"exit code {code}" if code is not None else "no exit code")
    if state == "FAILED" and over_memory(record.get("log")):
        why = memory
    log = record.get("log")
    place = f"; log: {log}" if log and Path(log).is_file() else ""  # a job may never have started
    return f"slurm: job {job} ({record.get('name')}): {state}, {why}{place}"


def raise_limit(record: dict[str, Any], name: str) -> str:
    """Returns the words that tell how to raise a job's limit, which also grows at each retry."""
    rule, asked = str(record.get("name")).split(".")[1:2], record.get(name)
    if not rule or not isinstance(asked, int | float):
        return ""
    return (
        f" ({name}); a retry asks for more; to raise it write `{rule[0]}: {{{name}: "
        f"{2 * asked:g} * attempt}}` under set-resources of the profile"
    )


def over_memory(log: str | None) -> bool:
    """Returns True if Slurm killed a job for its memory; without cgroups only the log says so."""
    try:
        with Path(str(log)).open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - LOG_TAIL))
            return MEMORY.search(stream.read()) is not None
    except FileNotFoundError:
        return False


def forget(job: str) -> None:
    """Removes the notes on a job; keeps its exit code, with which a restarted job ends at once."""
    for path in scheduler.STATE.glob(f"{job}.*"):
        if path != scheduler.exit_file(job):
            path.unlink(missing_ok=True)


def outage(error: scheduler.SlurmError) -> None:
    """Logs at times that slurmctld is unreachable, and keeps the next calls from asking again."""
    if scheduler.age(OUTAGE) < FRESH:
        return
    note("outage", f"no answer, waiting: {error.last_line}")
    scheduler.write(OUTAGE, "")


def note(name: str, text: str, every: float = NOTE) -> None:
    """Logs a text, at most once in `every` seconds."""
    noted = scheduler.STATE / f"{name}.noted"
    if scheduler.age(noted) >= every:
        scheduler.write(noted, "")
        print(f"slurm: {text}", file=sys.stderr)


def refused(error: scheduler.SlurmError) -> bool:
    """Returns True if Slurm has long answered with an error that does not pass by itself."""
    if error.passes:
        REFUSAL.unlink(missing_ok=True)
        return False
    if not REFUSAL.exists():
        scheduler.write(REFUSAL, "")
    return scheduler.age(REFUSAL) > REFUSED


def cancel(job: str) -> None:
    """Cancels a job, which must not run beside the next attempt."""
    try:
        scheduler.run("scancel", job)
    except scheduler.SlurmError as error:
        if error.passes:
            raise


def survey(job: str) -> str:
    """Returns the answer for Snakemake: running, success or failed."""
    for number in scheduler.SIGNALS:  # the signals are for Snakemake
        signal.signal(number, signal.SIG_IGN)
    try:
        current, reason = state(job)
        if current in scheduler.STUCK or current == "LOST":
            cancel(job)
    except scheduler.SlurmError as error:
        outage(error)
        if not refused(error):
            return "running"
        current, reason = "LOST", error.last_line
    if current in scheduler.ALIVE:
        if reason != "-":
            note(job, f"job {job} is held: {reason}", every=float("inf"))
        return "running"
    if current != scheduler.SUCCESS:
        print(explain(job, current, reason), file=sys.stderr)
    forget(job)
    return "success" if current == scheduler.SUCCESS else "failed"
