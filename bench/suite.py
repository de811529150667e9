"""Measures what the tests cost, by folder: `bench/results/suite.md`.

    python bench/suite.py [WORDS OF PYTEST...]

Seconds are the processor's: of the tests' own processes, and of those that they start, which are
counted while they run too. Hyperthreads of one core slow each other down: two processes need more
seconds than one after the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results/suite.md"
NOTES = "SUITE_NOTES"
SLOWEST = 25


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Notes the processor's seconds of one test, where this module is a plugin."""
    own, others = read_seconds()
    result = yield
    own_after, others_after = read_seconds()
    with Path(os.environ[NOTES]).open("a") as notes:
        print(json.dumps([item.nodeid, own_after - own, others_after - others]), file=notes)
    return result


def read_seconds() -> tuple[float, float]:
    """Returns the seconds that this process took so far, and those of all that it started."""
    times = os.times()
    others = times.children_user + times.children_system  # of those that have ended
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended just now
            others += sum(process.cpu_times()[:4])  # its own, and of those that it waited for
    return times.user + times.system, others


def run_tests(words: list[str], notes: Path) -> tuple[float, int]:
    """Runs the tests as `make test` does; returns seconds on the clock and the exit status."""
    places = os.pathsep.join([str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")])
    began = time.monotonic()
    status = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "suite", "-n", str(os.cpu_count()), "-q",
            "--dist", "loadfile", "--no-loadscope-reorder", *words,
        ],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": places, NOTES: str(notes)}, check=False,
    ).returncode  # fmt: skip
    return time.monotonic() - began, status


def folder_of(test: str) -> str:
    """Returns the room of a unit test, or the kind of another test."""
    parts = Path(test.partition("::")[0]).parts
    return "/".join(parts[: 3 if parts[1] == "unit" and len(parts) > 3 else 2])


def format_page(tests: dict[str, list[float]], minutes: float, status: int) -> str:
    """Returns the page: a row for each folder, the most expensive first, and the slowest tests."""
    folders: dict[str, list[list[float]]] = defaultdict(list)
    for test, seconds in tests.items():
        folders[folder_of(test)].append(seconds)
    total = sum(map(sum, tests.values()))
    rows = sorted(folders.items(), key=lambda item: -sum(map(sum, item[1])))
    slowest = sorted(tests.items(), key=lambda item: -sum(item[1]))[:SLOWEST]
    share = sum(sum(seconds) for _, seconds in slowest) / total
    lines = [
        "# What the tests cost",
        "",
        f"Measured by `python bench/suite.py`, Python {platform.python_version()}, "
        f"{os.cpu_count()} processors: {len(tests)} tests in {minutes:.1f} minutes, "
        f"{'all passed' if status == 0 else 'some failed'}. Seconds are the processor's.",
        "",
        "| folder | tests | seconds | of these in other processes |",
        "|---|---:|---:|---:|",
    ]
    for folder, tests_of_it in rows:
        own, others = (sum(part) for part in zip(*tests_of_it, strict=True))
        lines.append(f"| {folder} | {len(tests_of_it)} | {own + others:.0f} | {others:.0f} |")
    lines += [
        f"| all | {len(tests)} | {total:.0f} | {sum(each[1] for each in tests.values()):.0f} |",
        "",
        f"The {SLOWEST} slowest tests take {share:.0%}:",
        "",
        "| test | seconds |",
        "|---|---:|",
        *(f"| `{test.replace('|', '/')}` | {sum(seconds):.0f} |" for test, seconds in slowest),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Runs the tests, and writes the page."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        seconds, status = run_tests(sys.argv[1:], notes)
        lines = [json.loads(line) for line in notes.read_text().splitlines()]
    page = format_page({test: parts for test, *parts in lines}, seconds / 60, status)
    RESULTS.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
