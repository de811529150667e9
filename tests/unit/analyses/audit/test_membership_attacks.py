"""Scores of membership attacks against loops that spell them out, and intervals of attacks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax
from scipy.stats import norm, rankdata
from sklearn.metrics import roc_auc_score, roc_curve

from dpprobe.analyses.audit import membership_attacks
from dpprobe.analyses.audit.membership_attacks import (
    compute_confidences,
    measure_roc,
    score_lira,
    score_rmia,
)


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


def naive_lira(scaled: np.ndarray, members: np.ndarray, *, by_row: bool) -> np.ndarray:
    """Carlini et al.'s algorithm 1, a target and a row at a time."""
    heads, rows = scaled.shape
    scores = np.empty((heads, rows))
    for target in range(heads):
        sides, others = {}, np.delete(np.arange(heads), target)
        for side in (True, False):
            values = [scaled[others, r][members[others, r] == side] for r in range(rows)]
            squares = sum(np.var(one) * len(one) for one in values)
            pooled = math.sqrt(squares / sum(len(one) - 1 for one in values))
            spreads = [np.std(one, ddof=1) if by_row else pooled for one in values]
            sides[side] = norm.logpdf(scaled[target], [np.mean(one) for one in values], spreads)
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
        ratio, others = [], np.delete(np.arange(heads), target)
        for row in range(rows):
            seen, inside = np.exp(logs[others, row]), members[others, row]
            mean = (np.mean(seen[inside]) + np.mean(seen[~inside])) / 2
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
    # nor are heads that agree to the last bit
    members = np.random.default_rng(0).random((70, 5)) < 0.5
    assert np.isfinite(score_lira(np.ones((70, 5)), members, 70)).all()


def test_curves_are_those_of_scikit_learn() -> None:
    generator = np.random.default_rng(1)
    members = generator.random((30, 100)) < 0.4
    scores = np.round(generator.normal(size=members.shape) + members, 1)  # many ties
    measured = measure_roc(scores, members, (0.01, 0.1, 0.5, 1.0), seed=0)
    assert measured is not None
    assert measured.auc == pytest.approx(roc_auc_score(members.ravel(), scores.ravel()))
    fpr, tpr, _ = roc_curve(members.ravel(), scores.ravel(), drop_intermediate=False)
    expected = [tpr[fpr <= rate + 1e-12].max() for rate in measured.rates]
    np.testing.assert_allclose(measured.tpr, expected)


def test_a_rate_needs_as_many_non_members_as_ten_false_positives_take() -> None:
    generator = np.random.default_rng(0)
    for non_members, resolved in ((9_999, False), (10_000, True)):
        members = np.arange(non_members + 50)[None] >= non_members
        measured = measure_roc(generator.normal(size=members.shape), members, (0.001, 0.01), seed=0)
        assert measured is not None
        assert math.isnan(measured.tpr[0]) != resolved
        assert math.isfinite(measured.tpr[1])


@pytest.mark.parametrize("different", [8, 1])
def test_intervals_are_the_central_95_percent_of_heads_and_units_drawn_anew(different: int) -> None:
    """Copies of one head (1) narrow nothing, so that weights must stay with their units."""
    generator = np.random.default_rng(0)
    members = generator.random((8, 50)) < 0.5
    scores = generator.normal(size=(8, 50)) + members + generator.normal(size=(1, 50))
    copied = np.arange(8) % different
    members, scores = members[copied], scores[copied]
    areas = []
    for _ in range(2000):
        heads, units = (generator.integers(k, size=k) for k in members.shape)
        inside = members[np.ix_(heads, units)].ravel()
        ranks = rankdata(scores[np.ix_(heads, units)].ravel())[inside]
        wins = ranks.sum() - len(ranks) * (len(ranks) + 1) / 2
        areas.append(wins / (inside.sum() * (~inside).sum()))
    wanted = np.quantile(areas, [0.025, 0.975])
    measured = measure_roc(scores, members, (0.1,), seed=1)
    assert measured is not None
    low, high = measured.auc_interval
    assert high - low == pytest.approx(wanted[1] - wanted[0], rel=0.08)


