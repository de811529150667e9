"""Memorisation, compared with scikit-learn's ridge regression and with hand-computed cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from dpprobe.analyses.long_tail import memorisation
from dpprobe.analyses.long_tail.memorisation import (
    RIDGES,
    Memorisation,
    choose_ridge,
    measure_memorisation,
    scale_columns,
)
from tests.support.clouds import clouds

HEADS = 60


def _predict(rows: np.ndarray, labels: np.ndarray, out: np.ndarray, ridge: float) -> np.ndarray:
    """Predicts all rows by scikit-learn's ridge regression of indicators without the rows `out`."""
    head = Ridge(alpha=ridge, fit_intercept=False, solver="cholesky")
    return np.asarray(head.fit(rows[~out], np.eye(3)[labels[~out]]).predict(rows))


@pytest.mark.parametrize("a_unit", [1, 3])
def test_counts_equal_those_of_heads_that_scikit_learn_fits(a_unit: int) -> None:
    features, labels = clouds(90, 5, 3, apart=1.0)
    rows, units = scale_columns(features), np.arange(90) // a_unit
    measured = measure_memorisation(rows, labels, num_classes=3, units=units, heads=HEADS, seed=2)
    ridge = choose_ridge(rows, np.eye(3)[labels], units, seed=2)
    assert measured.ridge == ridge
    right, trained = np.zeros((2, 90), dtype=int), np.zeros((2, 90), dtype=int)
    subsets = memorisation.draw_subsets(units, HEADS, seed=2, name="memorisation subsets")
    for out in subsets:
        assert len(np.unique(units[out])) == 90 // a_unit - round(0.7 * 90 / a_unit)
        assert not set(units[out]) & set(units[~out]), "rows of a unit are in or out together"
        hit = _predict(rows, labels, out, ridge).argmax(axis=1) == labels
        for side, chosen in enumerate((~out, out)):
            right[side] += hit & chosen
            trained[side] += chosen
    assert np.array_equal(measured.right_in, right[0])
    assert np.array_equal(measured.right_out, right[1])
    assert np.array_equal(measured.heads_in, trained[0])
    assert np.array_equal(measured.heads_out, trained[1])
    assert (measured.heads_in + measured.heads_out == HEADS).all()


def test_the_ridge_has_the_smallest_error_on_rows_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """If only a sample of the units decides, only its rows are read."""
    features, labels = clouds(60, 30, 3, apart=1.0)
    rows, units = scale_columns(features), np.arange(60) // 2
    errors = dict.fromkeys(RIDGES, 0.0)
    for out in memorisation.draw_subsets(units, 5, seed=1, name="ridge subsets"):
        for ridge in RIDGES:
            left = _predict(rows, labels, out, ridge)[out] - np.eye(3)[labels[out]]
            errors[ridge] += float((left**2).sum())
    best = min(errors, key=lambda ridge: errors[ridge])
    assert RIDGES[0] < best < RIDGES[-1], "the law would not notice the ends"
    assert choose_ridge(rows, np.eye(3)[labels], units, seed=1) == best
    monkeypatch.setattr(memorisation, "PILOT_UNITS", 20)
    read: list[int] = []
    heads = memorisation.Heads

    def counted(given: np.ndarray, *more: Any) -> memorisation.Heads:
        read.append(len(given))
        return heads(given, *more)

    monkeypatch.setattr(memorisation, "Heads", counted)
    assert choose_ridge(rows, np.eye(3)[labels], units, seed=1) in RIDGES
    assert read == [40] * len(RIDGES), "20 units of two rows, once for each ridge"


def _counts(*columns: list[int]) -> Memorisation:
    return Memorisation(*map(np.array, columns), 1.0)  # type: ignore[arg-type, call-arg]


def test_a_row_that_all_heads_or_none_saw_has_no_score() -> None:
    # rows: always in, always out, and one that is right only with the single head trained on it
    measured = _counts([2, 0, 1], [2, 0, 1], [0, 2, 0], [0, 2, 1])
    assert np.isnan(measured.scores).tolist() == [True, True, False]
    assert measured.scores[2] == 1.0
    assert measured.share_above(0.5) == 1.0
    assert measured.share_above(1.0) == 0.0, "above, not from"
    # one head is right and one wrong: in one of two orders the right one was trained on the row
    assert measured.expected_share_above(0.25) == pytest.approx(0.5)


def test_a_score_is_the_difference_of_shares_and_its_error_adds_one_right_and_wrong_head() -> None:
    measured = _counts([6, 3], [8, 4], [1, 2], [4, 2])
    assert measured.scores.tolist() == [0.5, -0.25]
    first = (7 / 10) * (3 / 10) / 10 + (2 / 6) * (4 / 6) / 6
    assert measured.standard_errors[0] == pytest.approx(first**0.5)


def test_columns_are_centred_and_scaled_as_a_whole_with_ones_beside() -> None:
    features = np.random.default_rng(0).normal(size=(50, 4)) * [1, 2, 3, 4] + 7
    columns = scale_columns(features.astype(np.float32))
    assert columns.shape == (50, 5)
    assert (columns[:, -1] == 1).all()
    np.testing.assert_allclose(columns[:, :-1].mean(axis=0), 0, atol=1e-6)
    assert (columns[:, :-1] ** 2).sum(axis=1).mean() == pytest.approx(1)
    spread = columns[:, :-1].std(axis=0)
    np.testing.assert_allclose(
        spread / spread[0], features.std(axis=0) / features[:, 0].std(), 1e-5
    )
    assert scale_columns(np.ones((3, 2))).tolist() == [[0, 0, 1]] * 3
