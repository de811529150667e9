"""A Python from the server ends when its client ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import TIMEOUT, WarmPython, wait_until

SCRIPT = "import os, time; open('process', 'w').write(str(os.getpid())); time.sleep(600)"


@pytest.mark.parametrize("word", [signal.SIGTERM, signal.SIGKILL])
def test_the_server_ends_with_its_client(tmp_path: Path, word: signal.Signals) -> None:
    script, noted = tmp_path / "script.py", tmp_path / "process"
    script.write_text(SCRIPT)
    command = WarmPython.asked([sys.executable, str(script)])
    with subprocess.Popen(command, cwd=tmp_path) as asking:
        wait_until(lambda: noted.exists() and noted.read_text(), asking)
        asking.send_signal(word)
        assert asking.wait(TIMEOUT) == -word
    deadline = time.monotonic() + TIMEOUT
    while Path(f"/proc/{noted.read_text()}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
