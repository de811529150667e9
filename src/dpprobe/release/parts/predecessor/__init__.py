"""The release part `predecessor`: names the earlier release that a release replaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpprobe.options import resolve_path
from dpprobe.release.bundle import SUMS_FILE
from dpprobe.release.parts.part import ReleasePart

if TYPE_CHECKING:
    from dpprobe.study.study_checks import WantedRelease


def list_faults(wanted: WantedRelease) -> Iterator[str]:
    before = wanted.release.predecessor
    if (
        before
        and before not in wanted.study.releases
        and not (resolve_path(before) / SUMS_FILE).is_file()
    ):
        yield (
            f"predecessor: {before} is neither another release of this study nor the folder of a "
            "bundle; correct the name or the path"
        )


PART = ReleasePart(faults=list_faults)
