"""What decides the variance of a comparison's values, and which metrics an attribute has."""

from __future__ import annotations

import numpy as np
import pytest

from dpprobe.analyses.fairness.comparison import make_comparisons
from dpprobe.analyses.fairness.fairness_record import GROUP_METRICS, PARITY_RATES
from dpprobe.analyses.fairness.groupings import TestRows, make_groupings
from tests.support.fairness_rows import FEW, compare, made_rows

# Group x: 2 patients with the label, 3 without; y: 4 with, 1 without; one patient has both in y.
HAS = [1, 1, 0, 0, 0, 1, 1, 1, 1, 0]
SITES = ["x"] * 5 + ["y"] * 5
UNITS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]


def two_sites() -> TestRows:
    return made_rows(np.array(HAS)[:, None], {"site": SITES}, units=np.array(UNITS))


@pytest.mark.parametrize(
    ("metric", "units", "positives"),
    [
        ("accuracy", [[5], [4]], None),
        ("calibration_error", [[5], [4]], None),
        ("demographic_parity", [[5], [4]], None),
        ("recall", [[2], [4]], [[2], [4]]),
        # an AUC varies with the fewer of both
        ("auc", [[2], [1]], [[2], [4]]),
        # of rates of both, one column each
        ("equalised_odds", [[2, 3], [4, 1]], [[2, 2], [4, 4]]),
    ],
)
def test_a_value_varies_with_the_patients_that_it_is_of(
    metric: str, units: list[list[int]], positives: list[list[int]] | None
) -> None:
    comparison = compare(two_sites(), metric)
    assert comparison.units.tolist() == units
    found = comparison.positives
    assert (None if found is None else found.tolist()) == positives
    assert comparison.kept == [0, 1]
    counted = comparison.count_units()
    assert counted == pytest.approx(np.array(units).T)


@pytest.mark.parametrize(
    ("metric", "units"),
    # labels a and b: 6 and 3 of 9 patients have them, 4 and 6 lack them in some row
    [("accuracy", [[9], [9]]), ("recall", [[6], [3]]), ("auc", [[4], [3]])],
)
def test_a_label_as_a_group_varies_with_all_patients_or_with_those_who_have_or_lack_it(
    metric: str, units: list[list[int]]
) -> None:
    has = np.stack([HAS, [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]], axis=1)
    has[0, 1] = 1
    rows = made_rows(has, units=np.array(UNITS))
    assert compare(rows, metric).units.tolist() == units


def metrics_of(rows: TestRows, *groups: str) -> list[str]:
    (grouping,) = make_groupings(rows, groups=groups, pairs=(), minimum=FEW)
    return [item.metric for item in make_comparisons(rows, grouping, FEW, seed=0)]


@pytest.mark.parametrize(
    ("labels", "of_columns", "of_classes"),
    [
        (np.arange(10) % 2, [*GROUP_METRICS, *PARITY_RATES], ["accuracy", "calibration_error"]),
        # no AUC of more than two classes
        (
            np.arange(12) % 3,
            ["accuracy", "recall", "calibration_error", *PARITY_RATES],
            ["accuracy", "calibration_error"],
        ),
        # labels as groups have no calibration error of their own
        (
            np.eye(2, dtype=np.int64)[np.arange(10) % 2],
            [*GROUP_METRICS, *PARITY_RATES],
            ["auc", "accuracy", "recall"],
        ),
    ],
)
def test_an_attribute_has_the_metrics_that_are_defined_for_its_groups(
    labels: np.ndarray, of_columns: list[str], of_classes: list[str]
) -> None:
    rows = made_rows(labels, {"site": ["x", "y"] * (len(labels) // 2)})
    assert metrics_of(rows, "site") == of_columns
    assert metrics_of(rows, "class") == of_classes


def test_groups_that_are_kept_alike_are_shuffled_alike() -> None:
    """All metrics see the same random groups; one group, or labels, cannot be shuffled."""
    rows = two_sites()
    ways = [compare(rows, metric).ways for metric in ("accuracy", "recall", "auc")]
    assert all(each is not None for each in ways)
    assert np.array_equal(ways[0], ways[1])  # type: ignore[arg-type]
    alone = made_rows(np.array(HAS)[:, None], {"site": ["x"] * 10})
    assert compare(alone, "accuracy").ways is None
    (labels,) = make_groupings(rows, groups=("class",), pairs=(), minimum=FEW)
    assert all(item.ways is None for item in make_comparisons(rows, labels, FEW, seed=0))
