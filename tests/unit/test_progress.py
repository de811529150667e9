"""Progress is logged, and not that of silent parts."""

from __future__ import annotations

import logging
import time

import pytest

from dpprobe import progress
from dpprobe.progress import Progress, report_wait, silent_progress


def test_parts_of_other_work_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="dpprobe")
    with Progress(2, label="all", unit="runs", interval=0) as whole:
        for _ in range(2):
            with silent_progress(), Progress(1, label="one", unit="steps", interval=0) as part:
                part.advance_by(1)
            whole.advance_by(1)
    lines = [record.message for record in caplog.records]
    assert len(lines) == 3
    assert all(line.startswith("all: ") for line in lines)
    assert lines[0].startswith("all: 1/2 runs (50%)")


class Clock:
    """Stands for `time`, and goes by hand."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def said(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    steps: list[tuple[float, int]],
) -> list[str]:
    """What 200 runs log that advance by so many at each time."""
    caplog.set_level(logging.INFO, logger="dpprobe")
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    counted = Progress(200, label="all", unit="runs", last_line=False)
    for seconds, amount in steps:
        clock.now = seconds
        counted.advance_by(amount)
    return [record.message for record in caplog.records]


def test_a_slow_first_step_is_no_measure_of_the_time_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first run compiles for 20 seconds, and each of the others takes a tenth of one."""
    lines = said(monkeypatch, caplog, [(20.0, 1), (20.1, 1), (25.1, 50), (40.0, 148)])
    assert lines[0] == "all: 1/200 runs (0%), 0.1 runs/s"
    assert lines[1].endswith(", ETA 0:15"), "52 of 200 in 5.1 seconds after the first"
    assert lines[2].endswith(", ETA 0:00")


def test_work_whose_amount_is_unknown_has_no_time_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="dpprobe")
    with report_wait("search", first=0.02, longest=0.04):
        time.sleep(0.3)
    assert 2 <= len(caplog.messages) <= 8, "pauses double, up to the longest"
    assert set(caplog.messages) == {"search (0:00 so far)"}
    caplog.clear()
    with silent_progress(), report_wait("silent", first=0.01):
        time.sleep(0.05)
    with report_wait("nothing waits", waits=lambda: False, first=0.01):
        time.sleep(0.05)
    assert not caplog.messages
