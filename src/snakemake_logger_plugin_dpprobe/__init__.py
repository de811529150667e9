"""Filters Snakemake's messages: few during a run, and at its end the causes of failures or results.

A logger plugin: Snakemake finds it by its name, and `logger: dpprobe` in profiles/default selects
it. Jobs that Snakemake starts elsewhere use no logger plugin.
"""

from __future__ import annotations

import copy
import difflib
import errno
import inspect
import logging
import re
import shutil
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from logging import LogRecord
from pathlib import Path
from typing import Any

from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter, get_event
from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from dpprobe.counted_nouns import count_noun
from dpprobe.errors import ConfigError
from dpprobe.files.disk_errors import explain_unwritable, file_system, format_size
from dpprobe.shown_text import printable
from dpprobe.study.run_command import check_files
from snakemake_logger_plugin_dpprobe.failures import Failures, read_status, read_wait

PROGRESS_SECONDS = 10  # at least, between two lines that count finished jobs
# Without a line for so long, a run says which jobs it waits for; then less often for the same jobs.
WAIT_SECONDS, SAME_WAIT_SECONDS = 5, 60
FULL_BYTES = 1_000_000  # with less, the disk of the results counts as full
CLOCK_TICK_SECONDS = 0.05  # by so much times of files lag behind the clock
JOBS_NAMED, RULES_NAMED = 3, 22  # of jobs that are waited for; of those that a dry run would start
ELAPSED = "Elapsed time: "
NOTHING_TO_DO = "Nothing to be done"
# Lines that say nothing about the study, or what this plugin says better.
HIDDEN = (
    "Select jobs to execute...",
    "Execute ",
    "Using shell: ",
    "Conda environments: ",
    "Singularity containers: ",
    "Assuming unrestricted shared filesystem usage",
    "Touching output file ",
    "Complete log(s): ",
    "Uploading source archive",
    "Storing in storage: ",
    "Finished upload.",
    "Retrieving from storage: ",
    "Finished download.",
    "Removing local copy of storage file: ",
    "Shutting down, ",
    "Exiting because a job execution failed.",
    "RuleException:\nCalledProcessError in file",
    "WorkflowError:\nAt least one job did not complete successfully.",
)
# Resources that nobody sets, or that say another one again in another unit.
UNSHOWN = {"tmpdir", "mem", "mem_mib", "disk", "disk_mb", "disk_mib", "_cores", "_nodes"}
INTERRUPTED = "Terminating processes on user request"
_FAULTS = re.compile(
    r'StudyError(?: in file ".*", line \d+)?:\n(.*?)(?:\n  File ".*", line \d+, in .*)*', re.DOTALL
)
# A wrong study that is found late, by a function that computes a job's inputs or resources.
_LATE_FAULTS = re.compile(r"\nError:\n  StudyError:\n    (.*?)\nWildcards:", re.DOTALL)
# Snakemake's words for a study's file that it cannot read, also in a traceback of its code.
_UNREAD_STUDY = ("load_configfile", "\nConfig file ")
_LOCKED = re.compile(r"in the following directory:\n(.+)")
# Options with which somebody forces jobs, and other words for stages of a study.
_FORCING = ("-f", "-F", "-R", "--force")
_STAGES = {
    **dict.fromkeys(("cells", "methods", "models", "train", "training"), "heads"),
    **dict.fromkeys(("extract", "extraction", "backbones"), "features"),
    **dict.fromkeys(("download", "prepare", "datasets"), "data"),
    **dict.fromkeys(("mlflow", "runs", "all"), "track"),
    **dict.fromkeys(("report", "html"), "html_report"),
    **dict.fromkeys(("plots", "plot"), "figures"),
}
_NO_RULE = re.compile(r"No rule to produce (\S+)")
# The last words of a traceback, or of an error in a rule file, with the places that led there.
_OS_ERROR = re.compile(
    r"^(?:\w+: )?\[Errno (\d+)\] (.+?)(?:: '(.*)')?(?:\n  File \".*\", line \d+, in .*)*\s*\Z",
    re.MULTILINE,
)
_NO_ACCESS = re.compile(r"Insufficient permissions to access (.+)\. Please")


