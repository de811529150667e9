"""Files that changed after their job are noticed; results with any damage can be rebuilt."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dpprobe.doctor.doctor_command import _treat_damage, check_files
from dpprobe.files import atomic_writes, json_files, run_marks, written_files
from dpprobe.files.atomic_writes import write_text
from dpprobe.files.json_files import read_record, write_record
from dpprobe.files.plain_files import sha256_file
from dpprobe.files.run_marks import MARKED
from dpprobe.files.written_files import FOLDER, JobRecord, lacks_record, list_changed, locate_record
from dpprobe.study.snapshot import Run

RESULTS = Path("results")


@pytest.fixture(autouse=True)
def _in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpprobe.files.written_files._EXTRA_FILES", set())
    monkeypatch.setenv(MARKED, json.dumps([str(tmp_path / "results"), str(tmp_path / "data")]))


def run_job(name: str, *files: str, text: str = "") -> Path:
    """Runs a job that writes these files; returns its record."""
    log = RESULTS / f"logs/{name}.log"
    job = JobRecord(log, files)
    for file in files:
        write_text(Path(file), text or f"{name} wrote {file}")
    job.finish()
    return locate_record(log, RESULTS)


def edit_quietly(path: Path) -> None:
    """Changes one byte and restores the file's time."""
    status = path.stat()
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def link_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


