"""Messages about failed jobs: one at once, and one at the end of the run."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dpprobe.files.logs import is_lasting, last_error

FAILED = "failed; the reason follows at the end of this run"
_STATUS = re.compile(
    r"died with <Signals\.\w+: (?P<signal>\d+)>|died with unknown signal (?P<unknown>\d+)"
    r"|returned non-zero exit status (?P<status>-?\d+)"
)
# Snakemake's words for a file that its clock, or another machine's, dates before its input.
_CLOCK = re.compile(
    r"Output (?P<output>.+?) has older modification time \((?P<made>.+?)\) "
    r"than input (?P<input>.+?) \((?P<read>.+?)\)\. .*System time: (?P<now>[\d :.-]+\d)",
    re.DOTALL,
)
# The last line of a log of a job that waits.
_WAIT = re.compile(r"\d\d:\d\d:\d\d WARNING (?P<text>.*(?:; waiting|; try \d+ of \d+ in ).*)")
_TAIL = 4096


def read_status(text: str) -> int | None:
    """Reads a process's exit status from its error; a signal is negative."""
    found = [*_STATUS.finditer(text)]
    if not found:
        return None
    number = found[-1]["signal"] or found[-1]["unknown"]
    return -int(number) if number else int(found[-1]["status"])


def describe_clock(text: str) -> str | None:
    """Returns the cause and the remedy where Snakemake's error is about the clock; else None."""
    found = _CLOCK.search(text)
    if found is None:
        return None
    made, read, now = (found[name][:19] for name in ("made", "read", "now"))
    if read > now:
        return (
            f"{found['input']} is dated {read}, but the clock says {now}: the clock was wrong "
            f"when it was written, or is wrong now; correct the clock, `touch {found['input']}`, "
            "and run again"
        )
    return (
        f"{found['output']} is dated {made}, before its input {found['input']} ({read}): a clock "
        "was set back, or the clocks of two machines differ; correct the clocks, and run again"
    )


def describe_limit(error: str, job: Any) -> str:
    """Returns the limit of a job that Slurm ended at it, and how to raise it; else nothing."""
    limit = dict(job.resources.items()).get("runtime")
    if "DUE TO TIME LIMIT" not in error or not isinstance(limit, int):
        return ""
    return (
        f"; its limit was {limit} minutes (runtime); to raise it write `{job.rule.name}: "
        f"{{runtime: {2 * limit} * attempt}}` under set-resources of the profile"
    )


