"""Names the release that a release replaces, by its digest."""

from __future__ import annotations

from pathlib import Path

from dpprobe.release.bundle import bundle_digest, read_bundle
from dpprobe.release.parts.part import Block, PartSteps


def identify_bundle(folder: Path) -> dict[str, str]:
    """Returns the `name` and `sha256` of a bundle; raises DataError unless it is complete."""
    return {"name": read_bundle(folder).facts.name, "sha256": bundle_digest(folder)}


class Steps(PartSteps):
    """Reads the predecessor's bundle."""

    def check(self) -> Block | None:
        folder = self.task.locate_predecessor()
        return None if folder is None else identify_bundle(folder)
