"""Long work prints its progress, rate and remaining time, with a clock that tests set."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dpprobe import progress


class Clock:
    """A clock that advances when code waits; also an event, and a thread that runs at once."""

    def __init__(self, end: float = 0.0) -> None:
        self.now, self.end = 100.0, 100.0 + end

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.now > self.end

    def set(self) -> None:
        self.end = 0.0

    def start_thread(self, target: Callable[[], None], daemon: bool) -> Any:
        assert daemon, "a thread that waits must not keep a process alive"
        return SimpleNamespace(start=target, join=lambda: None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Clock:
    caplog.set_level(logging.INFO, logger="dpprobe")
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    threads = SimpleNamespace(Event=lambda: clock, Thread=clock.start_thread)
    monkeypatch.setattr(progress, "threading", threads)
    return clock


@pytest.mark.parametrize("seconds", [0, 59.4, 59.6, 600, 3599, 3600, 36_610])
def test_a_clock_shows_hours_where_there_are_any(seconds: float) -> None:
    hours, minutes, last = str(datetime.timedelta(seconds=round(seconds))).split(":")
    wanted = f"{int(minutes)}:{last}" if hours == "0" else f"{hours}:{minutes}:{last}"
    assert progress.format_clock(seconds) == wanted


def test_the_time_left_equals_that_of_the_work_after_the_first_step(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The first step takes 1 s; then 8 rows remain, and each takes 2.5 s."""
    with progress.Progress(12, label="a", unit="b") as work:
        for later, amount in ((1, 2), (5, 2), (4.9, 1), (0.1, 1), (20, 6)):
            clock.now += later
            work.advance_by(amount)
    assert caplog.messages == [
        "a: 4/12 b (33%), 0.7 b/s, ETA 0:20",  # 4 rows in 6 s; 2 rows in 5 s after the first step
        "a: 6/12 b (50%), 0.5 b/s, ETA 0:15",  # 6 rows in 11 s; 4 rows in 10 s
        "a: 12/12 b (100%), 0.4 b/s, ETA 0:00",
        "a: 12 b in 0:31, 0.4 b/s",
    ]


def test_work_of_an_unknown_amount_or_in_one_step_has_no_time_left(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with progress.Progress(0, label="a", unit="b", last_line=False) as work:
        clock.now += 5
        work.advance_by(1)
    assert caplog.messages == ["a: 1/0 b (100%), 0.2 b/s"]
    caplog.clear()
    with progress.Progress(3, label="a", unit="b", last_line=False) as work:
        for _ in range(2):
            clock.now += 7
            work.advance_by(2)
    assert caplog.messages[1] == "a: 4/3 b (133%), 0.3 b/s, ETA 0:00", "more than was expected"


def test_work_that_failed_has_no_last_line(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with progress.Progress(1, label="a"):
        clock.now += 2
    assert caplog.messages == ["a: 0 rows in 0:02, 0.0 rows/s"]
    caplog.clear()
    with pytest.raises(ValueError, match="x"), progress.Progress(1, label="a"):
        raise ValueError("x")
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("first", "longest", "told"),
    [
        (5.0, 20.0, [5, 15, 35, 55]),  # pauses of 5, 10, 20 and 20 seconds
        (5.0, 60.0, [5, 15, 35]),  # the next would be after 75 seconds
        (0.5, 60.0, [0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 63.5]),
    ],
)
def test_waits_are_reported_after_pauses_that_double(
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    first: float,
    longest: float,
    told: list[float],
) -> None:
    clock.end = clock.now + 70
    with progress.report_wait("w", first=first, longest=longest):
        pass
    said = [f"w ({progress.format_clock(each)} so far)" for each in told]
    assert caplog.messages == said


def test_a_wait_that_ended_begins_again(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    clock.end = clock.now + 45
    with progress.report_wait("w", waits=lambda: not 130 <= clock.now < 134):
        pass
    assert caplog.messages == [f"w ({each} so far)" for each in ("0:05", "0:15", "0:05")]


def test_silent_progress_logs_nothing(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    clock.end = clock.now + 70
    part = progress.Progress(1, label="one", interval=0)
    with progress.silent_progress(), progress.report_wait("w"), part:
        part.advance_by(1)
    assert caplog.messages == []
    with progress.Progress(2, label="all", interval=0, last_line=False) as whole:
        whole.advance_by(1)
    assert [text[:8] for text in caplog.messages] == ["all: 1/2"], "the silence has ended"
