"""The version follows from the tags of a clone, alike in what is built and in what runs."""

from __future__ import annotations

import shutil
import sys
import tarfile
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpprobe import versions as module
from dpprobe.versions import UNKNOWN, clone_commit, code_version
from tests.conftest import REPOSITORY
from tests.support.git import built, git


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small clone with one commit and no tag, as the one that runs."""
    folder = tmp_path / "clone"
    (folder / "src/dpprobe").mkdir(parents=True)
    for name in (
        ".gitattributes",
        ".git_archival.txt",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "src/dpprobe/__init__.py",
    ):
        shutil.copy(REPOSITORY / name, folder / name)
    git(tmp_path, "init", "-q", str(folder))
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    monkeypatch.setattr(module, "clone_root", lambda: folder)
    return folder


def running() -> str:
    code_version.cache_clear()
    try:
        return code_version()
    finally:
        code_version.cache_clear()


def test_of_clones_with_and_without_tags(clone: Path) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    without = running()
    assert without.startswith(f"{UNKNOWN[:-1]}1+g{commit[:7]}")
    assert without == built(clone)
    for tag in ("paper-2026", "vision", "v2-draft"):  # which are no releases
        git(clone, "tag", tag)
    assert running() == built(clone) == without
    git(clone, "tag", "v1.2.0")
    assert running() == built(clone) == "1.2.0"
    (clone / "README.md").write_text("changed\n")
    assert running().startswith(f"1.2.1.dev0+g{commit[:7]}")
    git(clone, "commit", "-qam", "second")
    assert running().startswith("1.2.1.dev1+g")
    assert clone_commit() == git(clone, "rev-parse", "HEAD")


@pytest.mark.parametrize("tag", ["paper-2026", "v1.2.0"])
def test_a_copy_is_not_what_another_copy_was_installed_as(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str
) -> None:
    """As where `dpprobe run` of an installed wheel finds itself in an unpacked archive."""
    monkeypatch.setattr("importlib.metadata.version", lambda _: "5.0")
    git(clone, "tag", tag)
    git(clone, "archive", "HEAD", "-o", str(tmp_path / "archive.tar"))
    with tarfile.open(tmp_path / "archive.tar") as files:
        files.extractall(tmp_path / "copy", filter="data")
    monkeypatch.setattr(module, "clone_root", lambda: tmp_path / "copy")
    assert running() == built(tmp_path / "copy") == {"v1.2.0": "1.2.0"}.get(tag, UNKNOWN)
    monkeypatch.setitem(sys.modules, "setuptools_scm", None)
    assert running() == UNKNOWN


def test_without_a_history_it_is_what_was_installed(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_is_installed", lambda _: True)
    shutil.rmtree(clone / ".git")
    assert built(clone) == UNKNOWN
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"5.0 of {name}")
    assert running() == "5.0 of dpprobe"
    # the commit of a repository around it would be no commit of this code
    git(clone.parent, "init", "-q", ".")
    assert clone_commit() is None


@pytest.mark.parametrize(
    ("said", "installed"),
    [
        ('{"url": "file:///a%20b/c"}', True),
        ('{"url": "file:///a%20b/c/../d"}', False),
        (None, False),
        ("{}", False),
        ("{", False),
    ],
)
def test_only_an_editable_installation_is_of_its_folder(
    monkeypatch: pytest.MonkeyPatch, said: str | None, installed: bool
) -> None:
    about = SimpleNamespace(read_text=lambda _: said)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: about)
    assert module._is_installed(Path("/a b/c")) is installed


def test_no_fault_of_a_clone_ends_a_job(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "5.0")
    monkeypatch.setattr(module, "_is_installed", lambda _: True)
    (clone / ".git/HEAD").write_text("damaged")
    assert running() in ("5.0", UNKNOWN)
    monkeypatch.setitem(sys.modules, "setuptools_scm", None)
    assert running() == "5.0"


def test_the_build_has_the_same_number_where_there_is_no_tag() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["version"]["raw-options"]["fallback_version"] == UNKNOWN
