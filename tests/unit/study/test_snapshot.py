"""A run's snapshot contains the study, and jobs refuse a snapshot that does not fit."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study import snapshot
from dpprobe.study.snapshot import (
    RUN_KEY,
    SNAPSHOT_FILE,
    Snapshot,
    check_run,
    note_renamed,
    original_rule,
    run_study,
)
from dpprobe.study.study_file import load_study
from dpprobe.versions import VERSIONS
from tests.support.small_study import STUDY, changed


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(SNAPSHOT_FILE, raising=False)


def taken_of(values: dict[str, Any]) -> Snapshot:
    return snapshot.take_snapshot(values, load_study(values), call=["--configfile", "study.yaml"])


def recorded(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a snapshot that a job compares with its own study."""
    run: dict[str, Any] = json.loads(taken_of(values).text)[RUN_KEY]
    return run


def test_a_snapshot_holds_the_study_as_it_was_written() -> None:
    values = changed("epsilons", [1, float("inf")])
    taken = taken_of(values)
    taken.write()
    assert taken.path.stat().st_mode & 0o077 == 0
    read = json.loads(taken.path.read_text())
    assert read.keys() == {RUN_KEY}, "a workflow with the rules as a module keeps its own keys"
    run = read[RUN_KEY]
    check_run(run, load_study(run["values"]))
    assert run["values"] == values


def test_each_study_call_and_version_has_a_separate_snapshot_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = [taken_of(STUDY), taken_of(changed("seeds", 7)), taken_of(STUDY)]
    taken.append(snapshot.take_snapshot(STUDY, load_study(STUDY), call=["--configfile", "a.yaml"]))
    monkeypatch.setitem(VERSIONS, "training", 99)
    taken.append(taken_of(STUDY))
    assert taken[2] == taken[0]
    assert len({each.path for each in taken}) == len(taken) - 1


def test_a_snapshot_is_written_again_and_lasts_while_jobs_start(tmp_path: Path) -> None:
    old, taken = (taken_of(values) for values in (STUDY, changed("seeds", 7)))
    month = time.time() - (snapshot.DAYS + 1) * 86400
    for each in (old, taken):
        each.write()
        os.utime(each.path, (month, month))
    taken.write()
    (other := taken_of(changed("seeds", 8))).write()
    taken.remove_older()
    assert {*(tmp_path / snapshot.FOLDER).iterdir()} == {taken.path, other.path}
    taken.path.unlink()
    taken.write()
    assert taken.path.read_text() == taken.text


@pytest.mark.parametrize(
    ("path", "value", "values"),
    [
        ("methods.sgd.learning_rate", 0.25, "[\\d.]+ .*0.25"),
        ("seeds", 7, "5 .*7"),
        ("methods.other", {"head": "sgd"}, "nothing"),
    ],
)
def test_a_job_that_reads_another_study_refuses(path: str, value: Any, values: str) -> None:
    with pytest.raises(ConfigError, match=rf"^study\.{path}: {values}"):
        check_run(recorded(STUDY), load_study(changed(path, value)))


def test_a_job_of_another_version_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(STUDY)
    monkeypatch.setitem(VERSIONS, "training", 99)
    with pytest.raises(ConfigError, match=r"^versions\.training: \d+ when this run began, 99 now"):
        check_run(run, load_study(STUDY))


def test_a_script_holds_its_study_against_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = taken_of(STUDY)
    taken.write()
    assert run_study(changed("seeds", 7)).seeds == 7, "outside a run nothing is compared"
    monkeypatch.setenv(SNAPSHOT_FILE, str(taken.path))
    assert run_study(STUDY) == load_study(STUDY)
    with pytest.raises(ConfigError, match=r"study\.seeds: 5"):
        run_study(changed("seeds", 7))
    taken.path.unlink()
    assert run_study(changed("seeds", 7)).seeds == 7


def test_original_rule_returns_the_name_in_the_rule_files_after_renaming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DPPROBE_RENAMED_RULES", "{}")
    assert original_rule("write_tables") == "write_tables"
    note_renamed("dp_write_tables", "write_tables")
    note_renamed("mine", "plot_tsne")
    assert original_rule("dp_write_tables") == "write_tables"
    assert (original_rule("mine"), original_rule("plot_tsne")) == ("plot_tsne", "plot_tsne")
