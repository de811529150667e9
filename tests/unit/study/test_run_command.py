"""`dpprobe run` finds rules, studies and profiles, and hands all else to Snakemake as it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dpprobe.__main__ import main
from dpprobe.errors import ConfigError
from dpprobe.resources import clone_root, project_root
from dpprobe.study.run_command import (
    make_environment,
    profile_words,
    run_words,
    snakemake_words,
    start_snakemake,
    workflow_root,
)
from tests.conftest import REPOSITORY


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the process would have become."""
    calls: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *words: calls.append(words))
    return calls


def words(here: Path, *typed: str) -> list[str]:
    return snakemake_words(typed, REPOSITORY, here)


BEFORE = ["--snakefile", str(REPOSITORY / "Snakefile")]
DEFAULT = ["--configfile", str(REPOSITORY / "config.yaml")]


def test_an_empty_folder_runs_the_default_study_on_all_cores(here: Path) -> None:
    assert words(here) == [*BEFORE, "--cores", "all", *DEFAULT]
    assert words(here, "-n", "heads") == [*BEFORE, "--cores", "all", "-n", "heads", *DEFAULT]


def test_a_study_in_the_folder_is_the_default_one_there(here: Path) -> None:
    (here / "config.yaml").write_text("study: mine\n")
    assert words(here) == [*BEFORE, "--cores", "all"]


@pytest.mark.parametrize(
    "typed", [["--directory", "a b"], ["--directory=a b"], ["-d", "a b"], ["-da b"]]
)
def test_a_study_in_the_folder_that_is_named_is_the_default_one(
    here: Path, typed: list[str]
) -> None:
    (here / "a b").mkdir()
    (here / "config.yaml").write_text("study: mine\n")
    assert words(here, *typed)[-2:] == DEFAULT
    (here / "a b/config.yaml").write_text("study: mine\n")
    assert words(here, *typed) == [*BEFORE, "--cores", "all", *typed]


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (["--configfile", "none.yaml"], "none.yaml"),
        (["--configfile=none.yaml"], "none.yaml"),
        (["-n", "--configfile", "mine.yaml", "heads"], "heads"),
        (["--configfile", "folder"], "folder"),
    ],
)
def test_a_file_of_a_study_that_is_not_there_is_named(
    here: Path, started: list[Any], typed: list[str], named: str
) -> None:
    (here / "mine.yaml").write_text("study: mine\n")
    (here / "folder").mkdir()
    with pytest.raises(ConfigError, match=f"^--configfile {named}: "):
        start_snakemake(typed)
    assert not started
    start_snakemake(["heads", "--configfile", "mine.yaml", "config/audit.yaml"])
    start_snakemake(["--configfile=mine.yaml", "heads"])
    assert len(started) == 2


@pytest.mark.parametrize(
    "sized",
    ["--cores", "--cores=2", "-c2", "-j", "-nj4", "--jobs", "--profile", "--executor", "-e"],
)
def test_who_says_how_much_may_run_is_not_overruled(
    here: Path, sized: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert words(here, sized) == [*BEFORE, sized, *DEFAULT]
    assert words(here, "--jobscript", "a.sh")[2:4] == ["--cores", "all"]
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "site")
    assert "--cores" not in words(here)


def test_studies_and_profiles_are_known_by_their_names(here: Path) -> None:
    audit = str(REPOSITORY / "config/audit.yaml")
    (here / "mine.yaml").touch()
    assert words(here, "audits", "--configfile", "config/audit.yaml", "mine.yaml", "none.yaml")[
        4:
    ] == ["audits", "--configfile", audit, "mine.yaml", "none.yaml"]
    assert words(here, "--configfile=config/audit.yaml")[4:] == [f"--configfile={audit}"]
    slurm = str(REPOSITORY / "profiles/slurm")
    assert words(here, "--profile", "slurm", "heads")[2:5] == ["--profile", slurm, "heads"]
    # a target, not a study
    assert words(here, "--forcerun", "config/audit.yaml")[5] == "config/audit.yaml"


def test_the_clone_that_one_stands_in_has_the_rules(here: Path) -> None:
    assert workflow_root(here) == project_root() == clone_root() == REPOSITORY
    clone = here / "other"
    for name in ("Snakefile", "src/dpprobe/resources.py", "studies/mine.yaml"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).touch()
    assert workflow_root(clone) == workflow_root(clone / "studies") == clone
    # rules and package are of one tree
    assert make_environment(clone, {"PYTHONPATH": "b"})["PYTHONPATH"] == f"{clone / 'src'}:b"
    assert make_environment(clone, {})["PYTHONPATH"] == str(clone / "src")
    assert make_environment(REPOSITORY, {}) == {"DPPROBE_ROOT": str(REPOSITORY)}


@pytest.mark.parametrize(
    "typed",
    [
        ["--default-storage-provider", "s3"],
        ["heads", "--default-storage-provider=s3"],
        ["--default-storage-prefix", "s3://bucket/folder"],
    ],
)
@pytest.mark.usefixtures("here")
def test_an_object_store_is_refused(started: list[Any], typed: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"--default-storage-\w+: "):
        start_snakemake(typed)
    assert not started


def test_options_of_snakemake_reach_it(
    here: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ["heads", "-n", "-p", "--config", "seeds=1", "--forcerun", "track", "--quiet", "host"]
    monkeypatch.setattr(sys, "argv", ["dpprobe", "run", *typed])
    with pytest.raises(SystemExit):
        main()
    ((program, command, variables),) = started
    assert program == sys.executable
    assert command == [program, "-m", "snakemake", *words(here, *typed)]
    assert variables["DPPROBE_ROOT"] == str(REPOSITORY)


@pytest.mark.parametrize(
    ("typed", "named", "where"),
    [
        ([], "", ["--cores", "all"]),
        (["--cores", "2", "data"], "", ["--cores", "all"]),
        (["--profile", "my profiles/slurm", "data"], "", ["--profile", "my profiles/slurm"]),
        (["--profile=slurm"], "other", ["--profile", "slurm"]),
        (["--profile", "a", "--profile=b"], "", ["--profile", "a", "--profile", "b"]),
        (["--profile", "none"], "slurm", ["--cores", "all"]),
        (["data"], "slurm", []),
    ],
)
def test_the_next_command_runs_where_the_last_one_did(
    monkeypatch: pytest.MonkeyPatch, typed: list[str], named: str, where: list[str]
) -> None:
    """Jobs of a cluster would be a login node's."""
    monkeypatch.setenv("SNAKEMAKE_PROFILE", named)
    assert profile_words(["snakemake", *typed]) == where
    monkeypatch.chdir(REPOSITORY)
    assert run_words("heads", where=where) == ["snakemake", "heads", *where]


@pytest.mark.parametrize(
    ("name", "text", "place", "typed"),
    [
        ("mine", "study: a\nseeds: b: 3\n", "2:9", ["--configfile", "mine.yaml"]),
        ("config", "study: a\nstudy: b\n", "2", []),
    ],
)
def test_what_is_no_yaml_is_told_by_its_line_before_snakemake_starts(
    here: Path, started: list[Any], name: str, text: str, place: str, typed: list[str]
) -> None:
    (here / f"{name}.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"^{name}\.yaml:{place}: "):
        start_snakemake(typed)
    assert not started
    (here / "other.yaml").write_text("study: a\n")
    start_snakemake(["--configfile", "other.yaml"])
    assert started, "a file that the command does not read may be anything"
