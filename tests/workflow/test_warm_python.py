"""A Python that is asked for is one as any other, but for what it has imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import TIMEOUT, WarmPython

SCRIPT = """
import atexit, os, signal, sys
atexit.register(print, "at the end")
print(__name__, sys.argv[1:], os.getcwd(), os.environ["OF_THIS"])
{rest}
"""


def ask(folder: Path, rest: str = "", *words: str) -> list[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT.format(rest=rest))
    return WarmPython.asked([sys.executable, str(script), *words])


def test_it_has_the_arguments_the_folder_and_the_environment_that_are_given(tmp_path: Path) -> None:
    result = subprocess.run(
        ask(tmp_path, "", "a b", "--c"), cwd=tmp_path, env=os.environ | {"OF_THIS": "é"},
        capture_output=True, text=True, check=True, timeout=TIMEOUT,
    )  # fmt: skip
    first, last = result.stdout.splitlines()
    assert first == f"__main__ ['a b', '--c'] {tmp_path} é"
    assert last == "at the end"
    assert result.stderr == ""


def test_it_imports_from_the_path_that_is_given(tmp_path: Path) -> None:
    """As copies of the code do."""
    said = []
    for name in ("one", "dpprobe"):
        (tmp_path / f"code/{name}").mkdir(parents=True)
        (tmp_path / f"code/{name}/__init__.py").write_text("WORD = 'a copy'")
        (tmp_path / f"code/{name}/errors.py").write_text("")
        places = [str(tmp_path / "code"), os.environ.get("PYTHONPATH", "")]
        variables = {"OF_THIS": "", "PYTHONPATH": os.pathsep.join(filter(None, places))}
        rest = f"import {name}.errors; print({name}.WORD, 'dpprobe.versions' in sys.modules)"
        result = subprocess.run(
            ask(tmp_path, rest), env=os.environ | variables, cwd=tmp_path,
            capture_output=True, text=True, check=True, timeout=TIMEOUT,
        )  # fmt: skip
        said.append(result.stdout.splitlines()[1])
    assert said == ["a copy True", "a copy False"]


@pytest.mark.parametrize(
    ("rest", "status", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit('a reason')", 1, "a reason"),
        ("raise ValueError('a fault')", 1, "ValueError: a fault"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
def test_it_ends_as_python_does(tmp_path: Path, rest: str, status: int, said: str) -> None:
    result = subprocess.run(
        ask(tmp_path, rest), cwd=tmp_path, env=os.environ | {"OF_THIS": ""},
        capture_output=True, text=True, check=False, timeout=TIMEOUT,
    )  # fmt: skip
    assert result.returncode == status
    assert result.stderr.strip().splitlines()[-1:] == ([said] if said else [])


@pytest.mark.parametrize("word", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_process_that_asked(tmp_path: Path, word: signal.Signals) -> None:
    rest = "import time; open('process', 'w').write(str(os.getpid())); time.sleep(600)"
    noted = tmp_path / "process"
    with subprocess.Popen(
        ask(tmp_path, rest), cwd=tmp_path, env=os.environ | {"OF_THIS": ""},
        stdout=subprocess.DEVNULL,
    ) as asking:  # fmt: skip
        deadline = time.monotonic() + TIMEOUT
        while not (noted.exists() and noted.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        asking.send_signal(word)
        assert asking.wait(TIMEOUT) == -word
    while Path(f"/proc/{noted.read_text()}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
