"""Identifies the predecessor of a release by digest, and checks the chain of predecessors.

The name and digest of a published bundle are public. A bundle's digest is the SHA-256 of its
SHA256SUMS, which covers the bundle's statement, and so the digests of all its predecessors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dpprobe.errors import DataError
from dpprobe.release.bundle import SUMS_FILE, bundle_digest, read_bundle
from dpprobe.release.checks import Checks
from dpprobe.release.parts.part import PartReader, PartSteps, Stated
from dpprobe.release.stated_values import Values, is_hash, read_block, require_true
from dpprobe.release.transport import Block


def identify_bundle(folder: Path) -> dict[str, str]:
    """Returns the `name` and `sha256` of a bundle; raises DataError unless it is complete."""
    return {"name": read_bundle(folder).facts.name, "sha256": bundle_digest(folder)}


class Steps(PartSteps):
    def check(self) -> Block | None:
        folder = self.release.locate_predecessor()
        return None if folder is None else identify_bundle(folder)


# verification and words

NAME = "predecessors"


def check_predecessors(checks: Checks, values: Values | None, folders: Sequence[Path]) -> None:
    """Checks the chain of predecessors, which are the given folders or directly inside them."""
    if folders:
        checks.run_check(NAME, _follow_chain, values, folders)
        return
    try:
        named = READER.read(values or {})
    except DataError as error:
        checks.note_check(NAME, False, str(error))
    else:
        if named is not None:
            said = (
                f"{named['name']}, which this release replaces; pass --predecessor with its folder"
            )
            checks.note_check(NAME, None, said)


def _follow_chain(values: Values, folders: Sequence[Path]) -> tuple[str, bool]:
    """Compares each predecessor's digest and name; ends, because digests cover older digests."""
    bundles = {bundle_digest(each): each for folder in folders for each in _list_bundles(folder)}
    followed: list[str] = []
    named = READER.read(values)
    require_true(
        named is not None, "you passed --predecessor, but this bundle names no predecessor"
    )
    while named is not None:
        name, digest = named["name"], named["sha256"]
        require_true(
            digest in bundles,
            f"{name}, whose {SUMS_FILE} has the SHA-256 {digest}: in none of the folders that you "
            "passed; pass --predecessor with its folder too",
        )
        read = read_bundle(bundles[digest])
        require_true(
            read.facts.name == name, f"{bundles[digest]}: is {read.facts.name}, but {name} is named"
        )
        followed.append(name)
        named = READER.read(read.statement)
    return f"{', '.join(followed)}: undamaged, with the digests that bundles name", True


def _list_bundles(folder: Path) -> list[Path]:
    """Returns a folder that is a bundle, or the bundles directly inside the folder."""
    sums = [folder / SUMS_FILE, *folder.glob(f"*/{SUMS_FILE}")]
    bundles = [path.parent for path in sums if path.is_file()]
    require_true(bool(bundles), f"{folder}: no bundle in this folder; correct --predecessor")
    return bundles


class Reader(PartReader):
    def read(self, statement: Values) -> Mapping[str, str] | None:
        """Returns the predecessor's `name` and `sha256`; None if absent, DataError if malformed."""
        if self.name not in statement:
            return None
        block = read_block(self.name, statement[self.name], {"name", "sha256"})
        name, digest = block["name"], block["sha256"]
        named = isinstance(name, str) and "/" not in name
        require_true(named, f"predecessor: {name!r} is not a name")
        require_true(is_hash(digest), f"predecessor: {digest!r} is not a SHA-256")
        return block

    def verify(self, checks: Checks, stated: Stated) -> bool | None:
        check_predecessors(checks, stated.values, stated.predecessors)
        return True


READER = Reader("predecessor")
