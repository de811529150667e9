"""Two runs in different working directories that use one results folder detect each other."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import ConfigError, DataError, StoreError
from dpprobe.files import run_marks
from dpprobe.files.logs import LASTING, job_log, last_error
from dpprobe.files.run_marks import MARKED, explain_missing_file, find_other_runs

MARK = """
import sys
from pathlib import Path
from dpprobe.files.run_marks import mark_run
mark_run([Path(sys.argv[1])])
print("marked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts a process in another working directory that has marked `results`."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", MARK, str(tmp_path / "results")],
        cwd=place,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "marked\n"
    yield process
    process.kill()
    process.communicate()


def test_a_run_elsewhere_is_found_until_it_ends(
    tmp_path: Path, other: subprocess.Popen[str]
) -> None:
    (run,) = find_other_runs([tmp_path / "results", tmp_path / "none"])
    assert (run.folder, run.process) == (str(tmp_path / "elsewhere"), other.pid)
    assert run.describe().startswith(f"another run works on {tmp_path / 'results'} (in ")
    other.communicate("")
    assert not find_other_runs([tmp_path / "results"])
    assert not (tmp_path / "results").exists(), "it was made for the mark alone"
    (tmp_path / "empty").mkdir()
    subprocess.run([sys.executable, "-c", MARK, str(tmp_path / "empty")], input="", text=True)
    assert not list((tmp_path / "empty").iterdir()), "which was there before"


def test_a_run_in_this_working_directory_is_not_reported_as_another_run(
    tmp_path: Path, other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert not find_other_runs([tmp_path / "results"])
    # another node may mount the folder under another name
    monkeypatch.setattr(Path, "cwd", lambda: Path("/mnt/elsewhere"))
    assert not find_other_runs([tmp_path / "results"])
    assert other.poll() is None


TAKES = """
import sys
import time
from pathlib import Path
from dpprobe.files.run_marks import end_turn, take_turn

folder = Path(sys.argv[1])
print("ready", flush=True)
input()
take_turn(folder)
written = folder / "locks/0.output.lock"
if written.exists():
    sys.exit(1)
time.sleep(0.1)
written.touch()
end_turn()
"""


def test_runs_of_the_same_moment_take_snakemakes_locks_one_by_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TAKES, str(tmp_path)]
    runs = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("\n")
        run.stdin.flush()
    for run in runs:
        run.communicate(timeout=60)
    assert sorted(run.returncode for run in runs) == [0, 1, 1]


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(2, "No such file or directory", "a.json"), StoreError("a.h5: missing")],
)
def test_a_job_names_the_run_that_may_have_taken_its_file(
    tmp_path: Path, other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setenv(MARKED, json.dumps([str(tmp_path / "results")]))
    with pytest.raises(SystemExit, match="^1$"), job_log(tmp_path / "job.log"):
        raise error
    written = (tmp_path / "job.log").read_text()
    told = last_error(written)
    assert told is not None
    assert told.startswith(f"{error}; another run works on {tmp_path / 'results'} (in ")
    assert told.endswith("give each study a results_dir and a data_dir of its own")
    assert LASTING not in written, "another try may find the file"
    assert explain_missing_file(ConfigError("seeds: none")) is None
    other.communicate("")
    assert explain_missing_file(error) is None


def test_a_folder_that_cannot_be_marked_does_not_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    run_marks.mark_run([tmp_path / "file"])

    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("dpprobe.files.run_marks.fcntl.flock", refuse)
    run_marks.mark_run([tmp_path])
    assert not find_other_runs([tmp_path])


# Marks of several runs in shared folders: from other hosts, of killed runs, damaged.


def test_marks_of_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = tmp_path / "new/results", tmp_path / "old"
    old.mkdir()
    marks: list[Any] = []
    monkeypatch.setattr("atexit.register", lambda *given, **named: marks.append((given, named)))
    run_marks.mark_run([new, old, new, old])
    assert [given[1].parent for given, _ in marks] == [new / ".runs", old / ".runs"]
    assert [named for _, named in marks] == [{"with_folder": True}, {"with_folder": False}]
    known = json.loads(marks[0][0][1].read_text())
    assert (known["host"], known["process"]) == (socket.gethostname(), os.getpid())
    assert run_marks.find_other_runs([new, old]) == []
    held = []
    for place, damaged in enumerate(("", "[]", "{", '{"folder": "/a"}')):
        (old / f".runs/{place}.json").write_text(damaged)
    for name, host in (("z", "far"), ("a", socket.gethostname())):
        path = old / ".runs" / f"{name}.json"
        path.write_text(json.dumps(known | {"folder": f"/{name}", "inode": 0, "host": host}))
        held.append(path.open())
        fcntl.flock(held[-1], fcntl.LOCK_EX)
    found = run_marks.find_other_runs([old, new, old])
    assert [(run.folder, run.host, run.shared) for run in found] == [
        ("/a", socket.gethostname(), old),
        ("/z", "far", old),
    ]
    monkeypatch.setenv(run_marks.MARKED, json.dumps([str(new), str(old)]))
    assert "in /a, process" in str(run_marks.explain_missing_file(DataError("x")))
    held[0].close()
    now = time.time()
    for age, left in ((30 * 86_400, True), (30 * 86_400 + 1, False)):
        os.utime(old / ".runs/z.json", (now - age, now - age))
        monkeypatch.setattr(time, "time", lambda: now)
        assert len(run_marks.find_other_runs([old])) == 1
        assert (old / ".runs/z.json").exists() == left
    held[1].close()
    assert run_marks.find_other_runs([old]) == []
    assert not (old / ".runs/a.json").exists(), "its run was killed"
    for place in range(4):
        (old / f".runs/{place}.json").unlink()
    for given, named in marks:
        given[0](*given[1:], **named)
    assert [new.exists(), new.parent.exists(), *old.iterdir()] == [False, True]
