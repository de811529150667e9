"""What the modules beside the rooms answer over many settings, against stored answers."""

from __future__ import annotations

import argparse
import errno
import fcntl
import itertools
import json
import logging
import os
import resource
import shutil
import socket
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.numpy import save

from dpprobe import __main__ as main_module
from dpprobe import artifacts, devices, progress, resources, run_marks, versions, written_files
from dpprobe.errors import ConfigError, DataError, DpprobeError
from dpprobe.logs import BRIEF, job_log
from tests.support.stored_records import answer_of, check_values

WORDS = [["plan"], ["plan", "--odd"], ["run", "--odd", "x"], ["catalog", "digits"], ["--version"]]
ENDS: list[Any] = [
    0,
    3,
    ConfigError("epsilon: wrong"),
    KeyboardInterrupt(),
    BrokenPipeError(),
    OSError(5, "x"),
    OSError(errno.ENAMETOOLONG, "File name too long", "y" * 90),
]


def test_how_a_command_ends(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(os, "dup2", lambda *_: told.append("closed"))
    monkeypatch.setattr(main_module, "code_version", lambda: "1.2")
    monkeypatch.setattr(logging.getLogger("dpprobe"), "level", 0)

    def end(arguments: argparse.Namespace) -> int:
        print("ran", arguments.words)
        if isinstance(ends, BaseException):
            raise ends
        return ends

    def add(name: str, commands: Any) -> None:
        commands.add_parser(name).set_defaults(run=end)

    for name in ("plan", "run"):
        monkeypatch.setattr(main_module, f"add_{name}", partial(add, name))
    for words, ends in [*((words, 0) for words in WORDS), *((["plan"], each) for each in ENDS)]:
        monkeypatch.setattr("sys.argv", ["dpprobe", *words])
        with pytest.raises((SystemExit, OSError)) as caught:
            main_module.main()
        out, err = capfd.readouterr()
        told.append([words, repr(ends), str(caught.value), out[:70], err[-90:].splitlines()])
    entries = [answer_of(main_module.describe_dataset, name) for name in ("cifar10", "none")]
    listed = main_module.list_catalog().splitlines()
    check_values("ends_of_commands", {"told": told, "catalog": listed, "entries": entries})


def told_by(call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """Returns what a call answers, or the error that it raises."""
    try:
        return str(call(*given, **named))
    except (OSError, DpprobeError, pa.ArrowException, ValueError, KeyError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def fail_within(context: Any, error: Exception) -> None:
    with context:
        raise error


def test_files_and_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}
    path = tmp_path / "a"
    described = artifacts.canonical_json({"format": "f", "format_version": 2})
    for metadata in (None, {"x": "y"}, {"dpprobe": "[]"}, {"dpprobe": "3"}, {"dpprobe": described}):
        path.write_bytes(save({"a": np.arange(3)}, metadata=metadata))
        size = path.stat().st_size
        for version, largest in ((2, size), (1, size), (2, size - 1)):
            answer = told_by(
                artifacts.read_arrays, path, kind="f", version=version, largest=largest
            )
            found[f"{metadata} {version} {size - largest}"] = answer.replace(str(tmp_path), "")
    errors: list[Exception] = [
        OSError(5, "Input/output error"),
        OSError("plain\nsecond"),
        pa.ArrowInvalid("bad\nfile"),
        pa.ArrowException(),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"),
        KeyError("x"),
        *(OSError(number, "refused", "some/file") for number in artifacts.UNWRITABLE),
        *(RuntimeError(f"id (errno = {number}, buf = 0x1)") for number in artifacts.UNWRITABLE),
    ]
    for place, error in enumerate(errors):
        found[f"error {place}"] = [
            told_by(fail_within, artifacts.explain_parquet(path, DataError, "table"), error),
            told_by(fail_within, artifacts.explain_full_disk(Path("here"), "copying"), error),
        ]
        found[f"unwritable {place}"] = str(artifacts.explain_unwritable(error))
    found["sizes"] = [artifacts.format_size(size) for size in (0, 99_999, 100_000, 1_250_000)]
    limits = (resource.RLIM_INFINITY, 1_000_500, 1_000_499)
    for limit, total, free in itertools.product(limits, (0, 9), (499, 500)):
        with monkeypatch.context() as patch:
            patch.setattr(resource, "getrlimit", lambda _, each=limit: (each, each))
            usage = SimpleNamespace(total=total, free=free)
            patch.setattr(shutil, "disk_usage", lambda _, each=usage: each)
            refused = told_by(artifacts.require_room, tmp_path / "not/there", 500)
        found[f"room {limit} {total} {free}"] = refused.replace(str(tmp_path), "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert artifacts.git_commit(tmp_path) is None, "there is no git"
    check_values("files_and_disks", found)


class Clock:
    """A clock that moves while somebody sleeps or waits."""

    def __init__(self, end: float = 0.0) -> None:
        self.now, self.end, self.slept = 100.0, 100.0 + end, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    # an event and a thread, whose work is done at once

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.now > self.end

    def set(self) -> None:
        self.end = 0.0

    def start_thread(self, target: Callable[[], None], daemon: bool) -> Any:
        assert daemon
        return SimpleNamespace(start=target, join=lambda: None)


def test_times(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="dpprobe")
    seconds = (0, 59.4, 59.6, 600, 3599, 3600, 36_610)
    found: dict[str, Any] = {"clock": [progress.format_clock(each) for each in seconds]}
    monkeypatch.setattr(artifacts, "WAIT", 150)
    clock = Clock()
    monkeypatch.setattr(artifacts, "time", clock)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=7))
    monkeypatch.setattr(artifacts, "file_system", lambda _: "/")

    for number, times in ((errno.ENOSPC, 9), (errno.EDQUOT, 2)):
        fails = [OSError(number, "full")] * times
        ended = told_by(
            artifacts.when_there_is_room, Path("here"), 10**6, Mock(side_effect=[*fails, 0])
        )
        found[f"disk {number}"] = [clock.slept, ended, *caplog.messages]
    steps: list[tuple[int, bool, list[tuple[float, int]]]] = [
        (10, True, [(1, 2), (5, 2), (4.9, 1), (0.1, 1), (20, 4)]),
        (0, True, [(5, 1)]),
        (100, False, [(9, 5), (9, 5)]),
        (3, True, [(7, 2), (7, 2)]),
        (9_000, True, [(50, 1)] * 3),
        (5, True, []),
    ]
    for total, last_line, advances in steps:
        caplog.clear()
        clock = Clock()
        monkeypatch.setattr(progress, "time", clock)
        with progress.Progress(total, label="a", unit="b", last_line=last_line) as work:
            for later, amount in advances:
                clock.now += later
                work.advance_by(amount)
        found[f"{total} {last_line} {advances}"] = list(caplog.messages)
    for first, longest, silent in ((5.0, 20.0, False), (0.5, 60.0, False), (5.0, 20.0, True)):
        caplog.clear()
        clock = Clock(70)
        monkeypatch.setattr(progress, "time", clock)
        threads = SimpleNamespace(Event=lambda: clock, Thread=clock.start_thread)  # noqa: B023
        monkeypatch.setattr(progress, "threading", threads)
        hidden = progress._SILENT.set(silent)
        waits = lambda: not 130 <= clock.now < 134  # noqa: B023, E731
        with progress.report_wait("w", waits=waits, first=first, longest=longest):
            pass
        progress._SILENT.reset(hidden)
        found[f"wait {first} {longest} {silent}"] = list(caplog.messages)
    caplog.clear()
    with progress.Progress(2, label="all", interval=0) as whole, progress.silent_progress():
        with progress.Progress(1, label="one", interval=0) as part:
            part.advance_by(1)
        whole.advance_by(1)
    assert [text[:13] for text in caplog.messages] == ["all: 1 rows i"]
    check_values("times", found)


VISIBLE = {
    None: "0 1 2 3",
    "": "",
    "-1": "",
    "2": "2",
    "3, 1": "3 1",
    "0,-1,2": "0",
    "1,1": "1",
    "GPU-1a,GPU-2b": "GPU-1a GPU-2b",
}


def test_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = ["nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"]
    for visible, wanted in VISIBLE.items():
        given = {} if visible is None else {devices.VISIBLE: visible}
        assert devices.visible_devices(given, nodes) == tuple(wanted.split())
    before = torch.get_num_threads()
    for threads in (0, 1, 2):
        devices.limit_threads(threads)
        assert torch.get_num_threads() == max(threads, 1)
    torch.set_num_threads(before)
    monkeypatch.setattr(devices, "_held", [])
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "listdir", lambda _: ["nvidia0", "nvidia1", "null"])
    monkeypatch.delenv(devices.VISIBLE, raising=False)
    taken = [devices.take_device({}) for _ in range(3)]
    taken += [devices.take_device({}, nodes=["nvidia0"]), devices.take_device({}, folder=tmp_path)]
    assert taken == ["0", "1", "0", None, "0"]
    slots = devices.slot_names(["0", "GPU-1"], {}), devices.slot_names(["0"], {"SLURM_JOB_ID": "7"})
    assert slots[0][:3] == [(".0.0", "0"), (".GPU-1.0", "GPU-1"), (".0.1", "0")]
    assert ([len(each) for each in slots], slots[1][1]) == ([128, 64], ("7.0.1", "0"))
    assert (tmp_path / f"dpprobe-gpus-{os.getuid()}").stat().st_mode & 0o777 == 0o700
    devices.keep_one_device()
    assert devices.VISIBLE not in os.environ, "this process holds a device"
    monkeypatch.setattr(devices, "_held", [])
    monkeypatch.setattr(devices, "_LEVELS", 1)
    assert [devices.take_device({}, folder=tmp_path / "b") for _ in range(3)] == ["0", "1", None]
    assert devices.count_devices() == 2
    monkeypatch.setattr(os, "listdir", lambda path: Path(path, "none").stat())
    assert devices.count_devices() == 0
    places = ("cpu", "cuda", "cuda:1")
    assert [devices.find_accelerator(each) is not None for each in places] == [False, True, True]
    assert [devices.default_precision(each) for each in places] == ["float32", *["float16"] * 2]
    casts = [devices.use_precision("cpu", each) for each in (None, torch.bfloat16)]
    assert [(each.device, each._enabled) for each in casts] == [("cpu", False), ("cpu", True)]
    monkeypatch.delenv("PATH")
    monkeypatch.setenv(devices.USER_PATH, "")  # is put back after the test
    monkeypatch.delenv(devices.USER_PATH)
    for _ in range(2):
        devices.put_python_on_path()
    assert os.environ[devices.USER_PATH] == os.defpath
    assert os.environ["PATH"].endswith(os.pathsep + os.defpath)


