#!/usr/bin/env -S python3 -S -E
"""Waits for Snakemake to end and cancels the jobs that it leaves behind.

    watch.py PID FOLDER

Snakemake's own cancelling misses jobs whose state it is just asking for, and gives up after two
seconds. Snakemake removes its FOLDER under .snakemake when it ends, but not if interrupted twice,
which interrupts the watcher too. If Snakemake is killed, its folder and its jobs stay, and the next
run reuses the jobs. submit.py starts one watcher per run.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import scheduler

PATIENCE = 300  # seconds for slurmctld to answer
KEPT = 30 * 86_400  # seconds that notes of jobs are kept: longer than a job runs


def left(folder: str) -> list[str]:
    """Lists the jobs of a run that still wait or run."""
    return [
        each.job
        for each in scheduler.queue()
        if each.state in scheduler.QUEUED - {"COMPLETING"}
        and each.comment
        and each.comment.folder == folder
    ]


def cancel(folder: str) -> None:
    """Cancels the jobs of a run until none is left, or slurmctld has been away for long."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            jobs = left(folder)
            if not jobs:
                return
            scheduler.run("scancel", *jobs)
        except scheduler.SlurmError:
            time.sleep(5)  # slurmctld is away
        time.sleep(1)


def main() -> None:
    # The watcher is in Snakemake's process group, so it gets Ctrl-C too; it outlives the terminal.
    interrupted: list[int] = []
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # shells' background jobs ignore SIGINT
        signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, scheduler.SIGNALS)
    for path in scheduler.STATE.iterdir():
        if KEPT < scheduler.age(path) < float("inf"):  # future times are another machine's clock
            path.unlink(missing_ok=True)
    snakemake, folder = Path("/proc", sys.argv[1]), sys.argv[2]
    while Path(".snakemake", folder).is_dir():
        if not snakemake.exists():
            if interrupted or not Path(".snakemake", folder).is_dir():
                break
            return
        time.sleep(1)
    cancel(folder)


if __name__ == "__main__":
    main()
