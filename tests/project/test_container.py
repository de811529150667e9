"""The Containerfile is held to the Makefile and the rules, and built where it can be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

# The name of an image with Python, and what `podman build` and `podman run` need besides here.
BASE, BUILD, RUN = "DPPROBE_TEST_BASE", "DPPROBE_TEST_BUILD", "DPPROBE_TEST_RUN"


@pytest.fixture(scope="module")
def text(repository: Path) -> str:
    """The Containerfile without comments, a line an instruction."""
    lines = (repository / "Containerfile").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")


@pytest.fixture(scope="module")
def instructions(text: str) -> list[tuple[str, str]]:
    rows = [row.partition(" ") for row in text.split("\n")]
    return [(word, rest.strip()) for word, _, rest in rows]


def test_packages_are_those_of_make_environment(
    instructions: list[tuple[str, str]], repository: Path
) -> None:
    """The locks and their hashes are read there, and nowhere else."""
    (made,) = [rest for word, rest in instructions if word == "RUN" and "make environment" in rest]
    assert "VENV=/opt/venv ${TORCH_INDEX:+TORCH_INDEX=${TORCH_INDEX}}" in made
    assert not [rest for _, rest in instructions if re.search(r"\b(pip|uv) install", rest)]
    shown = subprocess.run(
        ["make", "--dry-run", "environment", "PYTHON=python3", "VENV=/nowhere/venv"],
        cwd=repository, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "/nowhere/venv/bin/uv pip sync --quiet --require-hashes" in shown
    assert "-m pip install --quiet --require-hashes -r requirements/bootstrap.lock" in shown
    paths = [rest.split() for word, rest in instructions if word == "COPY"]
    assert ["--from=build", "/opt/venv", "/opt/venv"] in paths
    assert ("ENV", "PATH=/opt/venv/bin:${PATH}") in instructions


def test_the_base_is_pinned_by_its_digest_and_has_the_python_of_the_conda_file(
    text: str, repository: Path
) -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    image = re.fullmatch(r"docker\.io/library/python:(3\.\d+)-slim-\w+@sha256:[0-9a-f]{64}", base)
    assert image
    conda = yaml.safe_load((repository / "envs/dpprobe.yaml").read_text())
    assert f"python ={image[1]}" in conda["dependencies"]
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}


def test_no_index_no_machine_s_path_and_no_root(
    text: str, instructions: list[tuple[str, str]]
) -> None:
    assert "://" not in text
    assert not re.search(r"/(home|root|work|Users)\b", text)
    users = [rest for word, rest in instructions if word == "USER"]
    assert users == ["1000:1000"]
    assert ("ENV", "HOME=/tmp") in instructions
    assert any(rest.startswith("useradd --uid 1000 ") for word, rest in instructions)
    assert [word for word, _ in instructions][-3:] == ["USER", "WORKDIR", "CMD"]


def test_every_file_that_a_run_reads_goes_in(repository: Path) -> None:
    """What is left out is made by runs, or is no part of one."""
    left_out = (repository / ".containerignore").read_text(encoding="utf-8").splitlines()
    kept = {
        "Snakefile", "config", "config.yaml", "envs", "profiles", "pyproject.toml", "requirements",
        "resources", "scripts", "slurm", "src", "workflow", "LICENSE", "README.md",
    }  # fmt: skip
    assert {f"/{name}" for name in kept}.isdisjoint(left_out)
    assert all((repository / name).exists() for name in kept)
    ignored = (repository / ".gitignore").read_text(encoding="utf-8").splitlines()
    made = {line for line in ignored if line in ("/data/", "/images/", "/results/", "/weights/")}
    assert {line.rstrip("/") for line in made} <= set(left_out)


def test_every_rule_runs_in_the_image_where_it_is_asked_for(repository: Path) -> None:
    snakefile = (repository / "Snakefile").read_text(encoding="utf-8")
    # of the rules that are read after it
    assert snakefile.index("container: IMAGE") < snakefile.index("\ninclude: ")
    rules = (repository / "workflow/rules").glob("*.smk")
    assert not any("container" in path.read_text(encoding="utf-8") for path in rules)


@pytest.fixture(scope="module")
def image(repository: Path) -> Iterator[str]:
    """The image of this checkout, built on a base that this machine has."""
    podman = shutil.which("podman")
    base = os.environ.get(BASE)
    if not podman or not base:
        pytest.skip(f"needs podman, and {BASE} with the name of a base image that is here")
    name = "localhost/dpprobe-test"
    words = ["--tag", name, f"--build-arg=BASE={base}", *os.environ.get(BUILD, "").split()]
    subprocess.run([podman, "build", *words, str(repository)], check=True)
    yield name
    subprocess.run([podman, "rmi", "--force", name], check=False)


def test_the_default_study_runs_in_the_image(image: str, tmp_path: Path, repository: Path) -> None:
    shutil.copy(repository / "config.yaml", tmp_path)
    tmp_path.chmod(0o777)
    command = [
        "podman", "run", "--rm", "--network=none", *os.environ.get(RUN, "").split(),
        f"--volume={tmp_path}:/study", image,
        "snakemake", "--snakefile", "/opt/dpprobe/Snakefile", "--cores", "2",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    assert (tmp_path / "results/report.html").is_file()
    again = subprocess.run(
        [*command, "--dry-run"], check=True, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert "Nothing to be done" in again.stdout
