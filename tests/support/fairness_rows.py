"""Test rows with groups, and heads on these rows, as the fairness comparison reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpprobe.analyses.fairness.comparison import Comparison, make_comparisons
from dpprobe.analyses.fairness.fairness_record import Minimum
from dpprobe.analyses.fairness.group_metrics import Head
from dpprobe.analyses.fairness.groupings import TestRows, make_groupings
from dpprobe.results.metrics import Link

FEW = Minimum(units=2, positives=1, negatives=1)


def made_rows(
    labels: np.ndarray,
    groups: Mapping[str, Sequence[Any]] | None = None,
    *,
    units: np.ndarray | None = None,
    classes: int | None = None,
) -> TestRows:
    """Returns rows whose classes are named a, b, c, ..."""
    several = labels.ndim == 2
    count = labels.shape[1] if several else classes or int(labels.max()) + 1
    return TestRows(
        labels=labels.astype(bool) if several else labels,
        class_names=tuple("abcdefghijklmn"[:count]),
        units=np.arange(len(labels)) if units is None else units,
        named_units=units is not None,
        groups={f"group_{name}": values for name, values in (groups or {}).items()},
    )


def compare(rows: TestRows, metric: str, *, minimum: Minimum = FEW) -> Comparison:
    """Returns the comparison of the first attribute in one metric."""
    grouping, *_ = make_groupings(rows, groups=None, pairs=(), minimum=minimum)
    made = make_comparisons(rows, grouping, minimum, seed=0)
    return next(item for item in made if item.metric == metric)


def head(rows: TestRows, scores: np.ndarray, link: Link | None = None) -> Head:
    """Returns a head with these logits."""
    return Head(
        rows=rows, scores=scores, link=link or ("sigmoid" if rows.multi_label else "softmax")
    )