EDITS = [edit_quietly, cut, zero, link_nowhere, make_folder]


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_noticed_by_size_and_times(
    edit: Callable[[Path], None], linked: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The results folder may be a link to another disk."""
    if linked:
        RESULTS.symlink_to(tmp_path_factory.mktemp("disk"))
    record = run_job("tables/digits", "results/tables/a.csv", "data/digits/train.parquet")
    assert list_changed(record, RESULTS) == []
    for path in (Path("results/tables/a.csv"), Path("data/digits/train.parquet")):
        kept = path.read_text()
        edit(path)
        assert list_changed(record, RESULTS) == [path]
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.write_text(kept)
        assert list_changed(record, RESULTS) == [], "another time, and the same bytes"


def test_a_copy_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run_job("summarise/digits", "results/summary/digits.parquet")
    shutil.copytree("results", "copied")
    record = Path("copied", FOLDER, "summarise/digits.json")
    hashed: list[Path] = []

    def hash_file(path: Path) -> str:
        hashed.append(path)
        return sha256_file(path)

    monkeypatch.setattr("dpprobe.files.written_files.sha256_file", hash_file)
    for refresh, number in ((False, 1), (True, 2), (False, 2)):
        assert list_changed(record, Path("copied"), refresh=refresh) == []
        assert len(hashed) == number


# A small workflow: each job reads outputs of earlier jobs and refuses damaged ones.
JOBS = {
    "shard": ("results/features/digits/pixels/train/shard-00000-of-00001.h5",),
    "manifest": ("results/features/digits/pixels/train/manifest.json",),
    "cell": ("results/cells/digits/pixels/sgd/eps-1/metrics.json",),
    "summary": ("results/summary/digits.parquet",),
    "tables": ("results/tables/accuracy.csv", "results/tables/accuracy.md"),
}
SHARD, MANIFEST, CELL = (Path(JOBS[name][0]) for name in ("shard", "manifest", "cell"))


def write_outputs(name: str) -> None:
    if name == "manifest":
        if SHARD.read_text() != f"shard wrote {SHARD}":
            raise ValueError("a damaged shard")
        named = {"file": SHARD.name, "sha256": sha256_file(SHARD), "bytes": SHARD.stat().st_size}
        write_record(
            MANIFEST, {"format": "dpprobe-few-shot", "files": {named["file"]: named["sha256"]}}
        )
    elif name == "cell":
        read_record(MANIFEST, kind="dpprobe-few-shot", version=None)  # type: ignore[arg-type]
        write_record(CELL, {"format": "dpprobe-cell", "files": {}})
    else:
        for file in JOBS[name]:
            write_text(Path(file), f"{name} wrote {file}")


def run_workflow() -> None:
    """Runs jobs as Snakemake does: if outputs are missing, older than inputs, or changed."""
    before: list[Path] = []
    again = False
    changed = {
        name: list_changed(locate_record(RESULTS / f"logs/{name}.log", RESULTS), RESULTS)
        for name in JOBS
    }
    for name, files in JOBS.items():
        outputs = [Path(file) for file in files]
        missing = not all(path.exists() for path in outputs)
        again = again or missing or bool(changed[name])
        newest = max((path.stat().st_mtime_ns for path in before), default=0)
        if again or any(path.stat().st_mtime_ns < newest for path in outputs):
            again = True
            for path in outputs:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            job = JobRecord(RESULTS / f"logs/{name}.log", files)
            write_outputs(name)
            job.finish()
        before = outputs


def fix_all() -> None:
    run = Run(RESULTS, Path("data"), [])
    for each in check_files(RESULTS, None):
        if each.fault:
            _treat_damage(each, RESULTS, None, run, fix=True)


def read_files() -> dict[str, bytes]:
    names = itertools.chain.from_iterable(JOBS.values())
    return {name: Path(name).read_bytes() for name in names}


def test_after_the_doctor_a_rerun_succeeds_whatever_was_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests all single and double damages of results and their records."""
    monkeypatch.setattr("dpprobe.doctor.doctor_command.LOOKS", 0)
    monkeypatch.setattr("dpprobe.files.atomic_writes.flush_to_disk", lambda _: None)
    run_workflow()
    whole = read_files()
    shutil.copytree("results", tmp_path / "whole")
    targets = [*whole, f"results/{FOLDER}/shard.json", f"results/{FOLDER}/summary.json"]
    kinds: list[Callable[[Path], Any]] = [edit_quietly, cut, Path.unlink]
    single = list(itertools.product(targets, kinds))
    pairs = [pair for pair in itertools.combinations(single, 2) if pair[0][0] != pair[1][0]]
    for damages in [*((each,) for each in single), *pairs]:
        shutil.rmtree("results")
        shutil.copytree(tmp_path / "whole", "results")
        for name, damage in damages:
            damage(Path(name))
        fix_all()
        run_workflow()
        assert list(read_files()) == list(whole)
        lost = {name for name, damage in damages if FOLDER in name and damage is Path.unlink}
        if not lost:  # without its record, an edited file counts as new
            assert read_files() == whole, damages


@pytest.mark.parametrize(
    ("outputs", "lost"),
    [
        (["summary/a.parquet"], True),
        (["tables/a.csv", "tables/a.md"], True),
        (["a.png", ".done"], True),
        (["cells/metrics.json", "cells/heads.safetensors"], False),
        (["shard-0.h5"], False),
        ([".done"], False),
        (["summary/missing.parquet"], False),
        (["a.png", "missing.svg"], False),
    ],
)
def test_a_job_without_a_record_reruns_only_if_no_other_record_has_its_hashes(
    tmp_path: Path, outputs: list[str], lost: bool
) -> None:
    for name in outputs:
        if "missing" not in name:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
    record, files = tmp_path / "record.json", [str(tmp_path / name) for name in outputs]
    assert lacks_record(record, files) == lost
    record.touch()
    assert not lacks_record(record, files)


def test_an_unreadable_file_is_reported_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.h5").write_text("content")
    record, written = tmp_path / "record.json", {"bytes": 7, "times": [0, 0], "sha256": "0" * 64}
    values = {"format": "dpprobe-written", "format_version": 1, "files": {"a.h5": written}}
    write_record(record, values)
    assert list_changed(record, tmp_path) == [tmp_path / "a.h5"]

    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("dpprobe.files.written_files.sha256_file", refuse)
    with pytest.raises(PermissionError, match=r"a\.h5"):
        list_changed(record, tmp_path)


# Damaged records of written files, and files that changed afterwards.


def test_damaged_records_of_written_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    results, record = tmp_path / "results", tmp_path / "results/.written/a.json"
    monkeypatch.setattr(written_files, "_EXTRA_FILES", set())
    monkeypatch.setenv(run_marks.MARKED, json.dumps([str(results)]))
    names = [f"cells/{name}" for name in ("b.json", "a.json", "c", "gone", "e")]
    paths = [results / name for name in names]
    for path in (*paths[:3], *paths[4:], results / "z", results / "y"):
        atomic_writes.write_text(path, "[1]" if path.name == "b.json" else path.name)
    json_files.write_record(paths[1], {"x": 1}, paths[2], paths[4])
    for path in (results / "z", results / "y", paths[1]):
        written_files.add_file(path)
    absent = [results / "cells/none.json", results / "cells/.done"]  # Snakemake touches .done later
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
        json_files.write_record(
            record,
            {
                "format": written_files.FORMAT,
                "files": files | {"cells/c": damage, "cells/a.json/x": {"bytes": 1}},
            },
        )
        changed = written_files.list_changed(record, results)
        assert changed == [paths[2], paths[1] / "x"], damage
    wrong: dict[str, Any] = {
        "lacks 'files'": {"format": written_files.FORMAT},
        "lacks 'format'": {"files": {}},
        "not a dpprobe-written": {"format": "x", "files": {}},
    }
    for said, values in wrong.items():
        json_files.write_record(record, values)
        with pytest.raises(ValueError, match=said):
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
    for path, lost in ((paths[0], []), (paths[4], [paths[4]])):  # Snakemake finds missing outputs
        path.unlink()
        assert written_files.list_changed(record, results) == lost
        path.write_text("[1]" if path == paths[0] else path.name)
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