@dataclass
class Run:
    """The run that rule files describe to the plugin; empty without them.

    Attributes:
      workflow: Snakemake's.
      print_results: prints the last lines of a run that succeeded.
      results: the folder of the study's results.
      raised: jobs of which no params but versions of stages have changed.
    """

    workflow: Any = None
    print_results: Callable[[], None] = field(default=lambda: None)
    results: Path | None = None
    succeeded: bool = False
    raised: set[Any] = field(default_factory=set)

    def follow(
        self, workflow: Any, print_results: Callable[[], None], *, results: Path | None = None
    ) -> None:
        self.workflow, self.print_results, self.results = workflow, print_results, results

    def note_success(self) -> None:
        self.succeeded = True

    def note_raised(self, job: Any) -> None:
        self.raised.add(job)

    def is_raised(self, number: int) -> bool:
        """Returns True for the number of a job in `raised`."""
        return any(self.workflow.dag.jobid(job) == number for job in self.raised)


RUN = Run()


class LogHandler(LogHandlerBase):
    """Writes Snakemake's records to the terminal.

    With `quiet: rules`, as in profiles/default, it writes one line per failed job and now and then
    how far the run is; without, Snakemake's own lines. It ends a run with the cause of each
    failure, or with the results.
    """

    writes_to_stream = True
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        settings: Any = self.common_settings
        quiet = set(settings.quiet or ())
        # a dry run is a summary, unless more or less is asked for
        self._sums_up = bool(
            settings.dryrun
            and not (is_quiet_typed(sys.argv) or settings.verbose or settings.printshellcmds)
        )
        if settings.dryrun and not is_quiet_typed(sys.argv):
            quiet = {Quietness.HOST}  # the profile's is meant for runs
        self._silent = Quietness.ALL in quiet
        self._brief = Quietness.RULES in quiet and not self._silent
        # without progress Snakemake does not say which jobs have finished either
        self._tells_waits = self._brief and Quietness.PROGRESS not in quiet
        if self._brief:
            quiet.add(Quietness.PROGRESS)
        names = inspect.signature(DefaultFilter).parameters  # Snakemake 9.20 has fewer
        options = {name: getattr(settings, name) for name in names}
        self._filter = DefaultFilter(**options | {"quiet": quiet})
        self._formatter = _Formatter(quiet, settings.show_failed_logs)
        self._terminal = ColorizingTextHandler(
            nocolor=settings.nocolor,
            stream=sys.stdout if settings.stdout else sys.stderr,
            formatter=self._formatter,
        )
        self._failures = Failures()
        self._statuses: dict[int | None, int | None] = {}  # of failed processes, by thread
        self._progress_time = 0.0
        self._interrupted = self._nothing_to_do = self._broken = False
        self._ended = threading.Event()
        self._planned: dict[str, int] = {}  # jobs of a dry run by rule
        self._reasons: Counter[str] = Counter()
        self._targets: set[str] = set()  # rules that make nothing
        self._running: dict[int, _RunningJob] = {}  # by job number
        self._said, self._waited_for = time.monotonic(), frozenset[int]()
        sys.excepthook = shorten_interrupt
        if self._tells_waits:
            threading.Thread(target=self._report_waits, daemon=True).start()

    def _report_waits(self) -> None:
        while not (self._ended.wait(1) or self._broken):
            with suppress(RuntimeError):  # a job began meanwhile
                self._report_wait(time.monotonic())

    def _report_wait(self, now: float) -> None:
        """Writes which jobs run, if nothing was written for some time."""
        running = frozenset(self._running)
        pause = SAME_WAIT_SECONDS if running == self._waited_for else WAIT_SECONDS
        if not (self._tells_waits and running) or now - self._said < pause:
            return
        self._said, self._waited_for = now, running
        jobs = list(self._running.values())
        named = [f"{job.name} ({now - job.start:.0f} s)" for job in jobs]
        more = [f"{len(named) - JOBS_NAMED} more"] if len(named) > JOBS_NAMED else []
        lines = [f"running: {'; '.join([*named[:JOBS_NAMED], *more])}"]
        if RUN.workflow is not None and RUN.workflow.non_local_exec:  # others write on the terminal
            waits = [(job.name, job.read_wait()) for job in jobs]
            lines += [f"  {name}: {wait}" for name, wait in waits if wait][:JOBS_NAMED]
        if full := describe_full_disk(RUN.results):
            lines.append(f"  {full}")
        text = "\n".join(lines)
        self._terminal.handle(logging.makeLogRecord({"msg": text, "levelno": 20}))

    def emit(self, record: LogRecord) -> None:
        try:
            self._note(record)
            if not self._broken and self._shows(record):
                self._said = time.monotonic()
                self._terminal.handle(self._shorten(record))
        except BrokenPipeError:
            self._broken = True
        except Exception:
            self.handleError(record)

    def _note(self, record: Any) -> None:
        event, failures = get_event(record), self._failures
        if event == LogEvent.ERROR:
            # the error that a job's process ended with; the job is named by the same thread's next
            self._statuses[record.thread] = read_status(str(record.msg))
            failures.errors.append(str(record.msg))
        elif event == LogEvent.JOB_INFO:
            failures.attempts[record.jobid] += 1
            if record.output:
                name = record.rule_msg or record.rule_name
                if not self._running:
                    self._said = time.monotonic()  # planning is no wait for a job
                self._running[record.jobid] = _RunningJob(record, name, time.monotonic())
            else:
                self._targets.add(record.rule_name)
            is_raised = RUN.is_raised(record.jobid)
            reasons = list_reasons(record.reason, record.rule_name, is_raised=is_raised)
            # a target, which makes no file, only follows the jobs that it names
            self._reasons.update(reasons if record.output or not self._reasons else ())
        elif event == LogEvent.JOB_FINISHED:
            self._running.pop(record.job_id, None)
        elif event == LogEvent.RUN_INFO:
            self._planned = dict(record.stats)
            if RUN.workflow is not None:
                rules = [name for name in self._planned if name != "total"]
                self._targets |= {name for name in rules if not RUN.workflow.get_rule(name).output}
        elif event == LogEvent.JOB_ERROR:
            self._running.pop(record.jobid, None)
            failures.statuses[record.jobid] = self._statuses.pop(record.thread, None)
            failures.note_scheduler_id(record.__dict__)
        elif event == LogEvent.GROUP_ERROR:
            for job in record.job_error_info:
                failures.note_scheduler_id(job)
        elif event is None:
            text = str(record.msg)
            self._interrupted |= text.startswith(INTERRUPTED)
            self._nothing_to_do |= text.startswith(NOTHING_TO_DO)

    def _shows(self, record: Any) -> bool:
        event, text = get_event(record), str(record.msg)
        if self._sums_up:
            shown = text.startswith((NOTHING_TO_DO, "Building DAG"))
            return shown or event == LogEvent.ERROR or record.levelno >= logging.WARNING
        if event == LogEvent.JOB_INFO and not record.output:
            return False  # a target, with hundreds of files that it names
        if not self._brief:
            return bool(self._filter.filter(record))
        if event == LogEvent.PROGRESS:
            due = time.monotonic() - self._progress_time > PROGRESS_SECONDS
            self._progress_time = time.monotonic() if due else self._progress_time
            return due
        if event in (LogEvent.JOB_ERROR, LogEvent.GROUP_ERROR):
            return True
        return bool(self._filter.filter(record)) and not text.startswith(HIDDEN)

    def _shorten(self, record: Any) -> LogRecord:
        """Drops files of failed jobs and some tracebacks; adds requests in a dry run."""
        event, short = get_event(record), copy.copy(record)
        if event == LogEvent.PROGRESS:
            # targets come last and make nothing: a plan does not count them either
            short.total -= sum(self._planned.get(rule, 0) for rule in self._targets)
            short.done = min(short.done, short.total)
        elif str(record.msg).startswith(ELAPSED):
            short.msg = str(record.msg).partition(".")[0]
        elif event == LogEvent.ERROR:
            short.msg = shorten_error(str(record.msg), getattr(record, "exception", None))
        elif event == LogEvent.JOB_ERROR and self._brief:
            line = self._failures.describe_at_once(RUN.workflow, record.__dict__)
            short.event, short.msg = None, line
        elif event == LogEvent.JOB_ERROR:
            short.msg, short.input, short.output = record.rule_msg, [], []
            # a job that ran here has written its log on the terminal as well
            shown = self.common_settings.show_failed_logs and "external_jobid" in record.aux
            self._formatter.show_failed_logs = shown
        elif event == LogEvent.GROUP_ERROR and self._brief:
            rules = ", ".join(sorted({job["rule_name"] for job in record.job_error_info}))
            short.event, short.msg = None, f"a group of {rules}: failed"  # then one line per job
        elif event == LogEvent.GROUP_ERROR:
            self._formatter.show_failed_logs = self.common_settings.show_failed_logs
        elif event == LogEvent.JOB_INFO and record.rule_msg and self.common_settings.dryrun:
            short.rule_msg = f"{record.rule_msg}\n{describe_request(record)}"
        return short

    def flush(self) -> None:
        with suppress(BrokenPipeError):
            self._terminal.flush()

    def close(self) -> None:
        """Ends a run: writes the causes of its failures, or its results."""
        if not self._ended.is_set():
            self._ended.set()
            try:
                self._end()
            except Exception:  # Snakemake drops what a handler raises when it closes
                traceback.print_exc()
        super().close()

    def _end(self) -> None:
        workflow = RUN.workflow
        if self._sums_up and self._planned:
            hidden = {"total", *self._targets}
            jobs = {rule: n for rule, n in self._planned.items() if rule not in hidden}
            print(sum_up_plan(jobs, self._reasons), file=sys.stderr)
        if workflow is None or not workflow.is_main_process or self.common_settings.dryrun:
            return
        if RUN.succeeded or self._nothing_to_do:
            if not self._silent:
                RUN.print_results()
        elif scheduler := workflow.scheduler:
            stopped = self._interrupted or scheduler._user_kill
            causes = self._failures.describe_all(workflow, is_stopped=bool(stopped))
            if stopped:
                causes.append("dpprobe: stopped; run the same command again to resume")
            print(*map(printable, causes), sep="\n", end="\n" if causes else "", file=sys.stderr)


