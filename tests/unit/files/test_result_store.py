"""The store of finished results, to which a job's outputs link."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dpprobe.files.json_files import write_json
from dpprobe.files.plain_files import sha256_file
from dpprobe.files.result_store import (
    keep_published,
    list_unpublished,
    locate_partial,
    locate_stored,
    publish_files,
)

NAMES = ("metrics.json", "heads.safetensors")


def write_result(folder: Path, **record: Any) -> Path:
    folder.mkdir(parents=True)
    heads = folder / "heads.safetensors"
    heads.write_bytes(b"weights")
    write_json(folder / "metrics.json", {"files": {heads.name: sha256_file(heads)}, **record})
    return folder


def refuse_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("dpprobe.files.result_store.os.link", link)


@pytest.mark.parametrize("links", [True, False])
def test_outputs_are_the_stored_files_with_the_present_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    stored = write_result(locate_stored(tmp_path, "abc"), fingerprint="abc")
    for name in NAMES:
        os.utime(stored / name, (1, 1))
    target = tmp_path / "cells/d/b/m/eps-1"
    target.mkdir(parents=True)
    (target / "heads.safetensors").write_bytes(b"of an earlier cell")
    if not links:
        refuse_links(monkeypatch)
    for _ in range(2):  # an existing link to the stored file stays
        publish_files(stored, target, NAMES)
        assert sorted(path.name for path in target.iterdir()) == sorted(NAMES)
        for name in NAMES:
            assert (target / name).read_bytes() == (stored / name).read_bytes()
            assert (target / name).samefile(stored / name) == links
            assert (target / name).stat().st_mtime > 1


def test_no_file_is_replaced_if_a_stored_file_is_missing(tmp_path: Path) -> None:
    stored = write_result(locate_stored(tmp_path, "abc"))
    (stored / "metrics.json").unlink()
    target = write_result(tmp_path / "cells/d/b/m/eps-1")
    before = {name: (target / name).read_bytes() for name in NAMES}
    with pytest.raises(FileNotFoundError):
        publish_files(stored, target, NAMES)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before


@pytest.mark.parametrize("links", [True, False])
def test_published_results_are_kept_once_under_their_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        refuse_links(monkeypatch)
    cell = write_result(tmp_path / "cells/d/b/m/eps-1", fingerprint="abc")
    network = write_result(tmp_path / "other", fingerprint="abc", index=3)
    locate_partial(locate_stored(tmp_path, "abc")).mkdir(parents=True)  # left by a killed run
    for folder, name in ((cell, "abc"), (network, "abc.seed-3")):
        for _ in range(2):
            keep_published(tmp_path, folder / "metrics.json")
            stored = tmp_path / ".cells" / name
            assert sorted(path.name for path in stored.iterdir()) == sorted(NAMES)
            assert (stored / "heads.safetensors").read_bytes() == b"weights"
    assert sorted(path.name for path in (tmp_path / ".cells").iterdir()) == ["abc", "abc.seed-3"]


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[1]",
        '{"cell": "no fingerprint"}',
        '{"fingerprint": "x", "files": {"a": 1}}',
        '{"fingerprint": "../x", "files": {}}',
        '{"fingerprint": "x", "files": {"../metrics.json": 1}}',
    ],
)
def test_incomplete_or_damaged_results_are_not_added_to_the_store(
    tmp_path: Path, content: str | None
) -> None:
    record = tmp_path / "metrics.json"
    if content is not None:
        record.write_text(content)
    keep_published(tmp_path, record)
    assert not [path for path in tmp_path.glob(".cells/*") if path.name[0] != "."]


def test_unpublished_results_in_the_store_are_listed(tmp_path: Path) -> None:
    assert list_unpublished(tmp_path) == []
    former = write_result(locate_stored(tmp_path, "former"), fingerprint="former")
    write_result(locate_stored(tmp_path, "abc"), fingerprint="abc")
    write_result(locate_stored(tmp_path, "abc", index=1), fingerprint="abc", index=1)
    assert len(list_unpublished(tmp_path)) == 3
    write_result(tmp_path / "cells/d/b/m/eps-1", fingerprint="abc")
    assert [path.name for path in list_unpublished(tmp_path)] == ["abc.seed-1", "former"]
    folder = tmp_path / "networks/d/b/m/eps-1/seed-1"
    write_result(folder, fingerprint="abc", index=1)
    (folder / "metrics.json").rename(folder / "result.json")
    assert list_unpublished(tmp_path) == [former]
