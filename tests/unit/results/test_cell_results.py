"""Results of cells as numbers."""

from __future__ import annotations

import pytest

from dpprobe.results.cell_results import difference


def test_a_difference_has_welch_s_interval() -> None:
    from scipy import stats

    base, other = (0.5, 0.6, 0.7), (0.8, 0.85, 0.95, 0.9)
    gap, half = difference(base, other)
    reference = stats.ttest_ind(other, base, equal_var=False).confidence_interval()
    assert half is not None
    assert (gap - half, gap + half) == pytest.approx((reference.low, reference.high))
    assert difference((0.5,), (0.75,)) == (0.25, None)
    assert difference((0.5, 0.5), (0.75, 0.75)) == (0.25, None)
