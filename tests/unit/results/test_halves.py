"""Metrics on random halves of the test units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.data.options import Headline
from dpprobe.results.halves import HALVINGS, half_values, split_rows
from dpprobe.results.metrics import Evaluation, Link

METRICS: list[tuple[Headline, Link]] = [
    ("accuracy", "softmax"),
    ("macro_accuracy", "softmax"),
    ("auc", "softmax"),
    ("accuracy", "sigmoid"),
    ("auc", "sigmoid"),
    ("accuracy", "none"),
]


def _made(seed: int, rows: int, *, link: Link) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores with ties, and labels of two classes, or two labels per row."""
    generator = np.random.default_rng(seed)
    labels = (generator.random(rows) < 0.3).astype(np.int64)
    if link != "softmax":
        labels = (generator.random((rows, 2)) < 0.3).astype(np.int64)
    shown = labels if labels.ndim == 2 else np.eye(2)[labels]
    return (generator.normal(size=(rows, 2)) + shown).round(1), labels


@settings(max_examples=30)
@given(st.sampled_from(METRICS), st.integers(2, 40), st.integers(1, 20), st.integers(0, 2**31))
def test_each_half_has_the_metric_only_of_its_rows(
    kind: tuple[Headline, Link], rows: int, patients: int, seed: int
) -> None:
    metric, link = kind
    scores, labels = _made(seed, rows, link=link)
    units = np.random.default_rng(seed).integers(patients, size=rows)
    halves = split_rows(metric, labels, units=units)
    evaluation = Evaluation(scores, labels, link=link, units=units)
    found = half_values(metric, evaluation)
    assert found == half_values(metric, evaluation, halves=halves), "given halves"
    if len(set(units)) == 1 or metric not in evaluation.compute_metrics():
        assert found == []
        return
    assert len(found) == HALVINGS
    for values, members in zip(found[:6], halves.members[:6], strict=True):
        for value, member in zip(values, members, strict=True):
            own = member[halves.codes]
            expected: Any = (
                Evaluation(scores[own], labels[own], link=link, units=units[own])
                .compute_metrics()
                .get(metric)
            )
            if expected is not None:
                expected = pytest.approx(expected, abs=2e-6)
            assert value == expected, (metric, link, own.tolist())


@pytest.mark.parametrize("several", [False, True])
def test_all_units_are_halved_and_classes_evenly_unless_shares_matter(several: bool) -> None:
    labels = np.repeat([0, 1, 2], [21, 8, 2])
    given_labels = np.eye(3, dtype=np.int64)[labels] if several else labels
    even = {}
    for metric in ("accuracy", "macro_accuracy", "auc"):
        members = split_rows(metric, given_labels).members
        assert (members[:, 0] ^ members[:, 1]).all(), "each unit is in one half"
        sizes = members.sum(axis=2)
        assert np.abs(sizes[:, 0] - sizes[:, 1]).max() <= 1
        apart = np.array([members[..., labels == kind].sum(axis=2) for kind in range(3)])
        even[metric] = bool(np.abs(apart[..., 0] - apart[..., 1]).max() <= 1)
        assert len(np.unique(members[:, 0], axis=0)) > 0.9 * HALVINGS
        assert 0 < members[:, 0, 0].sum() < HALVINGS, "the first unit is in either half at times"
    assert even == {"accuracy": False, "macro_accuracy": not several, "auc": not several}


def test_a_patient_stays_whole_and_has_the_class_of_the_first_row() -> None:
    units = np.array([7, 7, 2, 2, 9, 4])
    labels = np.array([1, 0, 0, 1, 1, 0])  # first rows of patients 2, 4, 7, 9: classes 0, 0, 1, 1
    halves = split_rows("auc", labels, units=units)
    assert halves.codes.tolist() == [2, 2, 0, 0, 3, 1]
    assert halves.members.shape == (HALVINGS, 2, 4)
    for first, second in ((0, 1), (2, 3)):
        assert (halves.members[:, 0, first] != halves.members[:, 0, second]).all()


def test_one_unit_has_no_halves() -> None:
    scores, labels = np.ones((3, 2)), np.array([0, 1, 1])
    assert half_values("accuracy", Evaluation(scores, labels, units=np.array([5, 5, 5]))) == []
    assert half_values("accuracy", Evaluation(scores[:1], labels[:1])) == []
    assert len(half_values("accuracy", Evaluation(scores[:2], labels[:2]))) == HALVINGS


def test_a_metric_that_no_row_allows_has_no_values() -> None:
    assert half_values("auc", Evaluation(np.ones((4, 3)), np.array([0, 1, 2, 0]))) == []
    alone = half_values("auc", Evaluation(np.eye(2)[[0, 1]], np.array([0, 1])))
    assert alone == [[None, None]] * HALVINGS, "one row of a class has no area"


def test_of_an_odd_number_of_units_either_half_is_larger_at_times() -> None:
    members = split_rows("accuracy", np.zeros(11, dtype=np.int64)).members
    assert set(members.sum(axis=2)[:, 0]) == {5, 6}
