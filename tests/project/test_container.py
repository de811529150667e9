"""The Containerfile agrees with the Makefile and the rules; built if a base image exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY
from tests.support.git import built, git
from tests.support.programs import run_program

# Image with Python, and options that `podman build` and `podman run` need on this machine.
BASE, BUILD, RUN = "DPPROBE_TEST_BASE", "DPPROBE_TEST_BUILD", "DPPROBE_TEST_RUN"
RUNS = ["podman", "run", "--rm", "--network=none", *os.environ.get(RUN, "").split()]


@pytest.fixture(scope="module")
def text(repository: Path) -> str:
    """Returns the Containerfile without comments, with one line per instruction."""
    lines = (repository / "Containerfile").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")


@pytest.fixture(scope="module")
def instructions(text: str) -> list[tuple[str, str]]:
    rows = [row.partition(" ") for row in text.split("\n")]
    return [(word, rest.strip()) for word, _, rest in rows]


def test_the_image_has_the_packages_of_make_environment(
    instructions: list[tuple[str, str]],
) -> None:
    """Packages are installed only by `make environment`, which uses the locks and their hashes."""
    (made,) = [rest for word, rest in instructions if word == "RUN" and "make environment" in rest]
    assert "VENV=/opt/venv ${TORCH_INDEX:+TORCH_INDEX=${TORCH_INDEX}}" in made
    assert not [rest for _, rest in instructions if re.search(r"\b(pip|uv) install", rest)]
    shown = run_program(
        [
            "make",
            "--dry-run",
            *re.findall(r"environment \S+ PYTHON=python3", made)[0].split(),
            "VENV=/nowhere/venv",
        ],
        cwd=REPOSITORY,
    ).stdout
    (synced,) = [line for line in shown.splitlines() if " pip sync " in line]
    assert synced.startswith("/nowhere/venv/bin/uv pip sync --quiet --require-hashes")
    assert synced.endswith(" requirements/runtime.lock")
    assert "-m pip install --quiet --require-hashes -r requirements/bootstrap.lock" in shown
    paths = [rest.split() for word, rest in instructions if word == "COPY"]
    assert ["--from=build", "/opt/venv", "/opt/venv"] in paths
    assert ("ENV", "PATH=/opt/venv/bin:${PATH}") in instructions


def test_the_base_is_pinned_by_its_digest_and_has_the_python_of_the_conda_file(text: str) -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    image = re.fullmatch(r"docker\.io/library/python:(3\.\d+)-slim-\w+@sha256:[0-9a-f]{64}", base)
    assert image
    conda = yaml.safe_load((REPOSITORY / "envs/training.yaml").read_text())
    assert f"python ={image[1]}" in conda["dependencies"]
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}


def test_files_left_out_of_the_image_are_untracked(repository: Path) -> None:
    """Leaving out a tracked file would mark the version as edited; runs read only tracked files."""
    if not (repository / ".git").exists():
        pytest.skip("needs a clone, whose files git lists")
    left_out = (repository / ".containerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line.removeprefix("/") for line in left_out if not line.startswith("#")]
    assert ".git" not in patterns
    for pattern in patterns:
        assert not git(repository, "ls-files", "--", f":(glob){pattern}/**", f":(glob){pattern}")
    ignored = (repository / ".gitignore").read_text(encoding="utf-8").splitlines()
    made = {line for line in ignored if line in ("/data/", "/images/", "/results/", "/weights/")}
    assert {line.strip("/") for line in made} <= set(patterns)


def test_a_copy_without_a_history_is_refused_before_anything_is_fetched(
    instructions: list[tuple[str, str]], tmp_path: Path
) -> None:
    runs = [rest for word, rest in instructions if word == "RUN"]
    (check,) = [rest for rest in runs if "git_archival" in rest]
    assert runs.index(check) < next(place for place, rest in enumerate(runs) if "make env" in rest)

    def refused(folder: Path) -> str:
        done = subprocess.run(["sh", "-c", check], cwd=folder, capture_output=True, text=True)
        assert (done.returncode == 0) == (not done.stderr)
        return done.stderr

    clone = tmp_path / "clone"
    clone.mkdir()
    for name in (".gitattributes", ".git_archival.txt"):
        shutil.copy(REPOSITORY / name, clone)
    assert "build in a clone" in refused(clone)
    git(clone, "init", "-q")
    git(clone, "add", ".")
    assert "build in a clone" in refused(clone)  # git has no commit from which to read a version
    git(clone, "commit", "-qm", "first")
    assert not refused(clone)
    git(clone, "worktree", "add", "-q", str(tmp_path / "worktree"))
    assert "no worktree" in refused(tmp_path / "worktree")
    git(clone, "archive", "HEAD", "-o", str(tmp_path / "archive.tar"))
    with tarfile.open(tmp_path / "archive.tar") as files:
        files.extractall(tmp_path / "archive", filter="data")
    assert not refused(tmp_path / "archive")
    shutil.rmtree(clone / ".git")  # a copy of a clone's files has the placeholders
    assert "an archive of git" in refused(clone)


def test_every_rule_can_run_in_the_image(repository: Path) -> None:
    snakefile = (repository / "Snakefile").read_text(encoding="utf-8")
    # only rules that are included later get the image
    assert snakefile.index("container: IMAGE") < snakefile.index("\ninclude: ")
    rules = (repository / "workflow/rules").glob("*.smk")
    own = re.compile(r"^\s*container\w*:", re.MULTILINE)
    assert not [path.name for path in rules if own.search(path.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def clone(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a clone of the current checkout, which may itself be a worktree."""
    folder = tmp_path_factory.mktemp("build") / "clone"
    git(repository, "clone", "-q", ".", str(folder))
    return folder


@pytest.fixture(scope="module")
def image(clone: Path) -> Iterator[str]:
    """Builds the image of the last commit on a base image of this machine."""
    podman = shutil.which("podman")
    base = os.environ.get(BASE)
    if not podman or not base:
        pytest.skip(f"needs podman, and {BASE} with the name of a base image that is here")
    name = "localhost/dpprobe-test"
    words = ["--tag", name, f"--build-arg=BASE={base}", *os.environ.get(BUILD, "").split()]
    subprocess.run([podman, "build", *words, str(clone)], check=True)
    yield name
    subprocess.run([podman, "rmi", "--force", name], check=False)


def test_the_image_has_the_version_of_the_clone(image: str, clone: Path) -> None:
    asked = "import dpprobe, os; print(dpprobe.__version__, sorted(os.listdir('/opt/dpprobe')))"
    done = subprocess.run(
        [*RUNS, image, "python", "-c", asked], check=True, text=True, stdout=subprocess.PIPE
    )
    version, _, names = done.stdout.partition(" ")
    assert version == built(clone)
    assert ".git'" not in names
    assert "'Snakefile'" in names


def test_the_default_study_runs_in_the_image(image: str, tmp_path: Path, repository: Path) -> None:
    shutil.copy(repository / "config.yaml", tmp_path)
    tmp_path.chmod(0o777)
    command = [
        *RUNS,
        f"--volume={tmp_path}:/study",
        image,
        "snakemake",
        "--snakefile",
        "/opt/dpprobe/Snakefile",
        "--cores",
        "2",
    ]
    subprocess.run(command, check=True)
    assert (tmp_path / "results/report.html").is_file()
    again = subprocess.run([*command, "--dry-run"], check=True, text=True, capture_output=True)
    assert "Nothing to be done" in again.stdout + again.stderr
