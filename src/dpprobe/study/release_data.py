"""Returns the facts that a release states of its dataset; refuses unfit splits and deltas."""

from __future__ import annotations

from typing import Any

from dpprobe.data.options import DatasetOptions
from dpprobe.privacy.limits import delta_fault
from dpprobe.study.study import Study


def split_fault(dataset: DatasetOptions) -> str | None:
    """Explains why a release cannot use a dataset's split or subsample, with the remedy."""
    part = dataset.subsample
    if part is None or part.fraction is not None:
        return dataset.public_split().fault
    fault = "per_class ranks the units of a class, so one unit can decide whether another is kept"
    if part.fractions:
        fault = (
            "fractions chooses rows by class, so the public number of rows n would reveal labels"
        )
    return f"subsample: {fault}; write fraction, one number for all classes"


def public_subsample(dataset: DatasetOptions) -> dict[str, Any] | None:
    """Returns the public rule that selected training rows by name alone; None without a rule."""
    part = dataset.subsample
    if part is None or part.fraction is None:
        return None
    return {"fraction": part.fraction, "public_seed": part.seed}


def release_delta(study: Study, release: str) -> float:
    """Returns a release's delta, by default its dataset's."""
    options = study.releases[release]
    return study.dataset_delta(options.dataset) if options.delta is None else options.delta


def release_delta_fault(study: Study, release: str, n: int) -> str | None:
    """Returns the error if the delta of a release, or of a limit on releases, is above 1 / n.

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
