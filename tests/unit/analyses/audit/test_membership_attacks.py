"""Scores of membership attacks, against loops that spell them out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax
from scipy.stats import norm

from dpprobe.analyses.audit import membership_attacks
from dpprobe.analyses.audit.membership_attacks import compute_confidences, score_lira, score_rmia


@pytest.mark.parametrize("several", [False, True])
def test_confidences_are_those_of_softmax_or_products_of_sigmoids(several: bool) -> None:
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(50, 4), scale=2).astype(np.float32)
    labels = generator.integers(2, size=(50, 4)) if several else generator.integers(4, size=50)
    seen, values = compute_confidences(scores, labels), scores.astype(np.float64)
    if several:
        p = np.where(labels == 1, expit(values), expit(-values)).prod(axis=1)
    else:
        p = softmax(values, axis=1)[np.arange(50), labels]
    np.testing.assert_allclose(seen.log_probability, np.log(p), rtol=1e-9)
    np.testing.assert_allclose(seen.scaled, np.log(p / (1 - p)), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("several", [False, True])
def test_a_head_that_is_certain_has_finite_confidences(several: bool) -> None:
    scores = np.array([[3000.0, -3000.0], [-3000.0, 3000.0]], dtype=np.float32)
    labels = np.array([[1, 0], [1, 0]]) if several else np.array([0, 0])
    for values in compute_confidences(scores, labels):
        assert np.isfinite(values).all()
        assert values[0] > values[1]


def naive_lira(scaled: np.ndarray, members: np.ndarray, *, by_row: bool) -> np.ndarray:
    """Carlini et al.'s algorithm 1, a target and a row at a time."""
    heads, rows = scaled.shape
    scores = np.empty((heads, rows))
    for target in range(heads):
        sides = {}
        for side in (True, False):
            values = [
                [scaled[h, r] for h in range(heads) if h != target and members[h, r] == side]
                for r in range(rows)
            ]
            pooled = math.sqrt(
                sum(np.var(one) * len(one) for one in values) / sum(len(one) - 1 for one in values)
            )
            sides[side] = [
                norm.logpdf(
                    scaled[target, r], np.mean(one), np.std(one, ddof=1) if by_row else pooled
                )
                for r, one in enumerate(values)
            ]
        scores[target] = np.subtract(sides[True], sides[False])
    return scores


@pytest.mark.parametrize(("heads", "by_row"), [(20, False), (65, True)])
def test_lira_agrees_with_a_loop(heads: int, by_row: bool) -> None:
    assert (heads - 1 >= membership_attacks.SHADOWS_FOR_VARIANCES) == by_row
    generator = np.random.default_rng(heads)
    members = generator.random((heads, 7)) < 0.5
    scaled = generator.normal(size=(heads, 7)) * [1, 2, 3, 4, 5, 6, 7] + members
    expected = naive_lira(scaled, members, by_row=by_row)
    np.testing.assert_allclose(score_lira(scaled, members, heads), expected, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(score_lira(scaled, members, 3), expected[:3], rtol=1e-8, atol=1e-9)


def test_rmia_agrees_with_a_loop() -> None:
    generator = np.random.default_rng(1)
    heads, rows = 12, 9
    members = generator.random((heads, rows)) < 0.5
    logs = log_softmax(generator.normal(size=(heads, rows, 3)), axis=2)[:, :, 0]
    expected = np.empty((heads, rows))
    for target in range(heads):
        ratio = []
        for row in range(rows):
            seen = {
                side: [
                    math.exp(logs[h, row])
                    for h in range(heads)
                    if h != target and members[h, row] == side
                ]
                for side in (True, False)
            }
            mean = (np.mean(seen[True]) + np.mean(seen[False])) / 2
            ratio.append(math.exp(logs[target, row]) / mean)
        for row in range(rows):
            beaten = [ratio[row] / ratio[z] >= 1 for z in range(rows) if z != row]
            expected[target, row] = np.mean(beaten)
    np.testing.assert_allclose(score_rmia(logs, members, heads), expected, atol=1e-12)


def test_rows_whose_coins_all_fell_alike_are_no_evidence() -> None:
    members = np.array([[True, False]] * 9)
    values = np.random.default_rng(0).normal(size=(9, 2)) - 3
    assert (score_lira(values, members, 9) == 0).all()
    assert np.isfinite(score_rmia(values, members, 9)).all()


def test_heads_that_agree_to_the_last_bit_give_finite_scores() -> None:
    members = np.random.default_rng(0).random((70, 5)) < 0.5
    assert np.isfinite(score_lira(np.ones((70, 5)), members, 70)).all()