class _Formatter(DefaultFormatter):  # type: ignore[misc]
    """Snakemake's, but jobs are jobs in all lines, and names execute nothing on a terminal."""

    def format(self, record: LogRecord) -> str:
        return printable(super().format(record))

    def format_progress(self, msg: dict[str, Any]) -> str:
        return str(super().format_progress(msg)).replace(" steps ", " jobs ")


class _RunningJob:
    """A running job, and its logs, which say what it waits for."""

    def __init__(self, record: Any, name: str, start: float) -> None:
        self.name, self.start = name, start
        self._began = time.time() - CLOCK_TICK_SECONDS
        self._rule = record.rule_name
        self._wildcards = [str(value) for value in dict(getattr(record, "wildcards", {})).values()]
        self._logs = [Path(log) for log in getattr(record, "log", None) or ()]

    def read_wait(self) -> str | None:
        """Returns what the job waits for, by its log or the scheduler's; None if it works.

        On a full disk the job's own log may lack the line.
        """
        folder = Path(
            "logs", "slurm", self._rule, re.sub(r"[^\w.+=-]+", "_", ".".join(self._wildcards))
        )
        logs = [*self._logs, *sorted(folder.glob("*.log"))[-1:]]
        with suppress(OSError):
            written = [log for log in logs if log.is_file() and log.stat().st_mtime >= self._began]
            return next((wait for wait in map(read_wait, written) if wait), None)
        return None


