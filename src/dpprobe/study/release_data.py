"""Determines the delta of a release, and explains why a delta is too large."""

from __future__ import annotations

from dpprobe.privacy.limits import delta_fault, delta_warning
from dpprobe.study.study import Study


def release_delta(study: Study, release: str) -> float:
    """Returns a release's delta, by default its dataset's."""
    options = study.releases[release]
    return study.dataset_delta(options.dataset) if options.delta is None else options.delta


def release_delta_fault(study: Study, release: str, n: int) -> str | None:
    """Returns an error if the delta of a release, or of the limit on releases, is above 1 / n.

    No option allows a release's delta above 1 / n. A limit uses the dataset's delta, even if a
    release has another delta.
    """
    dataset = study.releases[release].dataset
    unit = study.dataset_unit(dataset)
    if fault := delta_fault(release_delta(study, release), n, unit=unit):
        return fault
    fault = delta_fault(study.dataset_delta(dataset), n, unit=unit)
    limits = {"max_epsilon": study.max_epsilon(dataset), "max_risk": study.max_risk}
    for name, limit in limits.items():
        if fault is not None and limit is not None:
            return f"privacy.{name} of {dataset} uses the dataset's delta: {fault}"
    return None


def release_delta_warning(study: Study, release: str, n: int) -> str | None:
    """Returns the warning for a release's delta above 0.1 / n; None for a smaller delta."""
    unit = study.dataset_unit(study.releases[release].dataset)
    return delta_warning(release_delta(study, release), n, unit=unit)
