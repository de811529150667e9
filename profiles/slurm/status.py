#!/usr/bin/env -S python3 -S -E
"""Prints running, success or failed for one job, and never fails itself.

    status.py JOB

A hundred jobs are asked for again and again, so the usual answer imports next to nothing; states.py
gives all others.
"""

from __future__ import annotations

import os
import sys
import time

from answer import FRESH, QUEUE


def goes_on(job: str) -> bool:
    """Returns True if a job waits or runs by a fresh answer of squeue and wrote no exit code."""
    try:
        with open(QUEUE) as stream:  # noqa: PTH123 (pathlib takes longer than the rest)
            fresh = -1 < time.time() - os.fstat(stream.fileno()).st_mtime < FRESH
            text = stream.read()
    except OSError:
        return False
    known = any(f"\n{job} {state} -\n" in text for state in ("PENDING", "RUNNING"))
    return fresh and known and not os.path.exists(f".snakemake/slurm/{job}.exit")  # noqa: PTH110


def main() -> None:
    job = sys.argv[1]
    if goes_on(job):
        print("running")
        return
    try:
        import states

        print(states.survey(job))
    except Exception as error:
        # an error here would end the whole run and cancel its jobs
        why = str(error) if isinstance(error, OSError) else repr(error)
        print(f"slurm: the state of job {job} is unknown: {why}", file=sys.stderr)
        print("running")


if __name__ == "__main__":
    main()
