"""Warns of datasets that are too small for an epsilon, if their sizes are known beforehand."""

from __future__ import annotations

from collections.abc import Collection

from dpprobe.data.dataset_sizes import count_used_rows
from dpprobe.planner.plan_text import too_few_warning
from dpprobe.privacy.limits import INFINITE
from dpprobe.privacy.risk import nominal_epsilon
from dpprobe.study.study import Study
from dpprobe.study.study_checks import count_units


def few_rows_warnings(study: Study, dimensions: Collection[int | None]) -> list[str]:
    """Warns, at most once per dataset, of epsilons at which heads may not beat the majority class.

    Args:
      dimensions: number of features of each backbone, None if unknown. The smallest dimension is
        used, because fewer features need fewer rows.
    """
    budgets = [token for token in study.job_epsilons() if token != INFINITE]
    if not budgets or not any(method.private for method in study.methods.values()):
        return []
    known = [dimension for dimension in dimensions if dimension is not None]
    fewest = min(known) if known and len(known) == len(dimensions) else None
    warnings = []
    for name, dataset in study.datasets.items():
        sizes = None if dataset.multi_label() else _dataset_sizes(study, name)
        if sizes is None:
            continue
        n, classes = sizes
        warning = too_few_warning(
            n=n,
            classes=classes,
            dimension=fewest,
            epsilons=[nominal_epsilon(token, study.dataset_delta(name)) for token in budgets],
            delta=study.dataset_delta(name),
            unit=study.dataset_unit(name),
        )
        if warning:
            warnings.append(f"datasets.{name}: {warning}")
    return warnings


def _dataset_sizes(study: Study, name: str) -> tuple[int, int] | None:
    """Returns a dataset's units and classes; None if unknown or out of range."""
    dataset = study.datasets[name]
    n = count_units(study, name, count_used_rows(dataset))
    classes = dataset.count_classes()
    if n is None or classes is None or not 2 <= classes <= n:
        return None
    return n, classes
