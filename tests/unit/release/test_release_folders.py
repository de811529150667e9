"""Folders of a release: bundles that no entry lists, and interrupted copies."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from dpprobe.errors import PrivacyError
from dpprobe.release.bundle import bundle_digest
from dpprobe.release.release_folders import ReleaseFolders, list_noted, note_releases
from tests.support.refusals import check_tokens, refusal_of, refuses


@pytest.mark.parametrize("unlisted", [None, "b", "z"])
def test_a_bundle_that_no_entry_lists_is_found_among_others(
    tmp_path: Path, unlisted: str | None
) -> None:
    """Other folders are bundles of other data, or no bundles."""
    known = []
    for name, facts in {
        "a": "[]",
        "c": "{",
        "d": None,
        "e": '{"dataset": "other"}',
        "f": '{"dataset": "toy"}',
        "b": '{"dataset": "toy"}',
        "z": '{"dataset": "toy"}',
        ".open.entry-1.staged": '{"dataset": "toy"}',  # its entry is not closed yet
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "SHA256SUMS").write_text(name)
        if facts is not None:
            (tmp_path / name / "bundle.json").write_text(facts)
        if name not in (unlisted, ".open.entry-1.staged"):
            known.append(SimpleNamespace(digest=bundle_digest(tmp_path / name)))
    folders = ReleaseFolders("first", tmp_path / "first", tmp_path / "ledger.jsonl")
    waiting = SimpleNamespace(digest=None, number=1, booking=SimpleNamespace(release="open"))
    entries: Any = [waiting, *known]
    said = refusal_of(folders.check_listed, "toy", entries)
    assert (said is None) == (unlisted is None)
    if unlisted:
        check_tokens(str(said), tmp_path / unlisted, "toy", "ledger")


def test_the_file_that_marks_a_bundle_is_copied_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy may be interrupted, and a folder with this file counts as complete."""
    (tmp_path / "staged").mkdir()
    for name in ("heads.safetensors", "SHA256SUMS", "A", "statement.json"):
        (tmp_path / "staged" / name).write_text(name)
    copy = Mock(side_effect=shutil.copyfile)
    monkeypatch.setattr("dpprobe.release.release_folders.shutil.copyfile", copy)
    folders = ReleaseFolders("first", tmp_path / "first", tmp_path / "ledger.jsonl")
    folders.publish(tmp_path / "staged")
    assert copy.call_count == 4
    assert copy.call_args.args[0].name == "SHA256SUMS"


def test_a_publication_completes_a_bundle_and_alters_no_file(tmp_path: Path) -> None:
    staged, output = tmp_path / "staged", tmp_path / "first"
    staged.mkdir()
    for name in ("A", "B", "SHA256SUMS"):
        (staged / name).write_text(f"whole {name}")
    folders = ReleaseFolders("first", output, tmp_path / "ledger.jsonl")
    output.mkdir()
    (output / "A").write_text("whole A")
    (output / ".B.123.partial").write_text("wh")  # left by an interrupted copy
    folders.publish(staged)
    assert {path.name for path in output.iterdir()} == {"A", "B", "SHA256SUMS"}
    assert all(path.read_text() == f"whole {path.name}" for path in output.iterdir())
    for name in ("A", "more"):
        (output / name).write_text("another")
        with refuses(PrivacyError, output / name, "release first"):
            folders.publish(staged)
        assert (output / name).read_text() == "another"
        (output / name).unlink()


def test_hidden_folders_are_of_one_entry_and_dropped_with_it(tmp_path: Path) -> None:
    folders = ReleaseFolders("first", tmp_path / "first", tmp_path / "ledger.jsonl")
    entries: Any = [SimpleNamespace(number=number, digest="d") for number in (1, 12)]
    made = [place(entry) for entry in entries for place in (folders.staged, folders.partial)]
    assert len({*made}) == 4
    for path in made:
        assert path.name.startswith(".")
        path.mkdir()
    folders.drop(entries[0])
    assert [path.exists() for path in made] == [False, False, True, True]
    folders.drop(entries[0])


def test_each_folder_of_bundles_is_recorded_once(tmp_path: Path) -> None:
    """Names may have a line break, and the last line may be cut off by a full disk."""
    odd = tmp_path / "else\nwhere"
    for dataset, folder in (("a", odd), ("b", tmp_path), ("a", odd), ("a", tmp_path / "x/../r")):
        note_releases(tmp_path / "data" / dataset / "ledger.jsonl", folder)
    path = tmp_path / "data/a/release-folders.jsonl"
    with path.open("a") as file:
        file.write('"/cut')
    assert list_noted(tmp_path / "data") == [("a", odd), ("a", tmp_path / "r"), ("b", tmp_path)]
    assert list_noted(tmp_path / "none") == []
