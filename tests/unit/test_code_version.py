"""The version is a number for the tagged commit, and includes the commit for all other code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.version import Version

from dpprobe import code_version as module
from dpprobe.code_version import clone_commit, code_version, git_commit
from dpprobe.version_number import TAG, UNKNOWN, VERSION, name_code
from tests.conftest import REPOSITORY
from tests.support.git import built, git


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a small clone with one commit and no tag, as the clone of the running code."""
    folder = tmp_path / "clone"
    (folder / "src/dpprobe").mkdir(parents=True)
    for name in (
        ".gitattributes",
        ".git_archival.txt",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "src/dpprobe/__init__.py",
        "src/dpprobe/version_number.py",
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


def install_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the installed dpprobe appear as an editable installation of a folder."""
    origin = SimpleNamespace(read_text=lambda _: json.dumps({"url": folder.as_uri()}))
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: origin)


def commit_of(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD")[:8]


def test_only_the_unedited_commit_of_the_tag_is_the_release(clone: Path) -> None:
    first = f"{VERSION}+g{commit_of(clone)}"
    assert running() == built(clone) == first
    for tag in ("paper-2026", "v99.0.0", f"{TAG}-draft", TAG[1:]):  # not this release's tag
        git(clone, "tag", tag)
    assert running() == built(clone) == first
    (clone / "new.txt").write_text("no file of the commit\n")
    git(clone, "tag", TAG)
    assert running() == built(clone) == VERSION
    (clone / "README.md").write_text("changed\n")
    assert running() == built(clone) == f"{first}.edited"
    git(clone, "commit", "-qam", "second")
    second = f"{VERSION}+g{commit_of(clone)}"
    assert running() == built(clone) == second != first
    assert clone_commit() == git(clone, "rev-parse", "HEAD")
    (clone / "LICENSE").unlink()
    assert running() == f"{second}.edited"


def test_an_annotated_tag_is_the_release_too(clone: Path) -> None:
    git(clone, "tag", "-a", TAG, "-m", "a release")
    assert running() == VERSION


def test_other_code_never_has_the_number_of_the_release() -> None:
    """Each name is a normalised PEP 440 version, so builds do not change it."""
    named = [UNKNOWN, f"{VERSION}+g0012abcd", f"{VERSION}+g429d023c.edited"]
    assert all(str(Version(name)) == name and Version(name).local for name in named)
    assert str(Version(VERSION)) == VERSION
    assert Version(VERSION).local is None


def test_a_worktree_and_a_hook_of_another_repository(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    git(clone, "worktree", "add", "-q", str(tree))
    git(tree, "commit", "-qm", "of the worktree", "--allow-empty")
    of_clone, of_tree = (f"{VERSION}+g{commit_of(folder)}" for folder in (clone, tree))
    assert of_clone != of_tree
    assert name_code(tree) == of_tree
    for name, place in (("DIR", ".git"), ("INDEX_FILE", ".git/index"), ("WORK_TREE", ".")):
        monkeypatch.setenv(f"GIT_{name}", str(tree / place))
    assert name_code(clone) == of_clone


@pytest.mark.parametrize("tag", [None, "paper-2026", TAG])
def test_a_copy_is_not_what_another_copy_was_installed_as(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str | None
) -> None:
    """For example, `dpprobe run` of an installed wheel may use the code of an unpacked archive."""
    monkeypatch.setattr("importlib.metadata.version", lambda _: "5.0")
    if tag:
        git(clone, "tag", tag)
    git(clone, "archive", "HEAD", "-o", str(tmp_path / "archive.tar"))
    with tarfile.open(tmp_path / "archive.tar") as files:
        files.extractall(tmp_path / "copy", filter="data")
    monkeypatch.setattr(module, "clone_root", lambda: tmp_path / "copy")
    expected = VERSION if tag == TAG else f"{VERSION}+g{commit_of(clone)}"
    assert running() == built(tmp_path / "copy") == expected


def test_without_a_history_it_is_what_was_installed(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(clone / ".git")
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"5.0 of {name}")
    assert running() == built(clone) == UNKNOWN
    install_from(clone, monkeypatch)
    assert running() == "5.0 of dpprobe"
    # the commit of a surrounding repository is not a commit of this code
    git(clone.parent, "init", "-q", ".")
    git(clone.parent, "commit", "-qm", "of a user", "--allow-empty")
    git(clone.parent, "tag", TAG)
    assert clone_commit() is None
    assert name_code(clone) == UNKNOWN


def test_no_fault_of_a_clone_ends_a_job(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installed version is not used, as it may be of an earlier commit of this clone."""
    git(clone, "tag", TAG)
    monkeypatch.setattr("importlib.metadata.version", lambda _: VERSION)
    install_from(clone, monkeypatch)
    with monkeypatch.context() as context:
        context.setenv("PATH", str(tmp_path))  # without git
        assert running() == UNKNOWN
    assert running() == VERSION
    git(tmp_path, "init", "-q", ".")  # a user's repository around the clone
    git(tmp_path, "commit", "-qm", "other", "--allow-empty")
    (clone / ".git/HEAD").write_text("damaged")
    assert running() == UNKNOWN


@pytest.mark.parametrize("text", [None, "", "commit\n", "commit: \ntag: \n", b"\xff"])
def test_no_fault_of_an_archive_ends_a_job(tmp_path: Path, text: str | bytes | None) -> None:
    if text is not None:
        content = text if isinstance(text, bytes) else text.encode()
        (tmp_path / ".git_archival.txt").write_bytes(content)
    assert name_code(tmp_path) == UNKNOWN


def test_the_commit_says_when_files_differ(tmp_path: Path) -> None:
    assert git_commit(tmp_path / "nowhere") is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "file").write_text("1")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    (tmp_path / "untracked").touch()
    commit = git_commit(tmp_path)
    assert commit is not None
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (tmp_path / "file").write_text("2")
    assert git_commit(tmp_path) == f"{commit} with local changes"


def test_a_machine_without_git_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(tmp_path) is None
