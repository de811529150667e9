"""Intervals of attacks, over heads and units."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score, roc_curve

from dpprobe.analyses.audit.membership_attacks import measure_roc


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
