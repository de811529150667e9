"""The predecessor of a release: the release that it replaces, named in privacy.json by its digest.

Name and digest of a published bundle are public. The digest is of SHA256SUMS, which covers the
predecessor's own statement and so the whole chain before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpprobe.release.bundle import bundle_digest, read_bundle
from dpprobe.release.verification.stated import is_hash, read_block, require_true


def identify_bundle(folder: Path) -> dict[str, str]:
    """Returns the `name` and `sha256` of a bundle; raises DataError unless it is complete."""
    return {"name": read_bundle(folder).facts.name, "sha256": bundle_digest(folder)}


def named_predecessor(statement: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Returns the `name` and `sha256` of a predecessor, None without one; else raises DataError."""
    if "predecessor" not in statement:
        return None
    block = read_block("predecessor", statement["predecessor"], {"name", "sha256"})
    name, digest = block["name"], block["sha256"]
    require_true(isinstance(name, str) and "/" not in name, f"predecessor: {name!r} is not a name")
    require_true(is_hash(digest), f"predecessor: {digest!r} is not a SHA-256")
    return block
