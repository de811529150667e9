"""The cause of a failure is found in a job's log."""

from __future__ import annotations

import pytest

from dpprobe.logs import last_error

TRACEBACK = """Traceback (most recent call last):
  File "job.py", line 3, in fit
    raise ValueError("x")
ValueError: x
"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("10:00:00 INFO sgd: training seeds 0, 1\n", None),
        ("", None),
        ("10:00:00 ERROR shard.h5: damaged\n", "shard.h5: damaged"),
        ("10:00:00 INFO sgd: kept\n" + TRACEBACK, "ValueError: x"),
        (f"10:00:00 ERROR bad failed\n{TRACEBACK}10:00:01 ERROR bad: x\n", "bad: x"),
        (f"10:00:00 ERROR bad: y\n{TRACEBACK}RuleException:\n", "ValueError: x"),
        (
            "10:00:00 INFO sgd: training\nslurmstepd: error: Detected 1 oom_kill event\n",
            "Detected 1 oom_kill event",
        ),
    ],
)
def test_the_last_error_of_a_log(log: str, cause: str | None) -> None:
    assert last_error(log) == cause