def describe_full_disk(folder: Path | None) -> str | None:
    """Returns a line for a folder on a full disk; None for any other."""
    with suppress(OSError):
        if folder is not None and folder.is_dir():
            usage = shutil.disk_usage(folder)
            if usage.total and usage.free < FULL_BYTES:
                return (
                    f"{folder}: the disk is full ({format_size(usage.free)} free on "
                    f"{file_system(folder)}); jobs wait for free space; free some, or have the "
                    "quota raised"
                )
    return None


def list_reasons(text: str, rule: str = "", *, is_raised: bool = False) -> list[str]:
    """Lists why a job of a rule would run, without file names: "missing output files".

    `is_raised` tells that of the job's params only versions of stages have changed.
    """
    known = ("Missing output files", "Input files updated by another job", "Updated input files")
    parts = [part.partition(":")[0].strip() for part in text.split(";")]
    reasons = [part.lower() for part in parts if part in known or part.endswith("last execution")]
    if "Forced execution" in parts:  # the rules force jobs whose files somebody edited
        forced = any(word.startswith(_FORCING) for word in sys.argv)
        reasons.append("forced on the command line" if forced else "files were edited or replaced")
    words = "the dataset's options or files" if rule == "prepare_data" else "options of the study"
    words = "versions of stages" if is_raised else words
    return [re.sub("^params have changed.*", f"{words} have changed", each) for each in reasons]


