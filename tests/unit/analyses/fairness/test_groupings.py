"""Groups of test rows, and the rule by which they and labels are left out."""

from __future__ import annotations

import numpy as np
import pytest

from dpprobe.analyses.fairness.comparison import make_comparisons
from dpprobe.analyses.fairness.fairness_record import Compared, Minimum
from dpprobe.analyses.fairness.groupings import (
    TestRows,
    choose_compared,
    kept_groups,
    label_counts,
    make_groupings,
)
from dpprobe.errors import DataError
from tests.support.fairness_rows import FEW, made_rows

SEX = ["F", "F", "M", "M", "", None]
AGE = ["20-39", "<20", "20-39", "<20", "20-39", "<20"]
LABELS = np.array([0, 1, 0, 1, 0, 1])


def test_every_column_is_an_attribute_and_a_blank_is_no_group() -> None:
    sex, age = make_groupings(
        made_rows(LABELS, {"sex": SEX, "age": AGE}), groups=None, pairs=(), minimum=FEW
    )
    assert (sex.attribute, sex.names) == ("sex", ("F", "M", "(blank)"))
    assert sex.codes.tolist() == [0, 0, 1, 1, -1, -1]
    assert sex.left_out == {"(blank)": "no group is named"}
    assert age.names == ("<20", "20-39")
    assert age.rows.tolist() == [3, 3]


def test_pairs_are_intersections_and_small_ones_are_named() -> None:
    *_, pair = make_groupings(
        made_rows(LABELS, {"sex": SEX, "age": AGE}),
        groups=("sex",), pairs=(("sex", "group_age"),), minimum=FEW,
    )  # fmt: skip
    assert pair.attribute == "sex x age"
    assert pair.names == ("F x 20-39", "F x <20", "M x 20-39", "M x <20", "(blank)")
    assert pair.left_out["F x <20"] == "1 row, 2 needed"
    assert kept_groups(pair, pair.left_out) == []


@pytest.mark.parametrize(
    "pair", [("sex", "race"), ("race", "sex"), ("race", "site"), ("sex", "age")]
)
def test_a_pair_needs_both_columns_of_the_dataset(pair: tuple[str, str]) -> None:
    rows = made_rows(LABELS, {"sex": SEX, "age": AGE})
    made = make_groupings(rows, groups=("sex", "race"), pairs=(pair,), minimum=FEW)
    assert [each.attribute for each in made] == ["sex", *["sex x age"] * (pair == ("sex", "age"))]


def test_patients_are_counted_where_they_are_named() -> None:
    rows = made_rows(LABELS, {"sex": ["F"] * 4 + ["M"] * 2}, units=np.array([0, 0, 0, 0, 1, 2]))
    (sex,) = make_groupings(rows, groups=None, pairs=(), minimum=FEW)
    assert sex.units.tolist() == [1, 2]
    assert sex.left_out == {"F": "1 patient, 2 needed"}
    counts = label_counts(rows, sex, ("b",))
    assert counts.positives.tolist() == [[1], [1]]
    assert rows.weights.tolist() == [0.25] * 4 + [1, 1]


def test_classes_are_groups_where_there_are_no_others_or_where_they_are_asked_for() -> None:
    (classes,) = make_groupings(made_rows(LABELS), groups=None, pairs=(), minimum=FEW)
    assert (classes.attribute, classes.names, classes.by_label) == ("class", ("a", "b"), False)
    both = make_groupings(
        made_rows(LABELS, {"sex": SEX}), groups=("sex", "class"), pairs=(), minimum=FEW
    )
    assert [item.attribute for item in both] == ["sex", "class"]


def test_labels_of_several_a_row_are_groups_of_all_rows() -> None:
    labels = np.array([[0, 1, 0], [1, 1, 0], [0, 0, 0], [1, 1, 0]])
    (classes,) = make_groupings(made_rows(labels), groups=None, pairs=(), minimum=FEW)
    assert classes.by_label
    assert classes.left_out == {"c": "0 rows with c, 1 needed"}
    assert classes.rows.tolist() == [4, 4, 4]


def test_unknown_groups_are_refused_in_one_line() -> None:
    with pytest.raises(DataError, match="no group column race; write some of class, sex"):
        make_groupings(made_rows(LABELS, {"sex": SEX}), groups=("race",), pairs=(), minimum=FEW)


def _rows_of(enough: np.ndarray) -> TestRows:
    """Two rows for a group and label: both values where there is enough, else one."""
    labels, groups = [], []
    for group, row in enumerate(enough):
        labels += [row.astype(int), np.zeros(len(row), dtype=int)]
        groups += [f"g{group}"] * 2
    return made_rows(np.array(labels), {"site": groups})


def _compared(enough: np.ndarray) -> Compared:
    rows = _rows_of(enough)
    (site,) = make_groupings(rows, groups=None, pairs=(), minimum=FEW)
    counts = label_counts(rows, site, rows.ranked_labels)
    return choose_compared(rows, site, rows.ranked_labels, counts, FEW, negatives=True)


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


def test_the_rarer_value_counts() -> None:
    rows = made_rows(np.array([[1], [1], [1], [0], [0], [1]]), {"site": ["x"] * 4 + ["y"] * 2})
    (site,) = make_groupings(rows, groups=None, pairs=(), minimum=FEW)
    counts = label_counts(rows, site, ("a",))
    two = Minimum(units=1, positives=1, negatives=2)
    assert choose_compared(rows, site, ("a",), counts, two, negatives=True).labels == ()
    assert choose_compared(rows, site, ("a",), counts, two, negatives=False).labels == ("a",)


def test_a_column_called_class_is_no_class() -> None:
    rows = made_rows(LABELS, {"class": ["first", "second", "second"] * 2})
    (column,) = make_groupings(rows, groups=("class",), pairs=(), minimum=FEW)
    assert (column.attribute, column.names) == ("class", ("first", "second"))
    metrics = [item.metric for item in make_comparisons(rows, column, FEW, seed=0)]
    assert metrics == ["auc", "accuracy", "recall", "calibration_error"]
