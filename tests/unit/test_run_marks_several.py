"""Marks of several runs in shared folders: of other hosts, killed, damaged."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from dpprobe import run_marks
from dpprobe.errors import DataError


def test_marks_of_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = tmp_path / "new/results", tmp_path / "old"
    old.mkdir()
    marks: list[Any] = []
    monkeypatch.setattr(run_marks, "_HELD", [])
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
