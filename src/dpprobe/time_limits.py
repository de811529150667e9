"""Ends work that may take too long, such as matching regular expressions from strangers."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from dpprobe.errors import ConfigError


@contextmanager
def limited_time(seconds: float, fault: str) -> Iterator[None]:
    """Raises ConfigError with `fault` if the `with` block takes longer.

    Only a process's main thread can be interrupted; in other threads there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> NoReturn:
        raise ConfigError(fault)

    earlier = signal.signal(signal.SIGALRM, stop)
    started = time.monotonic()
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
        if left:  # restarts the caller's own timer
            passed = time.monotonic() - started
            signal.setitimer(signal.ITIMER_REAL, max(left - passed, 1e-3))