def test_clones_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, other, bare = (tmp_path / name for name in ("whole", "other", "bare"))
    for root in (whole, other, bare):
        (root / "src/dpprobe").mkdir(parents=True)
    for path in (whole / "Snakefile", whole / "src/dpprobe/resources.py", other / "Snakefile"):
        path.touch()
    packages = {
        whole / "src/dpprobe": whole,
        whole / "lib/dpprobe": None,
        other / "src/dpprobe": None,
        bare / "src/dpprobe": None,
    }
    for package, clone in packages.items():
        monkeypatch.setattr(resources, "PACKAGE", package)
        assert resources.clone_root.__wrapped__() == clone
        monkeypatch.setattr(resources, "clone_root", lambda found=clone: found)
        assert resources.project_root.__wrapped__() == (clone or package / "shipped")
        monkeypatch.undo()
    monkeypatch.setattr(resources, "project_root", lambda: tmp_path)
    with pytest.raises(ConfigError, match=r"resources/a/b.yaml: cannot be read \(No such file"):
        resources.read_yaml("a", "b.yaml")
    now = versions.VERSIONS["data"]
    edited = versions.VERSIONS | {"data": 0}
    fault = f"versions.data: 0 when this run began, {now} now"
    for began, told in ((None, None), (versions.VERSIONS, None), ({}, None), (edited, fault)):
        if began is not None:
            monkeypatch.setenv(versions.RUN_VERSIONS, json.dumps(began))
        found = answer_of(versions.check_versions)
        assert (found and str(found)[: len(told or "")]) == told
    monkeypatch.setattr(versions, "clone_root", lambda: None)
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"5 of {name}")
    assert versions.code_version.__wrapped__() == "5 of dpprobe"
    assert versions.clone_commit() is None
    for name in ("version", "distribution"):
        monkeypatch.setattr(f"importlib.metadata.{name}", Mock(side_effect=PackageNotFoundError))
    assert versions.code_version.__wrapped__() == versions.UNKNOWN
    assert not versions._is_installed(tmp_path)


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