def test_scores_far_beyond_floats_have_finite_confidences_in_the_right_order() -> None:
    """Logits of 3000 saturate: p is 1 or 0 as a float, and its logs are not."""
    logits = np.array([[3000.0, -3000.0, 0.0], [-3000.0, 3000.0, 0.0]], np.float32)
    right, wrong = (
        x.tolist() for x in compute_confidences(logits, np.array([0, 0])).scaled[:, None]
    )
    assert right == [3000.0]
    assert wrong == [-6000.0]
    seen = compute_confidences(logits, np.array([[1, 0, 1], [1, 0, 1]]))
    # log p = log(1/2) for the third label, and -3000 twice for two wrong ones
    np.testing.assert_allclose(seen.log_probability, [-math.log(2), -6000 - math.log(2)])
    np.testing.assert_allclose(seen.scaled, [0.0, -6000 - math.log(2)], atol=1e-9)
    sure = compute_confidences(np.full((1, 3), 3000, np.float32), np.array([[1, 1, 1]]))
    assert np.isfinite(sure).all()
    assert sure.scaled[0] > 600, "nothing is surer than a p of 1"


def test_a_row_alone_beats_nobody() -> None:
    generator = np.random.default_rng(3)
    members = generator.random((6, 1)) < 0.5
    assert (score_rmia(generator.normal(size=(6, 1)) - 2, members, 2) == 0).all()


def test_rows_that_one_side_of_the_shadows_lacks_are_compared_with_the_other_alone() -> None:
    """P is the mean over the side that there is, and equal ratios beat each other."""
    first, second = [0.5, 0.5, 0.2, 0.6], [0.25, 0.25, 0.4, 0.5]
    logs = np.log(np.array([first, second, [0.75, 0.75, 0.4, 0.5]]))
    members = np.array([[True] * 4, [True, False, True, True], [True, False, False, False]])
    # ratios of the first head: 0.5 / 0.5 twice, 0.2 / 0.4, and 0.6 / 0.5
    np.testing.assert_allclose(score_rmia(logs, members, 1), [[2 / 3, 2 / 3, 0.0, 1.0]])


@pytest.mark.parametrize("everybody", [True, False])
def test_units_all_in_or_all_out_have_no_curve(everybody: bool) -> None:
    scores = np.random.default_rng(0).normal(size=(4, 30))
    assert measure_roc(scores, np.full((4, 30), everybody), (0.1,), seed=1) is None


def test_a_perfect_attack_and_a_useless_one_have_the_curves_that_one_can_see() -> None:
    members = np.tile(np.arange(60) % 2 == 0, (3, 1))
    rates = (0.0, 0.2, 1.0)
    perfect = measure_roc(members * 1.0, members, rates, seed=1)
    useless = measure_roc(np.ones(members.shape), members, rates, seed=1)
    assert perfect is not None
    assert useless is not None
    assert (perfect.auc, useless.auc) == (1.0, 0.5)
    assert perfect.auc_interval == (1.0, 1.0)
    assert (perfect.members, perfect.non_members) == (90, 90)
    # no false positive resolves a rate of 0; equal scores are flagged all or none
    np.testing.assert_array_equal(perfect.tpr, [math.nan, 1.0, 1.0])
    np.testing.assert_array_equal(useless.tpr, [math.nan, 0.0, 1.0])
    np.testing.assert_array_equal(perfect.low, [math.nan, 1.0, 1.0])


@pytest.mark.parametrize("count", [76, 77, 78])
def test_ten_false_positives_are_enough_whatever_the_rounding_of_a_rate(count: int) -> None:
    """10 / 77 of 77 non-members are ten, though the product of floats is a little less."""
    rate = 10 / 77
    assert 77 * rate < 10
    ranks = np.sin(np.arange(2.0 * count)).reshape(2, count)
    sides = np.repeat([[True], [False]], count, axis=1)
    roc = measure_roc(ranks, sides, (rate,), seed=1)
    assert roc is not None
    false = sorted(ranks[1], reverse=True)
    wanted = np.mean(ranks[0] > false[10]) if count >= 77 else math.nan
    assert roc.tpr.item() == pytest.approx(wanted, nan_ok=True)
