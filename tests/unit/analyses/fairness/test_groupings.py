"""Groups of test rows, and the rule by which they and labels are left out."""

from __future__ import annotations

import numpy as np
import pytest

from dpprobe.analyses.fairness import groupings
from dpprobe.analyses.fairness.comparison import make_comparisons
from dpprobe.analyses.fairness.fairness_record import (
    GROUP_METRICS,
    PARITY_RATES,
    Compared,
    Minimum,
)
from tests.support.fairness_rows import FEW, made_rows

LABELS = np.array([0, 1, 0, 1, 0, 1])


def _rows_of(enough: np.ndarray) -> groupings.TestRows:
    """Two rows for a group and label: both values where there is enough, else one."""
    labels, groups = [], []
    for group, row in enumerate(enough):
        labels += [row.astype(int), np.zeros(len(row), dtype=int)]
        groups += [f"g{group}"] * 2
    return made_rows(np.array(labels), {"site": groups})


def _compared(enough: np.ndarray) -> Compared:
    rows = _rows_of(enough)
    (site,) = groupings.make_groupings(rows, groups=None, pairs=(), minimum=FEW)
    counts = groupings.label_counts(rows, site, rows.ranked_labels)
    return groupings.choose_compared(rows, site, rows.ranked_labels, counts, FEW, negatives=True)


def test_a_label_that_most_groups_lack_goes_for_all_and_a_group_without_most_labels() -> None:
    label, group = np.ones((2, 6, 4), dtype=bool)
    label[:4, 2] = group[5, 1:] = False
    assert _compared(label) == Compared(labels=("a", "b", "d"), left_out={})
    left_out = {"g5": "0 rows with b, 1 needed"}
    assert _compared(group) == Compared(labels=("a", "b", "c", "d"), left_out=left_out)


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_compared_over_labels_that_each_has_enough_of(seed: int) -> None:
    enough = np.random.default_rng(seed).random((7, 5)) < 0.8
    result = _compared(enough)
    kept = [group for group in range(7) if f"g{group}" not in result.left_out]
    labels = ["abcde".index(label) for label in result.labels]
    assert enough[np.ix_(kept, labels)].all()
    assert len(kept) * len(labels) > 0


def test_a_column_called_class_is_no_class() -> None:
    rows = made_rows(LABELS, {"class": ["first", "second", "second"] * 2})
    (column,) = groupings.make_groupings(rows, groups=("class",), pairs=(), minimum=FEW)
    assert (column.attribute, column.names) == ("class", ("first", "second"))
    metrics = [item.metric for item in make_comparisons(rows, column, FEW, seed=0)]
    assert metrics == [*GROUP_METRICS, *PARITY_RATES]


def test_a_label_with_exactly_as_many_patients_as_needed_is_compared() -> None:
    rows = made_rows(np.array([[1, 1, 0, 0, 0, 1, 0]]).T, units=np.array([0, 1, 2, 3, 4, 1, 4]))
    for positives, negatives, words in (
        (2, 3, ""),
        (3, 3, "2 patients with a, 3 needed"),
        (2, 4, "3 patients without a, 4 needed"),
    ):
        least = Minimum(units=1, positives=positives, negatives=negatives)
        (classes,) = groupings.make_groupings(rows, groups=("class",), pairs=(), minimum=least)
        assert classes.left_out == ({"a": words} if words else {})
