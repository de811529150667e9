"""The part `sites`: several sites train one head, and no site sends an image or an exact sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpprobe.heads.auto import is_undecided
from dpprobe.heads.joint_fits import sites_fault
from dpprobe.release.parts.part import ReleasePart
from dpprobe.release.parts.sites.options import SitesOptions

if TYPE_CHECKING:
    from dpprobe.study.study_checks import WantedRelease


def list_faults(wanted: WantedRelease) -> Iterator[str]:
    """Yields why several sites cannot make this release together."""
    release, method = wanted.release, wanted.method
    if release.block(SitesOptions) is None:
        return
    if release.cohort is not None:
        yield "sites: not possible with `cohort`; remove one of the two"
    if not is_undecided(method) and (fault := sites_fault(method)):
        yield f"sites: method {release.method}: {fault}"


PART = ReleasePart(
    name="sites",
    key="sites",
    options=SitesOptions,
    describe="Train one head with other sites; the dataset has the rows of this site alone.",
    faults=list_faults,
)
