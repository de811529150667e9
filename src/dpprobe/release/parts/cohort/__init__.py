"""The release part `cohort`: a chain of releases, each on new units, with running totals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpprobe.heads.joint_fits import cohort_fault
from dpprobe.release.parts.part import ReleasePart

if TYPE_CHECKING:
    from dpprobe.study.study_checks import WantedRelease


def list_faults(wanted: WantedRelease) -> Iterator[str]:
    """Yields reasons, known from the study, why a release cannot continue its chain of cohorts."""
    study, release, method = wanted.study, wanted.release, wanted.method
    if release.cohort is None:
        if release.horizon is not None:
            yield f"horizon {release.horizon}: needs `cohort`, a name for the units of the dataset"
        return
    if not method.is_undecided and (fault := cohort_fault(method)):
        yield f"cohort: method {release.method}: {fault}"
    before = release.predecessor
    while before in study.releases:
        earlier = study.releases[before]
        if earlier.cohort is None or earlier.horizon != release.horizon:
            yield (
                f"cohort: its predecessor {before} has cohort {earlier.cohort}, horizon "
                f"{earlier.horizon}; both releases need a cohort and an equal horizon"
            )
            return
        if earlier.dataset == release.dataset:
            yield (
                f"cohort: dataset {earlier.dataset} is in its chain twice; each cohort is a "
                "dataset of new units"
            )
            return
        before = earlier.predecessor


PART = ReleasePart(faults=list_faults)
