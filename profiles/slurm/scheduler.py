"""What the profile's commands share. Standard library only: they start often, with any Python."""

from __future__ import annotations

import getpass
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

STATE = Path(".snakemake/slurm")
COMMAND_TIMEOUT = 60
# What a job of ours carries as its comment: who submitted it, and what work it does.
MARK = "dpprobe"

# https://slurm.schedmd.com/job_state_codes.html; states not listed here are final failures
SUCCESS = "COMPLETED"
ALIVE = frozenset(
    {
        "PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING",
        "RESIZING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "STAGE_OUT",
    }
)  # fmt: skip


class SlurmError(Exception):
    """A Slurm command failed: slurmctld is away, or it refuses."""


@dataclass(frozen=True)
class Comment:
    """What a job's comment says.

    `work` is what the job makes, `version` from what, `folder` the one under .snakemake of the
    Snakemake that it belongs to.
    """

    work: str
    version: str
    folder: str

    def __str__(self) -> str:
        return ":".join((MARK, self.work, self.version, self.folder))


@dataclass(frozen=True)
class Queued:
    """A line of squeue. Times are seconds since the epoch."""

    job: str
    state: str
    submitted: float
    comment: Comment | None


def run(*words: str, text: str | None = None) -> str:
    """The standard output of a Slurm command.

    Raises:
        SlurmError: It failed, with what it said.
    """
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    try:
        result = subprocess.run(
            words,
            input=text,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{words[0]}: no answer in {COMMAND_TIMEOUT} s") from None
    except FileNotFoundError:
        raise SlurmError(f"{words[0]}: command not found") from None
    if result.returncode:
        raise SlurmError(result.stderr.strip() or f"{words[0]}: exit code {result.returncode}")
    return result.stdout


def queue(*filters: str) -> list[Queued]:
    """The user's jobs that slurmctld remembers, finished ones too."""
    lines = run(
        "squeue",
        f"--user={getpass.getuser()}",
        "--states=all",
        "--noheader",
        "--format=%i|%T|%V|%k",
        *filters,
    )
    return [parse_line(line) for line in lines.splitlines() if line]


def parse_line(line: str) -> Queued:
    job, state, submitted, comment = line.split("|", 3)
    mark, *fields = comment.split(":")
    ours = mark == MARK and len(fields) == 3
    return Queued(
        job=job,
        state=state,
        submitted=float(submitted),
        comment=Comment(*fields) if ours else None,
    )


def exit_file(job: str) -> Path:
    """Where a job writes its exit code: the one witness that outlives slurmctld's memory."""
    return STATE / f"{job}.exit"


def record_file(job: str) -> Path:
    """What submit.py noted down about a job for status.py."""
    return STATE / f"{job}.json"


def write(path: Path, text: str) -> None:
    """Writes a small file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text)
    part.replace(path)


def age(path: Path) -> float:
    """Seconds since a file was written; infinite when there is none."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
