"""A chain of predecessors is followed to its end by digests; missing folders are reported."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import DataError
from dpprobe.release.bundle import STATEMENT_FILE, bundle_digest, write_sums
from dpprobe.release.checks import Check
from dpprobe.release.parts.predecessor.measure import NAME, READER
from dpprobe.release.verification.verify import verify_bundle
from tests.support.bundles import write_example
from tests.support.edited_bundles import edit_file
from tests.support.refusals import check_tokens, refuses


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Makes three releases, each replacing the one before."""
    place = tmp_path_factory.mktemp("chain")
    bundles: list[Path] = []
    for name in ("v1", "v2", "v3"):
        before = bundles[-1] if bundles else None
        bundles.append(write_example(place / name, name=name, predecessor=before))
    return bundles


def check(bundle: Path, *folders: Path) -> Check | None:
    """Returns the check of a bundle's chain, or None if the bundle has none."""
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
        assert found is not None
        assert (found.name, found.passed) == ("predecessors", True)
        check_tokens(found.detail, "v2, v1")


def test_an_unsearched_chain_is_stated(chain: list[Path]) -> None:
    found = check(chain[2])
    assert found is not None
    assert found.passed is None
    check_tokens(found.detail, "v2", "--predecessor")
    assert check(chain[0]) is None


def test_missing_and_foreign_releases_of_a_chain_fail(chain: list[Path], tmp_path: Path) -> None:
    first, second, third = chain
    for given, missing in ((second, first), (first, second)):
        digest = bundle_digest(missing)
        check_tokens(fault(third, given), missing.name, "SHA256SUMS", digest, "--predecessor")
    check_tokens(fault(first, second), "--predecessor", "predecessor")
    check_tokens(fault(third, tmp_path), tmp_path, "--predecessor")


def test_a_damaged_or_exchanged_predecessor_fails(chain: list[Path], tmp_path: Path) -> None:
    first, second, third = chain
    copy = Path(shutil.copytree(second, tmp_path / "v2"))
    (copy / "README.md").write_text("another promise")
    check_tokens(fault(third, copy, first), "README.md")
    write_sums(copy)
    check_tokens(fault(third, copy, first), "v2", bundle_digest(second), "--predecessor")
    shutil.copytree(third, tmp_path / "v3")
    edit_file(tmp_path / "v3", STATEMENT_FILE, lambda v: v["predecessor"].update(name="other"))
    check_tokens(fault(tmp_path / "v3", first.parent), "v2", "other")
    edit_file(tmp_path / "v3", STATEMENT_FILE, lambda v: v["predecessor"].update(name="../v2"))
    for folders in ([], [first.parent]):
        check_tokens(fault(tmp_path / "v3", *folders), "predecessor", "'../v2'")
    wrong: list[Any] = [{}, ""]
    for empty in wrong:
        edit_file(tmp_path / "v3", STATEMENT_FILE, partial(dict.update, predecessor=empty))
        check_tokens(fault(tmp_path / "v3", first.parent), "predecessor", "['name', 'sha256']")
    edit_file(tmp_path / "v3", STATEMENT_FILE, partial(dict.update, predecessor=None))
    checks = verify_bundle(tmp_path / "v3", predecessors=[first.parent]).checks
    (found,) = [each for each in checks if each.name == "statement"]
    assert found.passed is False
    check_tokens(found.detail, "predecessor")


@pytest.mark.parametrize(
    ("name", "digest", "fault"),
    [
        ("a", "ab" * 32, ...),
        ("a", "AB" * 32, repr("AB" * 32)),
        ("a", "ab" * 31, repr("ab" * 31)),
        ("a", None, None),
        ("a/b", "ab" * 32, "'a/b'"),
        (3, "ab" * 32, 3),
    ],
)
def test_a_predecessor_is_a_name_and_a_sha_256(name: Any, digest: Any, fault: object) -> None:
    block = {"name": name, "sha256": digest}
    if fault is ...:
        assert READER.read({"predecessor": block}) == block
        assert READER.read({}) is None
        return
    with refuses(DataError, "predecessor", fault):
        READER.read({"predecessor": block})
