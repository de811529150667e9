"""Rank correlation of few points."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from dpprobe.analyses.long_tail.rank_correlation import rank_correlation


def test_it_is_spearmans_with_an_interval_around() -> None:
    first, second = [1.0, 2, 3, 4, 5, 6], [2.0, 1, 4, 3, 3, 9]
    result = rank_correlation(first, second)
    assert result.points == 6
    assert result.value == pytest.approx(spearmanr(first, second).statistic)
    assert result.value is not None
    assert result.low is not None
    assert result.high is not None
    assert -1 < result.low < result.value < result.high < 1


@pytest.mark.parametrize("sign", [1, -1])
def test_full_agreement_of_few_points_is_no_certainty(sign: int) -> None:
    result = rank_correlation([1, 2, 3, 4, 5], [sign * v for v in (10, 20, 30, 40, 50)])
    assert result.value == pytest.approx(sign)
    ends = sorted(abs(end) for end in (result.low or 0, result.high or 0))
    assert ends[1] == pytest.approx(1)
    assert ends[0] < 0.6


def test_too_few_points_and_constants_have_none() -> None:
    assert rank_correlation([1, 2, 3], [3, 5, 7]).value is None
    assert rank_correlation([1, 2, 3, 4], [5, 5, 5, 5]).value is None
    assert rank_correlation([], []).points == 0


def test_the_interval_covers_no_correlation() -> None:
    """At ten points, 400 times: 95 % within three standard errors."""
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        result = rank_correlation(list(random.normal(size=10)), list(random.normal(size=10)))
        covered += (result.low or 0) <= 0 <= (result.high or 0)
    assert covered / 400 == pytest.approx(0.95, abs=0.033)
