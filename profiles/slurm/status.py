#!/usr/bin/env -S python3 -S -E
"""Prints running, success or failed for one job, and never fails itself.

    status.py JOB

Snakemake asks for a hundred jobs again and again, so the usual answer needs almost no imports;
states.py gives all other answers.
"""

from __future__ import annotations

import os
import sys
import time

from answer import FRESH, QUEUE


def goes_on(job: str) -> bool:
    """Returns True if a fresh answer of squeue has the job, and the job wrote no exit code."""
    try:
        with open(QUEUE) as stream:  # noqa: PTH123 (importing pathlib would take most of the time)
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
