"""A process does not search for garbage at its end, but still does before."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Only garbage collection frees two objects that refer to each other.
PAIR = """
import atexit
class Held:
    def __del__(self):
        print("found")
first, second = Held(), Held()
first.other, second.other = second, first
del first, second
atexit.register(print, "last wishes")
"""
ALL = ["last wishes", "found", "found"]
SEARCH_RARELY = "from dpprobe.garbage_collection import search_rarely; search_rarely()"


@pytest.mark.parametrize(
    ("before", "printed"),
    [
        ("", ALL),
        (SEARCH_RARELY, ["last wishes"]),
        (SEARCH_RARELY + "; import sys; sys.modules['triton'] = sys", ALL),
    ],
)
def test_search_rarely_skips_garbage_collection_at_exit_unless_triton_is_loaded(
    before: str, printed: list[str]
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", before + PAIR], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines() == printed


def test_garbage_of_a_long_process_is_still_found() -> None:
    program = SEARCH_RARELY + "; import gc\n"
    program += "for _ in range(200_000): item = []; item.append(item)\n"
    program += "print(sum(generation['collected'] for generation in gc.get_stats()) > 50_000)"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "True\n"
