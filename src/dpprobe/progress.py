"""Logs the progress of long work: the amount done, the rate and the time left."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

logger = logging.getLogger("dpprobe")

PROGRESS = "dpprobe_progress"  # marks log records that report progress

_SILENT: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silent_progress() -> Iterator[None]:
    """Silences progress in this thread, for example during a thousand short fits."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)


class Progress:
    """Logs `label: done/total unit (percent), rate unit/s, ETA m:ss` every `interval` seconds.

    The last log line, at the end of the `with` block, gives the total time and the mean rate. The
    time left is computed without the first step, which often includes compiling or loading.
    """

    def __init__(
        self,
        total: int,
        *,
        label: str,
        unit: str = "rows",
        interval: float = 5.0,
        last_line: bool = True,
    ) -> None:
        self.total = total
        self.label = label
        self.unit = unit
        self.interval = interval
        self.last_line = last_line
        self.done = 0
        self._first: tuple[float, int] | None = None  # time and work at the end of the first step
        self._started = self._reported = time.monotonic()

    def __enter__(self) -> Progress:
        self._started = self._reported = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.last_line and not _SILENT.get():
            seconds = time.monotonic() - self._started
            rate = self.done / max(seconds, 1e-9)
            logger.info(
                "%s: %d %s in %s, %.1f %s/s",
                self.label,
                self.done,
                self.unit,
                format_clock(seconds),
                rate,
                self.unit,
            )

    def advance_by(self, amount: int) -> None:
        self.done += amount
        now = time.monotonic()
        first_time, first_done = self._first = self._first or (now, self.done)
        if now - self._reported < self.interval or _SILENT.get():
            return
        self._reported = now
        rate = self.done / max(now - self._started, 1e-9)
        share, left = 100 * self.done / max(self.total, 1), ""
        if self.done > first_done:
            later = (now - first_time) / (self.done - first_done)
            left = f", ETA {format_clock(max(self.total - self.done, 0) * later)}"
        logger.info(
            "%s: %d/%d %s (%.0f%%), %.1f %s/s%s",
            self.label,
            self.done,
            self.total,
            self.unit,
            share,
            rate,
            self.unit,
            left,
            extra={PROGRESS: True},
        )


@contextmanager
def report_wait(
    text: str,
    *,
    waits: Callable[[], bool] = lambda: True,
    level: int = logging.INFO,
    first: float = 5.0,
    longest: float = 60.0,
) -> Iterator[None]:
    """Logs `text (m:ss so far)` while the `with` block runs and `waits` returns True.

    A thread logs after `first` seconds, then after pauses that double up to `longest` seconds.
    """
    if _SILENT.get():
        yield
        return
    done = threading.Event()

    def watch() -> None:
        started = noted = time.monotonic()
        pause = first
        while not done.wait(min(1.0, first)):
            now = time.monotonic()
            if not waits():
                started, noted, pause = now, now, first
            elif now - noted >= pause:
                waited = format_clock(now - started)
                logger.log(level, "%s (%s so far)", text, waited, extra={PROGRESS: True})
                noted, pause = now, min(2 * pause, longest)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def format_clock(seconds: float) -> str:
    """Formats seconds as `m:ss` or `h:mm:ss`."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"