def sum_up_plan(rules: Mapping[str, int], reasons: Mapping[str, int]) -> str:
    """Sums up a dry run by jobs per rule and per reason, in fewer than 30 lines."""
    shown = sorted(rules, key=lambda name: -rules[name])[:RULES_NAMED]
    width = max(map(len, shown), default=0)
    lines = [f"would run {count_noun(sum(rules.values()), 'job')}:"]
    lines += [f"  {name:{width}} {rules[name]}" for name in rules if name in shown]
    if len(rules) > len(shown):
        rest = [count for name, count in rules.items() if name not in shown]
        lines.append(
            f"  and {count_noun(sum(rest), 'job')} of {count_noun(len(rest), 'other rule')}"
        )
    if reasons:
        told = (f"{why} ({count_noun(count, 'job')})" for why, count in reasons.items())
        lines.append("why: " + ", ".join(told))
    return "\n".join(
        [*lines, "to print each job with its reason, add -p; to run the jobs, leave out -n"]
    )


def shorten_interrupt(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Writes an uncaught error; for Ctrl-C without its traceback."""
    if issubclass(kind, KeyboardInterrupt):
        print("dpprobe: stopped; run the same command again to resume", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def describe_request(record: Any) -> str:
    """Returns a job's rule, threads and resources."""
    resources = sorted(record.resources.items())
    asked = [("threads", record.threads), *(each for each in resources if each[0] not in UNSHOWN)]
    shown = (f"{name}={value}" for name, value in asked)
    return f"{record.rule_name}: {', '.join(shown)}"


def is_quiet_typed(words: Collection[str]) -> bool:
    return any(word.startswith(("-q", "--quiet")) for word in words)


def find_file_fault(words: Sequence[str]) -> str | None:
    """Returns why the study's files on a command line are not read; None if they are."""
    try:
        check_files(words, Path.cwd())
    except ConfigError as error:
        return str(error)
    return None


def suggest_target(target: str, known: Collection[str]) -> str | None:
    """Returns the target that somebody may mean: of the same stage and dataset, or spelt alike."""
    stage, _, rest = target.replace("-", "_").partition("_")
    wanted = _STAGES.get(stage.lower(), stage)
    ending = f"_{rest}" if rest else ""
    if wanted + ending in known:
        return wanted + ending
    # two datasets' names may be alike, and two stages of one dataset are not
    firsts = {name.removesuffix(ending): name for name in known if rest and name.endswith(ending)}
    if firsts:
        close = difflib.get_close_matches(wanted, firsts, n=1, cutoff=0.75)
        return firsts[close[0]] if close else None
    return next(iter(difflib.get_close_matches(target, known, n=1)), None)


def shorten_error(text: str, exception: str | None) -> str:
    """Shortens the error of a wrong study or an unwritable file to one line."""
    if any(mark in text for mark in _UNREAD_STUDY) and (fault := find_file_fault(sys.argv[1:])):
        return f"dpprobe: {fault}"
    if exception == "StudyError" and (faults := _FAULTS.fullmatch(text.strip("\n"))):
        return f"dpprobe: {faults[1]}"
    if exception == "InputFunctionException" and (faults := _LATE_FAULTS.search(text)):
        return f"dpprobe: {faults[1]}"
    if exception == "LockException" and (folder := _LOCKED.search(text)):
        return (
            f"dpprobe: {folder[1]}: another run uses this folder; wait until it ends, or add "
            "--unlock if it was killed"
        )
    if exception == "MissingRuleException" and (target := _NO_RULE.search(text)):
        known = [rule.name for rule in RUN.workflow.rules] if RUN.workflow else []
        close = suggest_target(target[1], known)
        meant = f" write {close}, or" if close else ""
        return f"dpprobe: {target[1]}: no such target;{meant} list all with `snakemake --list`"
    if exception == "KeyboardInterrupt" or text.strip().endswith("\nKeyboardInterrupt"):
        return "dpprobe: stopped; run the same command again to resume"
    error: OSError | None = None
    if denied := _NO_ACCESS.search(text):
        error = OSError(errno.EACCES, "", denied[1])
    elif raised := _OS_ERROR.search(text):
        error = OSError(int(raised[1]), raised[2], raised[3])
    if error and (refused := explain_unwritable(error)):
        return f"dpprobe: {refused}"
    return text
