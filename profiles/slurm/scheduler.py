"""Reads Slurm's queue and the notes on jobs; needs only the standard library of Python 3.8."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATE = Path(".snakemake/slurm")
COMMAND_TIMEOUT = 60
# The signals that a terminal, an administrator or Slurm sends to every process of a run.
SIGNALS = frozenset({signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
# The first word in the Slurm comment of each job of a run; class `Comment` has the other words.
MARK = "dpprobe"

# https://slurm.schedmd.com/job_state_codes.html; states not listed here are final failures
SUCCESS = "COMPLETED"
ALIVE = frozenset(
    {
        "PENDING",
        "RUNNING",
        "CONFIGURING",
        "COMPLETING",
        "SUSPENDED",
        "STOPPED",
        "SIGNALING",
        "RESIZING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "STAGE_OUT",
        "REVOKED",
    }
)
# States that Slurm does not have, for jobs that would stay in the queue forever. Slurm holds a job
# that its node could not start, and lets a job wait that requests more than any node has.
LAUNCH_FAILED = "LAUNCH_FAILED"
IMPOSSIBLE = "IMPOSSIBLE"
STUCK = frozenset({LAUNCH_FAILED, IMPOSSIBLE, "SPECIAL_EXIT"})
QUEUED = ALIVE | STUCK
IMPOSSIBLE_REASONS = re.compile(
    "Partition(Time|Node)Limit|BadConstraints|DependencyNeverSatisfied|Invalid(QOS|Account)|"
    r"(QOS|Assoc)Max\w+Per(Job|Node)\w*"
)
# Reasons and states of jobs that a person held; a run waits for held jobs, and logs them.
HELD = ("JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "REQUEUE_HOLD", "RESV_DEL_HOLD")

# Errors that pass: slurmctld is unreachable or busy, or a limit on queued jobs is reached.
TRANSIENT = re.compile(
    "contact slurm controller|timed out|connection (refused|reset|failure)|zero bytes|"
    "no answer in|communication|temporarily|please retry|resource busy|standby|"
    "protocol authentication|configuration source|fetch_config|resolve|MaxSubmitJob",
    re.IGNORECASE,
)
# Errors about a limit on queued jobs, which pass only when other jobs end.
LIMIT = re.compile(r"\w*SubmitJob\w*|job queue full|unable to accept job", re.IGNORECASE)
# Prefixes of a user's environment variables that would change what Slurm's commands print or do.
WISHES = ("SQUEUE_", "SACCT_", "SCANCEL_", "SBATCH_WAIT", "SBATCH_ARRAY")


class SlurmError(Exception):
    """A Slurm command failed: slurmctld is unreachable, or refused a request."""

    def __init__(self, text: str, command: str = "") -> None:
        super().__init__(text)
        self.command = command

    @property
    def limit(self) -> str | None:
        """The limit on queued jobs that is reached, in Slurm's words; None for other errors."""
        match = LIMIT.search(str(self))
        return match.group() if match else None

    @property
    def passes(self) -> bool:
        return TRANSIENT.search(str(self)) is not None

    @property
    def last_line(self) -> str:
        return str(self).splitlines()[-1]


@dataclass(frozen=True)
class Comment:
    """A job's comment.

    `work` is a digest of the job's outputs, `version` a digest of its inputs, options and code.
    `folder` is the folder of the job's Snakemake process under .snakemake. `token` identifies one
    submission, because slurmctld reuses ids of jobs after it lost its state.
    """

    work: str
    version: str
    folder: str
    token: str

    def __str__(self) -> str:
        return ":".join((MARK, self.work, self.version, self.folder, self.token))


@dataclass(frozen=True)
class Queued:
    """A line of squeue. Times are seconds since the epoch."""

    job: str
    state: str
    reason: str
    submitted: float
    comment: Comment | None


def run(*words: str, text: str | None = None) -> str:
    """Runs a Slurm command and returns its standard output.

    Raises:
        SlurmError: The command failed; the error has the command's message.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(WISHES)}
    try:
        result = subprocess.run(
            words,
            input=text,
            env={**environment, "SLURM_TIME_FORMAT": "%s"},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{words[0]}: no answer in {COMMAND_TIMEOUT} s", words[0]) from None
    except FileNotFoundError:
        raise SlurmError(f"{words[0]}: command not found") from None
    if result.returncode:
        said = result.stderr.strip() or f"{words[0]}: exit code {result.returncode}"
        raise SlurmError(said, words[0])
    return result.stdout


def queue(*filters: str) -> list[Queued]:
    """Lists the user's jobs that slurmctld knows, also finished jobs and hidden partitions."""
    lines = run(
        "squeue",
        "--all",
        "--local",
        f"--user={os.getuid()}",
        "--states=all",
        "--noheader",
        "--format=%i|%T|%V|%j|%r|%k",
        *filters,
    ).splitlines()
    return [job for line in lines if (job := parse_line(line)) is not None]


def parse_line(line: str) -> Queued | None:
    """Reads a line of squeue; None for parts of lines, because comments may have line breaks."""
    try:
        job, state, submitted, name, reason, text = line.split("|", 5)
        time_submitted = float(submitted)
    except ValueError:
        return None
    if state == "PENDING" and reason.startswith("launch failed"):
        state = LAUNCH_FAILED
    if state == "PENDING" and IMPOSSIBLE_REASONS.fullmatch(reason):
        state = IMPOSSIBLE
    # the noted comment comes first, because some sites overwrite comments of jobs
    comment = parse_comment(read_record(job, name).get("comment") or text)
    return Queued(job=job, state=state, reason=reason, submitted=time_submitted, comment=comment)


def parse_comment(text: str) -> Comment | None:
    mark, *fields = text.split(":")
    return Comment(*fields) if mark == MARK and len(fields) == 4 else None


def read_record(job: str, name: str | None = None) -> dict[str, Any]:
    """Reads the notes of submit.py on a job; empty if the job has another name."""
    try:
        record = dict(json.loads(record_file(job).read_text()))
    except (OSError, ValueError):
        return {}
    return record if name in (None, record.get("name")) else {}


def write_record(job: str, record: dict[str, object]) -> None:
    write(record_file(job), json.dumps(record))


def record_file(job: str) -> Path:
    return STATE / f"{job}.json"


def exit_file(job: str) -> Path:
    """Returns the file of a job's exit code, which remains after slurmctld forgets the job."""
    return STATE / f"{job}.exit"


def exit_code(job: str, token: str | None) -> int | None:
    """Reads a job's exit code; None if no job wrote one, or only an earlier job of this id."""
    try:
        code, written = exit_file(job).read_text().split()
        return int(code) if written == token else None
    except (OSError, ValueError):
        return None


def write(path: Path, text: str) -> None:
    """Writes a small file, whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text)
        os.utime(part)  # sets the time by this machine's clock, not by a file server's clock
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def unwritable(error: OSError) -> str:
    """Returns the error message for a file that could not be written."""
    return (
        f"{error.filename or 'a file'}: cannot be written ({error.strerror}); make room, or have "
        "the disk mounted for writing, and run again"
    )


def age(path: Path) -> float:
    """Returns the seconds since a file was written; infinite if missing, or for a future time."""
    try:
        seconds = time.time() - path.stat().st_mtime
    except OSError:
        return float("inf")
    return seconds if seconds > -1 else float("inf")
