"""`dpprobe run` finds rules, studies and profiles, and passes all other words to Snakemake."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.project_files import clone_root, project_root
from dpprobe.study.run_command import (
    make_environment,
    profile_words,
    run_words,
    start_snakemake,
    workflow_root,
)
from tests.conftest import REPOSITORY


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder with a study that is not the default one, and folders for others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    Path("mine.yaml").write_text("study: mine\n")
    for name in ("folder", "a b", "config"):
        Path(name).mkdir()
    Path("wrong.yaml").write_text("study: a\nseeds: b: 3\n")
    Path("config/other.yml").write_text("study: a\n")
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns the calls of `execve`, which would have replaced the process."""
    calls: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *words: calls.append(words))
    return calls


# Typed words, and whether `--cores` is added: only without a job limit and without a profile.
CORES = [
    ("", True),
    ("heads -n", True),
    ("-n -p --config seeds=1 --forcerun track --quiet host", True),
    ("-n4", True),
    ("--jobscript a.sh", True),
    ("--forcerun config/audit.yaml", True),
    ("--cores", False),
    ("--cores=2", False),
    ("-c2", False),
    ("-j", False),
    ("-nj4", False),
    ("--jobs", False),
    ("--profile", False),
    ("--profile none", False),
    ("--profile a --profile=b", False),
    ("--executor=x", False),
    ("-e", False),
]
SNAKEMAKE = [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile")]
DEFAULT = ["--configfile", str(REPOSITORY / "config.yaml")]
ALL = ["--cores", "all"]


def started_with(started: list[Any], typed: list[str]) -> list[str]:
    """Returns the command that replaces the process."""
    started.clear()
    start_snakemake(typed)
    ((program, command, variables),) = started
    assert program == sys.executable
    assert variables["DPPROBE_ROOT"] == str(REPOSITORY)
    return list(command)


@pytest.mark.parametrize(("typed", "without_cores"), CORES)
@pytest.mark.parametrize("profile", ["", "site"])
def test_all_cores_are_taken_unless_a_limit_or_a_profile_is_named(
    here: Path,
    started: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    without_cores: bool,
    profile: str,
) -> None:
    monkeypatch.setenv("SNAKEMAKE_PROFILE", profile)
    cores = ALL if without_cores and not profile else []
    expected = [*SNAKEMAKE, *cores, *typed.split(), *DEFAULT]
    assert started_with(started, typed.split()) == expected
    # a study in this folder is already Snakemake's default
    (here / "config.yaml").write_text("study: mine\n")
    assert started_with(started, typed.split()) == expected[: -len(DEFAULT)]


@pytest.mark.parametrize(
    ("typed", "folder"),
    [
        ("", "."),
        ("--directory|a b", "a b"),
        ("--directory=a b", "a b"),
        ("-d|a b", "a b"),
        ("-da b", "a b"),
        ("-d|folder", "folder"),
        ("-d|a b|-d|folder", "folder"),
    ],
)
def test_the_default_study_runs_only_if_the_folder_has_no_config_file(
    here: Path, started: list[Any], typed: str, folder: str
) -> None:
    words = [word for word in typed.split("|") if word]
    assert started_with(started, words) == [*SNAKEMAKE, *ALL, *words, *DEFAULT]
    for place in {".", "a b", "folder"} - {folder}:
        (here / place / "config.yaml").write_text("study: a\nstudy: wrong\n")
    assert started_with(started, words)[-len(DEFAULT) :] == DEFAULT, "others' files are not read"
    (here / folder / "config.yaml").write_text("study: mine\n")
    assert started_with(started, words) == [*SNAKEMAKE, *ALL, *words]
    (here / folder / "config.yaml").write_text("study: a\nstudy: wrong\n")
    with pytest.raises(ConfigError, match="config.yaml:2: key 'study' appears twice"):
        start_snakemake(words)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("heads --configfile mine.yaml config/audit.yaml", ["config/audit.yaml"]),
        ("audits --configfile config/audit.yaml mine.yaml", ["config/audit.yaml"]),
        ("--configfile=config/audit.yaml", ["config/audit.yaml"]),
        (
            "-n --configfiles config/audit.yaml config/imbalance.yaml -p",
            ["config/audit.yaml", "config/imbalance.yaml"],
        ),
        ("--configfile config/audit.yaml --forcerun x", ["config/audit.yaml"]),
        ("--configfile=mine.yaml heads", []),
        ("--configfile= heads", []),
        ("--configfile", []),
    ],
)
def test_a_study_is_found_here_and_else_in_the_clone(
    here: Path, started: list[Any], typed: str, found: list[str]
) -> None:
    words = typed
    for name in found:
        words = words.replace(name, str(REPOSITORY / name))
    assert started_with(started, typed.split()) == [*SNAKEMAKE, *ALL, *words.split()]
    # a file in this folder is preferred over the clone's
    for name in found:
        (here / name).write_text("study: own\n")
    assert started_with(started, typed.split()) == [*SNAKEMAKE, *ALL, *typed.split()]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("typed", "known", "where"),
    [
        ("--profile slurm heads", "--profile {} heads", ["--profile", "slurm"]),
        ("--profile slurm slurm", "--profile {} slurm", ["--profile", "slurm"]),
        ("--profile=slurm", "--profile={}", ["--profile", "slurm"]),
        ("--profile none", "--profile none", ALL),
        (
            "--profile a --profile=b",
            "--profile a --profile=b",
            ["--profile", "a", "--profile", "b"],
        ),
        ("heads", "--cores all heads", ALL),
    ],
)
def test_a_profile_is_the_clone_s_and_says_where_the_next_command_runs(
    started: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    known: str,
    where: list[str],
) -> None:
    expected = known.format(REPOSITORY / "profiles/slurm").split()
    assert started_with(started, typed.split()) == [*SNAKEMAKE, *expected, *DEFAULT]
    assert profile_words(typed.split()) == where
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "site")
    assert profile_words(typed.split()) == ([] if typed == "heads" else where)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("typed", "part"),
    [
        ("--configfile none.yaml", "none.yaml: no such file; correct it, as in mine.yaml (targets"),
        ("--configfile=none.yaml", "none.yaml: no such file; correct it, as in mine.yaml"),
        ("--configfile mine.yam", "mine.yam: no such file; correct it, as in mine.yaml"),
        ("--configfile other.yml", "other.yml: no such file; correct it, as in config/other.yml"),
        ("-n --configfile mine.yaml heads", "heads: no such file; correct it (targets stand"),
        ("--configfile folder", "--configfile folder: a folder; name the file of a study"),
        ("--configfile wrong.yaml", "wrong.yaml:2:9: not YAML"),
    ],
)
def test_what_cannot_run_is_refused_before_snakemake_starts(
    started: list[Any], typed: str, part: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        start_snakemake(typed.split())
    assert part in str(refused.value)
    assert started == []


def test_the_workflow_root_is_the_clone_that_contains_the_working_directory(here: Path) -> None:
    assert workflow_root(here) == project_root() == clone_root() == REPOSITORY
    clone = here / "other"
    for name in ("Snakefile", "src/dpprobe/__init__.py", "studies/mine.yaml"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).touch()
    assert workflow_root(clone) == workflow_root(clone / "studies") == clone
    # rules and package come from the same tree
    assert make_environment(clone, {"PYTHONPATH": "b"})["PYTHONPATH"] == f"{clone / 'src'}:b"
    assert make_environment(clone, {})["PYTHONPATH"] == str(clone / "src")
    assert make_environment(REPOSITORY, {}) == {"DPPROBE_ROOT": str(REPOSITORY)}


def test_the_next_command_runs_where_the_last_one_did(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the profile a cluster's jobs would use the login node; added options are omitted."""
    rules = ["--snakefile", str(REPOSITORY / "Snakefile")]
    default, mine = str(REPOSITORY / "config.yaml"), ["--configfile", "mine.yaml"]
    run = ["dpprobe", "run", "heads", "--cores", "all"]
    assert run_words("heads", call=[*rules, "--configfile", default]) == run
    assert run_words("heads", call=[*rules, *mine]) == [*run, *mine]
    # a workflow that imports the rules as a module
    own = ["--snakefile", "workflow/Snakefile"]
    assert run_words("heads", call=own) == ["snakemake", *run[2:], *own]
    assert run_words(where=["-j1"]) == ["dpprobe", "run", "-j1"]
    (here / "config.yaml").touch()
    assert run_words("heads", call=["--configfile", default])[-2:] == ["--configfile", default]
    monkeypatch.chdir(REPOSITORY)
    assert run_words("a", "b", where=["-j1"], call=mine) == ["snakemake", "a", "b", "-j1", *mine]
