"""All files have the same version number, and tags are published only after a person enables it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from dpprobe.version_number import TAG, VERSION, name_code
from tests.conftest import REPOSITORY
from tests.support.git import git
from tests.support.script_modules import load_script

NUMBER = r"(\d+\.\d+\.\d+)"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    return load_script(REPOSITORY / "tools/check_release.py")


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    jobs: dict[str, Any] = workflow()["jobs"]
    return jobs


def workflow() -> Any:
    return yaml.safe_load((REPOSITORY / ".github/workflows/release.yml").read_text())


def command(jobs: dict[str, Any], tool: str) -> str:
    """Returns the command with which the workflow runs a tool."""
    steps = (step for job in jobs.values() for step in job["steps"])
    (found,) = (step["run"] for step in steps if tool in step.get("run", ""))
    return str(found)


def test_all_files_have_the_number(check: ModuleType) -> None:
    changes = check.of_changelog((REPOSITORY / "CHANGELOG.md").read_text())
    text = (REPOSITORY / "CITATION.cff").read_text()
    citation = check.of_citation(text)
    assert citation.version == changes.version == VERSION
    assert citation.day == changes.day, "a day in both, or in none"
    assert check.DAY.fullmatch(changes.day) or changes.day == check.UNRELEASED
    full = yaml.safe_load(text)
    assert str(full["version"]) == citation.version
    assert str(full.get("date-released", check.UNRELEASED)) == citation.day
    assert name_code().partition("+")[0] == VERSION
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert "version" not in project, "it is written once"
    assert full["keywords"] == project["keywords"]
    zenodo, codemeta = (
        json.loads((REPOSITORY / name).read_text()) for name in (".zenodo.json", "codemeta.json")
    )
    assert codemeta["version"] == VERSION
    assert zenodo["keywords"] == codemeta["keywords"] == project["keywords"]
    assert zenodo["title"] == full["title"]
    assert zenodo["description"] == full["abstract"]
    assert codemeta["description"] == project["description"]


def test_missing_release_texts_are_faults(check: ModuleType, tmp_path: Path) -> None:
    for name in check.PREPARED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    marked = [
        name
        for name in check.PREPARED
        for _ in range((tmp_path / name).read_text().count("PLACEHOLDER"))
    ]
    assert [fault.partition(":")[0] for fault in check.find_placeholders(tmp_path)] == marked
    (tmp_path / "codemeta.json").write_text('{"version": "0.1",\n "a": ["PLACEHOLDER: place", 1]}')
    (tmp_path / ".zenodo.json").write_text("{}")
    (tmp_path / "paper/paper.md").unlink()
    assert list(check.find_placeholders(tmp_path)) == [
        "codemeta.json: line 2: placeholder; write the place",
        "paper/paper.md: missing; restore it from git",
    ]


def test_the_paper_is_short_and_cites_what_is_listed() -> None:
    text = (REPOSITORY / "paper/paper.md").read_text()
    listed = re.findall(r"^@\w+\{(\w+),", (REPOSITORY / "paper/references.bib").read_text(), re.M)
    assert set(re.findall(r"@(\w+)", text)) == set(listed)
    assert len(set(listed)) == len(listed)
    assert len(text.split()) <= 1000
    for page in ("README.md", "docs/reproduction.md"):
        counts = "six on MNIST and one on CIFAR-10"
        assert counts in (REPOSITORY / page).read_text().replace("\n", " ")
        assert counts in text.replace("\n", " ")


def test_every_package_has_one_licence_and_names_tested_systems() -> None:
    pages = [REPOSITORY / "pyproject.toml", *REPOSITORY.glob("integrations/*/pyproject.toml")]
    own, *carriers = (tomllib.loads(page.read_text())["project"] for page in pages)
    licences = {each["license"] for each in (own, *carriers)}
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert licences == {citation["license"]} == {"Apache-2.0"}
    assert len(carriers) == 2
    systems = [each for each in own["classifiers"] if each.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]
    assert "| ARM processors, macOS | not tested |" in (REPOSITORY / "docs/testing.md").read_text()


def test_a_tagged_clone_may_be_published(check: ModuleType) -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("needs a clone, whose tags git lists")
    tags = git(REPOSITORY, "tag", "--points-at", "HEAD", "--list", "v[0-9]*.[0-9]*").split()
    assert set(tags) <= {TAG}
    if name_code() == VERSION:
        assert list(check.find_faults(TAG)) == []


def test_pages_print_no_other_number_of_dpprobe() -> None:
    """Versions in printed commands and outputs must equal the current version."""
    patterns = (rf"\bdpprobe[ -=]+{NUMBER}", rf"\bv{NUMBER}\b")
    pages = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
    found = {
        (page.name, number)
        for page in pages
        if page.name != "CHANGELOG.md"  # the changelog lists all versions
        for pattern in patterns
        for number in re.findall(pattern, page.read_text(encoding="utf-8"))
    }
    assert {number for _, number in found} == {VERSION}


@pytest.mark.parametrize(
    ("changes", "citation", "faulty"),
    [
        (f"[{VERSION}] - 2031-05-17", f"{VERSION}\ndate-released: 2031-05-17", []),
        (f"[{VERSION}] - 2031-05-17", f'"{VERSION}"\ndate-released: "2031-05-17"', []),
        (
            f"[Unreleased]\n\n## [{VERSION}] - 2031-05-17",
            f"{VERSION}\ndate-released: 2031-05-17",
            [],
        ),
        (f"[{VERSION}] - unreleased", VERSION, ["CHANGELOG.md", "CITATION.cff"]),
        (f"[{VERSION}] - 2031-05-17", VERSION, ["CITATION.cff", "CITATION.cff"]),
        (
            f"[{VERSION}] - 2031-05-17",
            f"{VERSION}\ndate-released: 2031-05-18",
            ["CITATION.cff"],
        ),
        (
            f"[8.0.0] - 2031-05-17\n\n## [{VERSION}] - 2031-05-11",
            "8.0.1\ndate-released: 2031-05-17",
            ["CHANGELOG.md", "CITATION.cff"],
        ),
        ("a heading of no version", "", ["CHANGELOG.md"] * 2 + ["CITATION.cff"] * 2),
    ],
)
def test_a_tag_is_checked_as_the_workflow_does(
    jobs: dict[str, Any], tmp_path: Path, changes: str, citation: str, faulty: list[str]
) -> None:
    for name in ("tools/check_release.py", "src/dpprobe/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    shutil.copy(REPOSITORY / "src/dpprobe/version_number.py", tmp_path / "src/dpprobe")
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {changes}\n\nwords\n")
    (tmp_path / "CITATION.cff").write_text(f"cff-version: 1.2.0\nversion: {citation}\n")
    for name in (".zenodo.json", "paper/paper.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("nothing left to write")
    (tmp_path / "codemeta.json").write_text(json.dumps({"version": VERSION}))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "all")

    def checked(tag: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-e", "-c", command(jobs, "check_release")],
            cwd=tmp_path,
            env=os.environ | {"GITHUB_REF_NAME": tag},
            text=True,
            capture_output=True,
        )
        assert bool(done.stderr) == bool(done.returncode)
        assert (done.stdout == f"{VERSION}\n") == (not done.returncode)
        return [line.partition(":")[0] for line in done.stderr.splitlines()]

    commit = f"this code is {VERSION}+g{git(tmp_path, 'rev-parse', 'HEAD')[:8]}"
    assert checked(TAG) == [commit, *faulty], "the tag is of no commit yet"
    git(tmp_path, "tag", TAG)
    git(tmp_path, "tag", "v9.9.9")
    assert checked(TAG) == faulty
    assert checked("v9.9.9") == ["tag v9.9.9", *faulty]
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    assert checked(TAG) == [f"{commit}.edited", *faulty]


def test_publishing_is_off_by_default(jobs: dict[str, Any]) -> None:
    """An unset repository variable is empty, and only tags start a job."""
    off = {name for name, job in jobs.items() if job.get("if") == "vars.PUBLISH == 'true'"}
    assert off == {"build"}
    needing = set(off)
    for _ in jobs:
        needing |= {name for name, job in jobs.items() if job.get("needs") in needing}
    assert needing == jobs.keys(), "a job whose needed job is skipped is skipped"
    assert not [name for name in jobs.keys() - off if "if" in jobs[name]]
    assert workflow()[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key `on` as true


def test_only_the_jobs_that_publish_may_and_none_has_a_secret(jobs: dict[str, Any]) -> None:
    assert workflow()["permissions"] == {"contents": "read"}
    assert {name: job.get("permissions") for name, job in jobs.items()} == {
        "build": None,
        "publish": {"id-token": "write"},
        "docs": {"id-token": "write", "pages": "write"},
    }
    assert {name for name, job in jobs.items() if "environment" in job} == {"publish", "docs"}
    # the publishing job runs no code of the repository
    assert not [
        step for name in ("publish", "docs") for step in jobs[name]["steps"] if "run" in step
    ]
    text = (REPOSITORY / ".github/workflows/release.yml").read_text()
    assert not re.search(r"secrets\.|://|\bindex|\.org\b|-url", text)
    used = re.findall(r"uses: (\S+)(.*)", text)
    # the tag of an action can be moved, a commit cannot
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", name) for name, _ in used)
    assert all(re.fullmatch(r" # v\d+\.\d+\.\d+", note) for _, note in used)
    of_ci = (REPOSITORY / ".github/workflows/ci.yml").read_text()
    shared = [name for name, _ in used if f"{name.partition('@')[0]}@" in of_ci]
    assert len(shared) == 2
    assert all(name in of_ci for name in shared)
