"""A chain of predecessors is followed to its end, by digests; what is not passed is said."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import DataError
from dpprobe.release.bundle import STATEMENT_FILE, write_sums
from dpprobe.release.checks import Check
from dpprobe.release.parts.predecessor.measure import NAME, READER
from dpprobe.release.verification.verify import verify_bundle
from tests.support.bundles import write_example
from tests.support.edited_bundles import edit_file


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three releases, each of which replaces the one before."""
    place = tmp_path_factory.mktemp("chain")
    bundles: list[Path] = []
    for name in ("v1", "v2", "v3"):
        before = bundles[-1] if bundles else None
        bundles.append(write_example(place / name, name=name, predecessor=before))
    return bundles


def check(bundle: Path, *folders: Path) -> Check | None:
    """The check of a bundle's chain; None if there is nothing to be said."""
    checks = verify_bundle(bundle, predecessors=folders).checks
    return next((each for each in checks if each.name == NAME), None)


def fault(bundle: Path, *folders: Path) -> str:
    found = check(bundle, *folders)
    assert found is not None
    assert found.passed is False
    return found.detail


def test_a_chain_is_followed_to_its_end(chain: list[Path]) -> None:
    first, second, third = chain
    for folders in ([first, second], [second, first], [first.parent], [second, first.parent]):
        found = check(third, *folders)
        assert found == Check(
            "predecessors", True, "v2, v1: undamaged, with the digests that bundles name"
        )


def test_without_folders_it_says_that_nobody_looked(chain: list[Path]) -> None:
    found = check(chain[2])
    assert found is not None
    assert found.passed is None
    assert found.detail.startswith("v2, which this release replaces; pass --predecessor")
    assert check(chain[0]) is None


def test_what_is_missing_or_no_part_of_the_chain_fails(chain: list[Path], tmp_path: Path) -> None:
    first, second, third = chain
    assert fault(third, second).startswith("v1, whose SHA256SUMS has the SHA-256")
    assert fault(third, first).startswith("v2, whose SHA256SUMS has the SHA-256")
    assert "this bundle names no predecessor" in fault(first, second)
    assert "no bundle in this folder" in fault(third, tmp_path)


def test_a_damaged_or_exchanged_predecessor_fails(chain: list[Path], tmp_path: Path) -> None:
    first, second, third = chain
    copy = Path(shutil.copytree(second, tmp_path / "v2"))
    (copy / "README.md").write_text("another promise")
    assert "README.md: missing, or changed" in fault(third, copy, first)
    write_sums(copy)
    assert fault(third, copy, first).startswith("v2, whose SHA256SUMS has the SHA-256")
    shutil.copytree(third, tmp_path / "v3")
    edit_file(tmp_path / "v3", STATEMENT_FILE, lambda v: v["predecessor"].update(name="other"))
    assert "is v2, but other is named" in fault(tmp_path / "v3", first.parent)
    edit_file(tmp_path / "v3", STATEMENT_FILE, lambda v: v["predecessor"].update(name="../v2"))
    for folders in ([], [first.parent]):
        assert "is not a name" in fault(tmp_path / "v3", *folders)
    wrong: list[Any] = [None, {}, ""]
    for empty in wrong:
        edit_file(tmp_path / "v3", STATEMENT_FILE, partial(dict.update, predecessor=empty))
        assert "names no predecessor" not in fault(tmp_path / "v3", first.parent)


@pytest.mark.parametrize(
    ("name", "digest", "fault"),
    [
        ("a", "ab" * 32, None),
        ("a", "AB" * 32, "'AB.*is not a SHA-256"),
        ("a", "ab" * 31, "is not a SHA-256"),
        ("a", None, "None is not a SHA-256"),
        ("a/b", "ab" * 32, "'a/b' is not a name"),
        (3, "ab" * 32, "3 is not a name"),
    ],
)
def test_a_predecessor_is_a_name_and_a_sha_256(name: Any, digest: Any, fault: str | None) -> None:
    block = {"name": name, "sha256": digest}
    if fault is None:
        assert READER.read({"predecessor": block}) == block
        assert READER.read({}) is None
        return
    with pytest.raises(DataError, match=f"predecessor: .*{fault}"):
        READER.read({"predecessor": block})
