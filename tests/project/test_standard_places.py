"""Files that hosts and the Snakemake workflow catalog expect at fixed paths exist."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.study.study_file import load_study
from tests.support.programs import run_program

BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_catalog_finds_standard_places(repository: Path) -> None:
    """Keys are from snakemake-workflow-catalog's source/docs/about/adding_workflows.md."""
    usage = read(repository / ".snakemake-workflow-catalog.yml")["usage"]
    assert usage["mandatory-flags"].keys() == {"desc", "flags"}
    stack = usage["software-stack-deployment"]
    assert stack.keys() == {"conda", "apptainer", "apptainer+conda", "report"}
    assert {type(value) for value in stack.values()} == {bool}
    assert (repository / "workflow/Snakefile").is_file()
    assert (repository / "config/README.md").is_file()


def test_the_default_study_is_also_where_snakedeploy_looks(repository: Path) -> None:
    link = repository / "config/config.yaml"
    assert link.is_symlink()
    # a relative link within the clone also works in a copy of the clone
    assert str(link.readlink()) == "../config.yaml"


def test_the_examples_of_the_configuration_page_are_studies(repository: Path) -> None:
    text = (repository / "config/README.md").read_text()
    whole, *blocks = map(yaml.safe_load, BLOCK.findall(text))
    assert load_study(whole).epsilons == ("0.5", "1", "2", "4", "8")
    assert len(blocks) == 7
    for block in blocks:  # a reader adds them one by one
        whole |= block
        load_study(whole)


def test_the_oldest_snakemake_is_the_one_that_is_tested(repository: Path) -> None:
    written = [
        re.search(pattern, (repository / file).read_text())
        for file, pattern in {
            "Snakefile": r'min_version\("([\d.]+)"\)',
            "pyproject.toml": r'"snakemake>=([\d.]+),<10"',
            "requirements/snakemake-oldest.in": r"(?m:^snakemake==([\d.]+)$)",
            "requirements/snakemake-oldest.lock": r"(?m:^snakemake==([\d.]+) )",
        }.items()
    ]
    assert all(written)
    assert len({match[1] for match in written if match}) == 1


def test_the_public_check_is_the_script(repository: Path) -> None:
    workflow = read(repository / ".github/workflows/ci.yml")
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert job["timeout-minutes"] == 90
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(repository / ".ci/run", os.X_OK)
    # the tag of an action can be moved, a commit cannot
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", name) for name in used)
    oldest = re.search(
        r'requires-python = ">=([\d.]+)"', (repository / "pyproject.toml").read_text()
    )
    assert oldest
    assert job["strategy"]["matrix"]["python"][0] == oldest[1]


def test_the_issue_form_asks_and_warns(repository: Path) -> None:
    form = read(repository / ".github/ISSUE_TEMPLATE/bug.yml")
    asked = {part["id"]: part for part in form["body"] if "id" in part}
    assert {"command", "study", "version", "log"} <= asked.keys()
    assert "dpprobe --version" in asked["version"]["attributes"]["description"]
    (note,) = [part["attributes"]["value"] for part in form["body"] if part["type"] == "markdown"]
    assert "no private data" in note
    assert "SECURITY.md" in note
    links = read(repository / ".github/ISSUE_TEMPLATE/config.yml")["contact_links"]
    assert all({"name", "url", "about"} == link.keys() for link in links)


@pytest.mark.parametrize(
    ("user", "sudo", "words"),
    [("0", False, "apt-get install"), ("1000", True, "sudo -n env"), ("1000", False, "missing:")],
)
def test_system_packages_are_installed_as_root_or_by_sudo(
    repository: Path, tmp_path: Path, user: str, sudo: bool, words: str
) -> None:
    """Stand-ins print how they are called, so that nothing is installed."""
    stand_ins = {"id": f"echo {user}", "apt-get": 'echo apt-get "$@"'}
    stand_ins["sudo"] = 'echo sudo "$@"; shift; "$@"' if sudo else "exit 1"
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    script = repository / "tests/install_system_packages.sh"
    # a folder with the programs that the script itself needs, without those that it installs
    (tmp_path / "env").symlink_to("/usr/bin/env")
    text = script.read_text()
    added = 'PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"'
    assert added in text
    done = run_program(
        ["/bin/sh", "-c", text.replace(added, f"PATH={shlex.quote(str(tmp_path))}"), "sh", "slurm"]
    )
    said = done.stdout + done.stderr
    assert words in said
    assert "munge slurmctld slurmd slurm-client mariadb-server slurmdbd" in said
