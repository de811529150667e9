"""A test that hangs is stopped, and the output names the test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.programs import run_program

HANGS = {
    "a lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a caught error": "try:\n        time.sleep(60)\n    except Exception: pass",
    "Python's lock": "collections.deque(itertools.repeat(0), maxlen=0)",
}


@pytest.mark.slow
@pytest.mark.parametrize("hang", HANGS.values(), ids=list(HANGS))
def test_a_test_that_hangs_is_named(tmp_path: Path, repository: Path, hang: str) -> None:
    (tmp_path / "conftest.py").write_text((repository / "tests/conftest.py").read_text())
    file = tmp_path / "test_some.py"
    imports = "import collections, itertools, threading, time"
    tests = f"def test_hang():\n    {hang}\n\ndef test_next():\n    pass\n"
    file.write_text(f"{imports}\n\n{tests}")
    held = hang.startswith("collections")
    # the two time limits differ by a tenth, too little here for a busy machine
    ends = f"faulthandler_exit_on_timeout={str(held).lower()}"
    run = run_program(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            str(repository / "pyproject.toml"),
            "-o",
            "faulthandler_timeout=3",
            "-o",
            ends,
            str(file),
        ],
        timeout=50,
        check=False,
    )
    assert run.returncode == 1
    if held:
        assert "test_hang" in run.stderr, "the process ended with the places of its threads"
    else:
        assert "test_hang hangs" in run.stdout
        assert "1 failed, 1 passed" in run.stdout
