"""Files are whole or absent."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dpprobe import artifacts
from dpprobe.artifacts import (
    atomic_path,
    canonical_json,
    git_commit,
    hash_arrays,
    hash_value,
    pack_arrays,
    read_arrays,
    write_json,
    write_private,
)


def write_half(path: Path) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text("half")
        raise TypeError("something went wrong in the middle")


def test_a_failed_write_keeps_the_earlier_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"value": 1})
    before = path.read_text()
    with pytest.raises(TypeError):
        write_half(path)
    assert path.read_text() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_failed_first_write_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"value": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "new/a.json", []
    monkeypatch.setattr(
        artifacts, "flush_to_disk", lambda flushed: seen.append((flushed.suffix, path.exists()))
    )
    write_json(path, {"value": 1})
    assert seen == [(".partial", False), ("", True)]
    synced: list[int] = []
    monkeypatch.undo()
    monkeypatch.setattr("os.fsync", synced.append)
    write_private(path, b"x")
    assert len(synced) == 2
    assert path.stat().st_mode & 0o777 == 0o600


def test_equal_values_have_equal_fingerprints() -> None:
    assert hash_value({"a": 1, "b": [0.5]}) == hash_value({"b": [0.5], "a": 1})
    assert hash_value({"a": 1}) != hash_value({"a": 2})
    assert canonical_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'
    first, second = np.arange(6), np.ones(6)
    alike: list[dict[str, np.ndarray]] = [{"a": first, "b": second}, {"b": second, "a": first}]
    others: list[dict[str, np.ndarray]] = [
        {"a": second, "b": first}, {"a": first.astype(np.int32), "b": second},
        {"a": first.reshape(2, 3), "b": second}, {"a": first},
    ]  # fmt: skip
    assert len({hash_arrays(arrays) for arrays in alike}) == 1
    assert len({hash_arrays(arrays) for arrays in [*alike, *others]}) == 5


def test_the_commit_says_when_files_differ(tmp_path: Path) -> None:
    assert git_commit(tmp_path / "nowhere") is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "file").write_text("1")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    commit = git_commit(tmp_path)
    assert commit is not None
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (tmp_path / "file").write_text("2")
    assert git_commit(tmp_path) == f"{commit} with local changes"


WHOLE = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("array", [WHOLE.T, WHOLE[:, ::2], WHOLE[::-1], WHOLE[:0], WHOLE[0]])
def test_views_of_arrays_are_packed_by_their_numbers(tmp_path: Path, array: np.ndarray) -> None:
    (tmp_path / "a").write_bytes(pack_arrays({"a": array}, {"format": "f"}))
    _, arrays = read_arrays(tmp_path / "a", kind="f", version=1)
    assert np.array_equal(arrays["a"], array)