def read_wait(log: Path) -> str | None:
    """Returns what a job waits for, if its log ends with such a line."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    found = _WAIT.fullmatch(lines[-1]) if lines else None
    return found["text"] if found else None


def list_logs_with_text(logs: Iterable[str]) -> list[Path]:
    """Leaves out empty logs: Snakemake makes one for a job that was killed."""
    return [log for log in map(Path, logs) if log.is_file() and log.stat().st_size]


def list_written_logs(job: Any, since: float) -> list[Path]:
    return [log for log in list_logs_with_text(job.log) if log.stat().st_mtime >= since]


def has_lasting_error(job: Any, since: float) -> bool:
    """Returns True if a job, or one of its group, ended with an error that would stay.

    Args:
      since: seconds since the epoch; earlier logs are of other runs.
    """
    group = job.dag.get_job_group(job)
    logs = [
        log for each in (group.jobs if group else [job]) for log in list_written_logs(each, since)
    ]
    return any(is_lasting(log.read_text(errors="replace")) for log in logs)


class Failures:
    """The failed jobs of a run, by Snakemake's records.

    Attributes:
      attempts: starts per job number.
      statuses: of the last attempt's process, for jobs that ran here.
      scheduler_ids: of jobs that ran elsewhere.
      errors: Snakemake's own, whose jobs' processes may have succeeded.
    """

    def __init__(self) -> None:
        self.attempts: Counter[int] = Counter()
        self.statuses: dict[int, int | None] = {}
        self.scheduler_ids: dict[int, str] = {}
        self.errors: list[str] = []
        self._started = time.time()

    def note_scheduler_id(self, record: Mapping[str, Any]) -> None:
        if (number := record["aux"].get("external_jobid")) is not None:
            self.scheduler_ids[record["jobid"]] = number

    def describe_at_once(self, workflow: Any, record: Mapping[str, Any]) -> str:
        """Returns the line that reports a failed job at once, with its log if it wrote any."""
        logs = "".join(f"; log: {log}" for log in list_logs_with_text(record["log"])[:1])
        jobs = workflow.dag.jobs if workflow is not None else ()
        job = next((job for job in jobs if workflow.dag.jobid(job) == record["jobid"]), None)
        if job is None:
            return f"{record['rule_name']}: {FAILED}{logs}"
        name = job.message or record["rule_name"]
        if self._is_interrupted(job):
            return f"{name}: {self._describe_signal(job)}{logs}"
        if not self._is_tried_again(workflow, job):
            return f"{name}: {FAILED}{logs}"
        # the next attempt overwrites the log
        cause = self._find_cause(job)[0] or self._describe_signal(job)
        reason = f" ({cause.splitlines()[0]})" if cause else ""
        return f"{name}: failed{reason}, tried again{logs}"

    def describe_all(self, workflow: Any, *, is_stopped: bool) -> list[str]:
        """Lists the causes of all failed jobs, for the end of a run.

        Args:
          is_stopped: True if a person stopped the run, which ends jobs that did not fail.
        """
        failed = {
            job
            for each in workflow.scheduler.failed
            for job in (each.jobs if each.is_group() else [each])
        }
        # jobs that were to be retried when the run ended
        untried = {
            job for job in workflow.dag.jobs if job.attempt > 1 and not workflow.dag.finished(job)
        } - failed
        uncertain = untried | (failed if is_stopped else set())
        told = (failed - uncertain) | {
            job
            for job in uncertain
            if self._find_cause(job)[0] or self._ended_by(job, signal.SIGKILL)
        }
        told = {job for job in told if not self._is_blameless(job)}
        return [self._describe(job) for job in sorted(told, key=workflow.dag.jobid)]

    def _describe(self, job: Any) -> str:
        error, log = self._find_cause(job)
        if error:
            # some errors begin with the job's name, which commands have no other place to say
            error = error.removeprefix(f"{job.message}: ")
            return f"dpprobe: {job.message}: {error}{describe_limit(error, job)}\n  log: {log}"
        logs = self._list_logs(job)
        place = f"\n  log: {logs[-1]}" if logs else ""
        if cause := self._find_own_error(job):
            return f"dpprobe: {job.message}: {cause}{place}"
        status = self._find_status(job)
        ended = "see above" if status is None else f"its process ended with status {status}"
        cause = self._describe_signal(job) or f"failed without an error in its log, {ended}"
        return f"dpprobe: {job.message}: {cause}{place}"

    def _find_own_error(self, job: Any) -> str | None:
        """Explains Snakemake's complaint about a job's files; None without any."""
        for text in reversed(self.errors):
            named = any(str(path) in text for path in job.output)
            if named and (cause := describe_clock(text)):
                return cause
        return None

    def _is_tried_again(self, workflow: Any, job: Any) -> bool:
        """Returns True if the job has attempts left, and the run starts further jobs."""
        scheduler = workflow.scheduler
        tried = job.dag.get_job_group(job) or job
        ends = scheduler._user_kill or (scheduler._errors and not scheduler.keepgoing)
        return not ends and bool(tried.restart_times > self.attempts[job.dag.jobid(job)] - 1)

    def _list_logs(self, job: Any) -> list[Path]:
        """Lists a failed job's logs: its own, and Slurm's of its last attempt."""
        number = self.scheduler_ids.get(job.dag.jobid(job))
        group = job.dag.get_job_group(job)
        folder = Path("logs/slurm", group.groupid if group else job.rule.name)
        kept = folder.rglob(f"{number}.log") if number else []
        return [*list_written_logs(job, self._started), *kept]

    def _find_cause(self, job: Any) -> tuple[str | None, Path | None]:
        """Returns the error that a failed job's logs end with, and that log."""
        if self._is_blameless(job):
            return None, None
        for log in self._list_logs(job):
            if error := last_error(log.read_text(errors="replace")):
                return error, log
        return None, None

    def _is_blameless(self, job: Any) -> bool:
        """Returns True for a job without an error whose group another job's error ended."""
        group = job.dag.get_job_group(job)
        return bool(group and not self._has_error(job) and any(map(self._has_error, group.jobs)))

    def _has_error(self, job: Any) -> bool:
        logs = list_written_logs(job, self._started)
        return any(last_error(log.read_text(errors="replace")) for log in logs)

    def _find_status(self, job: Any) -> int | None:
        return self.statuses.get(job.dag.jobid(job))

    def _describe_signal(self, job: Any) -> str | None:
        """Names the signal that ended a failed job's process, if any."""
        status = self._find_status(job) or 0
        # a shell whose command was ended by a signal has its number plus 128
        number = -status if status < 0 else status - 128
        if number <= 0:
            return None
        memory = ": perhaps out of memory" if number == signal.SIGKILL else ""
        return f"killed by signal {number}{memory}"

    def _ended_by(self, job: Any, *signals: int) -> bool:
        return self._find_status(job) in [code for each in signals for code in (-each, 128 + each)]

    def _is_interrupted(self, job: Any) -> bool:
        """Returns True if Ctrl-C, or a signal to the run, ended a job without an error."""
        ended = self._ended_by(job, signal.SIGINT, signal.SIGTERM)
        return ended and not self._find_cause(job)[0]
