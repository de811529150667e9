"""`dpprobe run` finds rules, studies and profiles, and hands all else to Snakemake as it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.resources import clone_root, project_root
from dpprobe.study.run_command import (
    command_line,
    make_environment,
    profile_words,
    run_words,
    start_snakemake,
    workflow_root,
)
from tests.conftest import REPOSITORY
from tests.support.stored_records import check_values


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study that is not the default one, and folders for others."""
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
    """What the process would have become."""
    calls: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *words: calls.append(words))
    return calls


TYPED = [
    "",
    "heads -n",
    "-n -p --config seeds=1 --forcerun track --quiet host",
    "--cores",
    "--cores=2",
    "-c2",
    "-j",
    "-nj4",
    "-n4",
    "--jobs",
    "--profile",
    "--profile slurm heads",
    "--profile=slurm",
    "--profile none",
    "--profile a --profile=b",
    "--executor=x",
    "-e",
    "--jobscript a.sh",
    "--directory a|b",
    "--directory=a|b",
    "-d a|b",
    "-da|b",
    "-d folder",
    "-d a|b -d folder",
    "--configfile none.yaml",
    "--configfile=none.yaml",
    "--configfile",
    "--configfile other.yml",
    "-n --configfile mine.yaml heads",
    "--configfile folder",
    "--configfile wrong.yaml",
    "heads --configfile mine.yaml config/audit.yaml",
    "--configfile=mine.yaml heads",
    "audits --configfile config/audit.yaml mine.yaml",
    "--configfile=config/audit.yaml",
    "--configfiles config/audit.yaml config/imbalance.yaml -n",
    "--forcerun config/audit.yaml",
    "--configfile config/audit.yaml --forcerun config/audit.yaml",
    "--profile slurm slurm",
    "--default-storage-provider s3",
    "heads --default-storage-provider=s3",
    "--default-storage-prefix s3://bucket/folder",
    "--configfile= heads",
    "--configfile mine.yam",
]


def test_what_each_command_becomes(
    here: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an empty folder, where a profile is named, and with studies here and below."""
    told: dict[str, Any] = {}
    named = {str(REPOSITORY): "CLONE", str(here): "HERE", sys.executable: "PYTHON"}
    good, wrong = "study: mine\n", "study: a\nstudy: b\n"
    places: list[tuple[str, dict[str, str]]] = [
        ("empty", {}),
        ("a profile", {}),
        ("a study", {"config.yaml": good}),
        ("a study below", {"a b/config.yaml": good}),
        ("one below is wrong", {"config.yaml": good, "a b/config.yaml": wrong}),
        ("the other is wrong", {"config.yaml": wrong, "a b/config.yaml": good}),
    ]
    for place, files in places:
        monkeypatch.setenv("SNAKEMAKE_PROFILE", "site" if place == "a profile" else "")
        for folder in (".", "a b"):
            Path(folder, "config.yaml").unlink(missing_ok=True)
        for file, text in files.items():
            Path(file).write_text(text)
        for text in TYPED[:3] + TYPED[18:25] if "wrong" in place else TYPED:
            typed = [word.replace("|", " ") for word in text.split()]
            started.clear()
            try:
                start_snakemake(typed)
                ((_, command, variables),) = started
                said = f"{' '.join(command)}; {variables['DPPROBE_ROOT']}"
            except ConfigError as error:
                said = f"refused: {error}; {started}"
            said += f"; {' '.join(profile_words(typed))}"
            for path, name in named.items():
                said = said.replace(path, name)
            if told.get(f"empty: {text}") != said:
                told[f"{place}: {text}"] = said
    check_values("run_commands", told)


@pytest.mark.parametrize(
    ("words", "told"), [("-n", True), ("-n --configfile config.yaml", False), ("-d config", False)]
)
def test_a_study_that_a_plain_run_does_not_take_is_named(
    here: Path, started: list[Any], capsys: pytest.CaptureFixture[str], words: str, told: bool
) -> None:
    (here / "mine.yaml").write_text("study: mine\ndatasets: {}\n")
    os.mkfifo("never.yaml")
    start_snakemake(words.split())
    line = "dpprobe: runs the default study; to run mine.yaml: "
    assert capsys.readouterr().err.startswith(line) == told
    assert len(started) == 1


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


def test_the_next_command_runs_where_the_last_one_did(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of a cluster would be a login node's; what `dpprobe run` adds by itself is left out."""
    rules = ["--snakefile", str(REPOSITORY / "Snakefile")]
    default, mine = str(REPOSITORY / "config.yaml"), ["--configfile", "mine.yaml"]
    run = ["dpprobe", "run", "heads", "--cores", "all"]
    assert run_words("heads", call=[*rules, "--configfile", default]) == run
    assert run_words("heads", call=[*rules, *mine]) == [*run, *mine]
    # a workflow that uses the rules as a module
    own = ["--snakefile", "workflow/Snakefile"]
    assert run_words("heads", call=own) == ["snakemake", *run[2:], *own]
    assert run_words(where=["-j1"]) == ["dpprobe", "run", "-j1"]
    (here / "config.yaml").touch()
    assert run_words("heads", call=["--configfile", default])[-2:] == ["--configfile", default]
    monkeypatch.chdir(REPOSITORY)
    assert run_words("a", "b", where=["-j1"], call=mine) == ["snakemake", "a", "b", "-j1", *mine]


def test_a_command_has_the_path_of_what_another_name_would_start(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("env", "a b"):
        (here / place / "bin").mkdir(parents=True)
        (here / place / "bin/tool").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(here / "env/bin/python"))
    for path, line in (
        ("env/bin", "tool 'a b'"),
        ("a b/bin", "env/bin/tool 'a b'"),
        ("folder", "env/bin/tool 'a b'"),
    ):
        monkeypatch.setenv("DPPROBE_USER_PATH", str(here / path))
        assert command_line("tool", "a b") == line
    assert command_line("none", "a") == "none a"
    monkeypatch.chdir(here / "folder")
    assert command_line("tool") == str(here / "env/bin/tool")
