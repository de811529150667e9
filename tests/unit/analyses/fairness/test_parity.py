"""Parity differences against fairlearn's functions of rows."""

from __future__ import annotations

import numpy as np
import pytest
from fairlearn.metrics import (
    demographic_parity_difference,
    equal_opportunity_difference,
    equalized_odds_difference,
)

from dpprobe.analyses.fairness.fairness_record import Minimum
from dpprobe.analyses.fairness.groupings import TestRows, label_counts, make_groupings
from dpprobe.analyses.fairness.parity import compute_parity, named_thresholds, parity_rows
from tests.support.fairness_rows import FEW, head, made_rows

FAIRLEARN = (
    demographic_parity_difference,
    equal_opportunity_difference,
    equalized_odds_difference,
)


def _rows(classes: int, *, several: bool) -> tuple[TestRows, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(classes)
    count = 300
    labels = generator.integers(classes, size=count)
    target = np.eye(classes)[labels]
    if several:
        labels = target = (generator.random((count, classes)) < 0.4).astype(int)
    groups = generator.integers(4, size=count)
    units = np.unique(generator.integers(200, size=count), return_inverse=True)[1]
    rows = made_rows(labels, {"site": groups.tolist()}, units=units)
    return rows, generator.normal(size=(count, classes)) + target, groups


@pytest.mark.parametrize(("classes", "several"), [(2, False), (5, False), (3, True)])
def test_records_are_fairlearns(classes: int, several: bool) -> None:
    rows, scores, groups = _rows(classes, several=several)
    (site,) = make_groupings(rows, groups=None, pairs=(), minimum=FEW)
    thresholds = named_thresholds([0.5, {"false_positive_rate": 0.2}], 2 if several else classes)
    made = head(rows, scores)
    counts = label_counts(rows, site, rows.recalled_labels)
    result = compute_parity(made, site, counts, thresholds, FEW)
    assert len(result) == len(thresholds) * len(rows.recalled_labels)
    for name, probability, rate in thresholds:
        for label, predicted in made.predict_labels(probability, rate):
            expected = [
                function(
                    rows.rows_with(label), predicted, sensitive_features=groups,
                    sample_weight=rows.weights,
                )
                for function in FAIRLEARN
            ]  # fmt: skip
            assert result[name, label] == pytest.approx(expected, abs=1e-12)


def test_thresholds_have_names() -> None:
    assert named_thresholds([0.5, {"false_positive_rate": 0.1}], 2) == [
        ("0.5", 0.5, None),
        ("false positive rate 0.1", None, 0.1),
    ]
    assert named_thresholds([0.5, 0.7], 3) == [("argmax", None, None)]


def test_groups_with_few_of_a_label_are_left_out_of_its_opportunity_alone() -> None:
    labels = np.array([1, 0, 1, 0, 0, 0, 0, 0])
    rows = made_rows(labels, {"site": ["x"] * 4 + ["y"] * 4})
    (site,) = make_groupings(rows, groups=None, pairs=(), minimum=FEW)
    scores = np.stack([np.zeros(8), np.array([1, 1, -1, 1, -1, -1, -1, -1])], axis=1)
    counts = label_counts(rows, site, rows.recalled_labels)
    thresholds = named_thresholds([0.5], 2)
    result = compute_parity(head(rows, scores), site, counts, thresholds, FEW)
    assert result["0.5", "b"] == (0.75, None, None)
    nothing = compute_parity(
        head(rows, scores), site, counts, thresholds, Minimum(units=9, positives=1, negatives=1)
    )
    assert nothing["0.5", "b"] == (0.75, None, None)


def test_means_are_over_heads_and_then_over_labels() -> None:
    heads = [
        {("0.5", "a"): (0.2, 0.4, 0.4), ("0.5", "b"): (0.0, None, None)},
        {("0.5", "a"): (0.4, 0.6, 0.8), ("0.5", "b"): (0.2, None, None)},
    ]
    rows = {row.label: row for row in parity_rows(heads)}  # type: ignore[arg-type]
    assert list(rows) == ["a", "b", "mean", "worst"]
    assert rows["a"].equalized_odds_difference == pytest.approx(0.6)
    assert rows["b"].equal_opportunity_difference is None
    assert rows["mean"].demographic_parity_difference == pytest.approx(0.2)
    assert rows["worst"].demographic_parity_difference == pytest.approx(0.3)
    assert rows["mean"].equal_opportunity_difference == pytest.approx(0.5)
