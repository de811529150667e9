"""The tutorial's commands write a valid study with a release, and the page shows that study."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dpprobe.release.parts.evaluation import EvaluateOptions
from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs/tutorial.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """Returns the page's commands in order."""
    blocks = re.findall(r"<!-- run -->\n\n((?:    .*\n|\n)+)", PAGE)
    joined = "".join(blocks).replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip()]


def shown_study() -> str:
    """Returns the study that the page prints, without comments."""
    block = PAGE.partition('" lesions.yaml\n')[2].partition("<!-- prints -->\n\n")[2]
    lines = re.match(r"(?:(?:    .*)?\n)*", block)
    assert lines is not None
    return "\n".join(line[4:] for line in lines[0].splitlines()).strip() + "\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder after the page's commands up to the study, with fewer images."""
    monkeypatch.chdir(tmp_path)
    for name in ("Snakefile", "bench", "resources", "src", "workflow"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    draw, init = commands()[:2]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command in (f"{draw} --count 330", init):
        subprocess.run(
            command, shell=True, check=True, capture_output=True, env={**os.environ, "PATH": path}
        )
    return tmp_path


def read(file: Path) -> Study:
    study = load_study(yaml.safe_load(file.read_text(encoding="utf-8")))
    check_study(study)
    return study


def test_the_page_shows_the_study_that_its_commands_write(folder: Path) -> None:
    written = (folder / "lesions.yaml").read_text(encoding="utf-8")
    assert shown_study() == re.sub(r"(?m)^ *#.*\n", "", written)
    study = read(folder / "lesions.yaml")
    assert study.dataset_unit("lesions") == "patient"
    assert study.datasets["lesions"].metric == "macro_accuracy"


def test_the_page_makes_a_release_of_the_comment(folder: Path) -> None:
    (edit,) = (command for command in commands() if command.startswith("sed "))
    subprocess.run(edit, shell=True, check=True, cwd=folder)
    (release,) = read(folder / "lesions.yaml").releases.values()
    evaluate = release.block(EvaluateOptions)
    assert evaluate is not None
    assert (release.epsilon, evaluate.epsilon) == (2, 2)