def test_damaged_records_of_written_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    results, record = tmp_path / "results", tmp_path / "results/.written/a.json"
    monkeypatch.setattr(written_files, "_EXTRA", set())
    monkeypatch.setenv(run_marks.MARKED, json.dumps([str(results)]))
    names = [f"cells/{name}" for name in ("b.json", "a.json", "c", "gone", "e")]
    paths = [results / name for name in names]
    for path in (*paths[:3], *paths[4:], results / "z", results / "y"):
        artifacts.write_text(path, "[1]" if path.name == "b.json" else path.name)
    artifacts.write_record(paths[1], {"x": 1}, paths[2], paths[4])
    for path in (results / "z", results / "y", paths[1]):
        written_files.add_file(path)
    absent = [results / "cells/none.json", results / "cells/.done"]  # a mark is touched later
    absent[1].touch()
    job = written_files.JobRecord(results / "logs/a.log", [*paths[:2], *absent])
    job.finish()
    files = json.loads(record.read_text())["files"]
    assert {name: each.get("output") for name, each in files.items()} == {
        "cells/a.json": None,
        "cells/b.json": None,
        "cells/c": "cells/a.json",
        "cells/e": "cells/a.json",
        "y": "cells/a.json",
        "z": "cells/a.json",
    }
    damages: list[Any] = [{"bytes": 3}, 3, None, [], {}]
    for damage in damages:
        artifacts.write_record(
            record,
            {
                "format": written_files.FORMAT,
                "files": files | {"cells/c": damage, "cells/a.json/x": {"bytes": 1}},
            },
        )
        changed = written_files.list_changed(record, results)
        assert changed == [paths[2], paths[1] / "x"], damage
    wrong: list[Any] = [
        {"format": written_files.FORMAT},
        {"files": {}},
        {"format": "x", "files": {}},
    ]
    for values in wrong:
        artifacts.write_record(record, values)
        with pytest.raises(ValueError, match="lacks|not a"):
            written_files.read_written(record)
        assert written_files.list_changed(record, results) == [record]
    for content in (b"", b"{", b"[1]"):
        record.write_bytes(content)
        assert written_files.list_changed(record, results) == [record]
    with monkeypatch.context() as patch:
        patch.setattr(written_files, "read_json", Mock(side_effect=PermissionError(13, "closed")))
        with pytest.raises(PermissionError):
            written_files.list_changed(record, results)
    job.finish()
    for path in (paths[0], results / "y"):
        path.write_text("changed")
    paths[2].unlink()
    paths[2].symlink_to("nowhere")
    (results / "z").unlink()
    (results / "z").mkdir()
    caplog.clear()
    written_files.JobRecord(results / "logs/a.log", paths[:2])
    told = [text.replace(str(results), "").partition(":")[0] for text in caplog.messages]
    assert told == ["/cells/b.json", "/cells/c", "/y"]
    assert [path.is_symlink() or path.exists() for path in (*paths[:3], results / "z")] == [
        False,
        True,
        False,
        True,
    ]
    assert [*json.loads(record.read_text())["files"]] == ["z"], "of no folder of this job"


def test_logs_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="^dpprobe: .*file"), job_log(tmp_path / "file/a.log"):
        pass
    monkeypatch.setenv(BRIEF, "1")
    with pytest.raises(SystemExit), job_log("/dev/full"):
        raise DataError("a.png: damaged")
    assert "ERROR a.png: damaged" in capsys.readouterr().err, "no log has it"
    monkeypatch.delenv(BRIEF)
    with job_log(tmp_path / "b.log"):
        logging.getLogger("dpprobe").info("%d", "x")
    assert "--- Logging error ---" in capsys.readouterr().err
