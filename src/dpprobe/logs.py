"""The log of a job: one file per job, the same lines on the terminal."""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpprobe.artifacts import explain_unwritable
from dpprobe.errors import DpprobeError, may_pass
from dpprobe.progress import PROGRESS
from dpprobe.run_marks import explain_missing_file
from dpprobe.versions import check_versions

logger = logging.getLogger("dpprobe")

TRACEBACK = "Traceback (most recent call last):"
# The last line of a log, in the file alone, of an error that stays until somebody mends it.
LASTING = "another attempt would fail the same way"
# An error of a job's log, with all lines of its list, or a line of the scheduler that ended it.
_OTHER_LINE = rf"\d\d:\d\d:\d\d |{LASTING}$|Traceback |\[|slurmstepd|RuleException|WorkflowError|$"
ERROR_LINE = re.compile(
    r"^(?:slurmstepd(?:-[\w.-]+)?: error: (?P<scheduler>.+)"
    rf"|\d\d:\d\d:\d\d ERROR (?P<job>.+(?:\n(?!{_OTHER_LINE}).*)*))$",
    re.MULTILINE,
)
# The variable of a run that says little: on its terminal a job shows warnings and how far it is,
# and its error is read from its log and printed when the run ends.
BRIEF = "DPPROBE_BRIEF"


class _LogFile(logging.FileHandler):
    """A log file that reports once if it cannot be written: the terminal has the same lines."""

    failed = False

    def tells_at_end(self) -> bool:
        """Returns True if the run prints the error that ends this log."""
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


# New objects after which Python looks for garbage.
GARBAGE_OBJECTS = 100_000


@contextmanager
def job_log(path: str | Path) -> Iterator[None]:
    """Sends dpprobe's log lines and Python's warnings to `path` and to standard error.

    Refuses a job whose code was edited after its run began. A DpprobeError ends the process with
    status 1 and one line. This line goes only to the log if the run prints it at its end; the last
    line says if a retry cannot help. Any other exception leaves its traceback in the log and is
    raised again. A missing file is reported with the run from another folder that may have replaced
    it.
    """
    # Imported modules stay. Python searches torch's 350,000 objects for garbage too often.
    gc.set_threshold(GARBAGE_OBJECTS)
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
        yield
    except DpprobeError as error:
        beside = explain_missing_file(error)
        _log_error(f"{error}; {beside}" if beside else str(error), written, terminal)
        if not beside and not may_pass(error):
            written.append_text(f"{LASTING}\n")
        sys.exit(1)
    except Exception as error:
        if isinstance(error, OSError) and (line := explain_unwritable(error)):
            _log_error(str(line), written, terminal)
            sys.exit(1)
        if beside := explain_missing_file(error):
            _log_error(f"{error}; {beside}", written, terminal)
            sys.exit(1)
        # Snakemake prints the traceback on the terminal; the file needs its own copy.
        written.append_text(traceback.format_exc())
        raise
    finally:
        logging.captureWarnings(False)
        root.handlers, root.level = previous[0], previous[1]
        logger.setLevel(previous[2])
        with suppress(OSError):  # said already
            written.close()


def _log_error(error: str, written: _LogFile, terminal: logging.Handler) -> None:
    """Logs the error that ends a job; not on the terminal where the run prints it at its end."""
    terminal.addFilter(lambda _: not written.tells_at_end())
    logger.error("%s", error)


def last_error(log: str) -> str | None:
    """Returns the last error in a job's log, None without any.

    It is an entry of level ERROR, a line in which Slurm ends the job, or a later traceback's
    exception.
    """
    errors = list(ERROR_LINE.finditer(log))
    rest = log[errors[-1].end() if errors else 0 :]
    _, traceback_line, raised = rest.rpartition(TRACEBACK)
    if traceback_line:
        lines = (line for line in raised.splitlines() if line and not line.startswith(" "))
        return next(lines, None)
    return errors[-1]["job"] or errors[-1]["scheduler"] if errors else None


def is_lasting(log: str) -> bool:
    """Returns True if the log says that another attempt would fail the same way."""
    return log.endswith(f"\n{LASTING}\n")
