"""Writes a job's log to one file per job, and the same lines to the terminal."""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpprobe.errors import DpprobeError, may_pass
from dpprobe.extras import naming_extras
from dpprobe.files.disk_errors import explain_unwritable
from dpprobe.files.run_marks import explain_missing_file
from dpprobe.files.written_files import JobRecord
from dpprobe.garbage_collection import search_rarely
from dpprobe.progress import PROGRESS
from dpprobe.versions import check_versions

logger = logging.getLogger("dpprobe")

TRACEBACK = "Traceback (most recent call last):"
# The last line in a log file (not on the terminal) after an error that a retry cannot fix.
LASTING = "another attempt would fail the same way"
# An error in a job's log, with all its lines, or the line about the scheduler's end of the job.
_SNAKEMAKE_TIME = r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d\b"
_OTHER_LINE = (
    rf"\d\d:\d\d:\d\d |{LASTING}$|Traceback |{_SNAKEMAKE_TIME}|slurmstepd|RuleException|"
    "WorkflowError|$"
)
ERROR_LINE = re.compile(
    r"^(?:slurmstepd(?:-[\w.-]+)?: error: (?P<scheduler>.+)"
    rf"|\d\d:\d\d:\d\d ERROR (?P<job>.+(?:\n(?!{_OTHER_LINE}).*)*))$",
    re.MULTILINE,
)
# This environment variable marks runs with short output: their jobs show only warnings and progress
# on the terminal. When such a run ends, it prints each job's error from the job's log.
BRIEF = "DPPROBE_BRIEF"


class _LogFile(logging.FileHandler):
    """A log file that reports only once if it is not writable; the terminal has the same lines."""

    failed = False

    def tells_at_end(self) -> bool:
        """Returns True if the run prints this log's last error when the run ends."""
        return not self.failed and bool(os.environ.get(BRIEF))

    def append_text(self, text: str) -> None:
        with suppress(OSError):
            self.stream.write(text)  # type: ignore[union-attr]

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.failed:
            self.failed = True
            error.filename = error.filename or self.baseFilename
            print(f"dpprobe: {explain_unwritable(error) or error}", file=sys.stderr)


@contextmanager
def job_log(path: str | Path, outputs: Iterable[str | Path] = ()) -> Iterator[None]:
    """Sends dpprobe's log lines and Python's warnings to `path` and to standard error.

    Refuses a job whose code was edited after its run began. A DpprobeError ends the process with
    status 1 and one line, only in the log if the run prints errors when it ends. The log's last
    line tells if a retry would fail too. The traceback of any other exception is logged, and the
    exception is raised again. If a file is missing, the message names any run in another folder
    that may have replaced the file. After success, `outputs` are recorded, so that later changes
    are detected.
    """
    search_rarely()
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = _LogFile(path, mode="w", encoding="utf-8")
    except OSError as error:
        sys.exit(f"dpprobe: {explain_unwritable(error) or error}")
    terminal = logging.StreamHandler(sys.stderr)
    if os.environ.get(BRIEF):
        terminal.addFilter(lambda line: line.levelno > logging.INFO or hasattr(line, PROGRESS))
    handlers: list[logging.Handler] = [written, terminal]
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    previous = root.handlers[:], root.level, logger.level
    root.handlers, root.level = handlers, logging.WARNING
    logger.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        check_versions()
        record = JobRecord(path, outputs)
        with naming_extras():
            yield
        record.finish()
    except DpprobeError as error:
        beside = explain_missing_file(error)
        _log_error(str(error) + (f"; {beside}" if beside else ""), written, terminal)
        if not beside and not may_pass(error):
            written.append_text(f"{LASTING}\n")
        sys.exit(1)
    except Exception as error:
        if line := explain_unwritable(error):
            _log_error(str(line), written, terminal)
            sys.exit(1)
        if beside := explain_missing_file(error):
            _log_error(f"{error}; {beside}", written, terminal)
            sys.exit(1)
        # Snakemake prints the traceback only on the terminal, so the log file gets a copy.
        written.append_text(traceback.format_exc())
        raise
    finally:
        logging.captureWarnings(False)
        root.handlers, root.level = previous[0], previous[1]
        logger.setLevel(previous[2])
        with suppress(OSError):  # `handleError` has already reported the error
            written.close()


def _log_error(error: str, written: _LogFile, terminal: logging.Handler) -> None:
    """Logs the error that ends a job; on the terminal only if the run does not print it later."""
    terminal.addFilter(lambda _: not written.tells_at_end())
    logger.error("%s", error)


def last_error(log: str) -> str | None:
    """Returns the last error in a job's log; None if there is none.

    An error is an entry of level ERROR, a line in which Slurm ends the job, or the exception of a
    later traceback.
    """
    errors = list(ERROR_LINE.finditer(log))
    rest = log[errors[-1].end() if errors else 0 :]
    _, traceback_line, raised = rest.rpartition(TRACEBACK)
    if traceback_line:
        lines = (line for line in raised.splitlines() if line and not line.startswith(" "))
        return next(lines, None)
    return errors[-1]["job"] or errors[-1]["scheduler"] if errors else None


def is_lasting(log: str) -> bool:
    """Returns True if the log says that a retry would fail in the same way."""
    return log.endswith(f"\n{LASTING}\n")
