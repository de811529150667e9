"""States, books and refuses for releases, from a dataset's options alone."""

from __future__ import annotations

from typing import Any

from dpprobe.data.options import DatasetOptions
from dpprobe.data.subsample import Subsample


def split_fault(dataset: DatasetOptions) -> str | None:
    """Explains why a release cannot use a dataset's split or its part, with the remedy."""
    return _subsample_fault(dataset.subsample) or dataset.public_split().fault


def _subsample_fault(subsample: Subsample | None) -> str | None:
    if subsample is None or subsample.fraction is not None:
        return None
    fault = "per_class ranks the units of a class, so one unit can decide whether another is kept"
    if subsample.fractions:
        fault = (
            "fractions chooses rows by class, so the public number of rows n would reveal labels"
        )
    return f"subsample: {fault}; write fraction, one number for all classes"


def public_subsample(dataset: DatasetOptions) -> dict[str, Any] | None:
    """Returns the public rule that chose training rows only by name; None without a rule."""
    part = dataset.subsample
    if part is None or part.fraction is None:
        return None
    return {"fraction": part.fraction, "public_seed": part.seed}
