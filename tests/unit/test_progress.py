"""Progress is logged, and not that of silent parts."""

from __future__ import annotations

import logging

import pytest

from dpprobe.progress import Progress, silent_progress


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
