"""Test rows ranked by a rare class."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

from dpprobe.analyses.imbalance.measure import one_against_rest

SCORES = np.random.default_rng(3).normal(size=(50, 4)).astype(np.float32)


def test_logits_rank_by_the_probability_of_the_class() -> None:
    shares = softmax(SCORES.astype(np.float64), axis=1)[:, 2]
    odds = one_against_rest(SCORES, 2, "softmax")
    np.testing.assert_allclose(odds, np.log(shares / (1 - shares)), rtol=1e-6)
    large = one_against_rest(1000 * SCORES, 2, "softmax")  # no overflow
    assert np.isfinite(large).all()
    np.testing.assert_array_equal(one_against_rest(SCORES, 2, "sigmoid"), SCORES[:, 2])
