"""Compiled areas under the ROC curve equal counts of ordered pairs, in exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from dpprobe.analyses.fairness.group_kernels import compute_areas


@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
@pytest.mark.parametrize("lanes", [1, 3, 64, 65])
@pytest.mark.parametrize("most", [1, 2, 255])
def test_areas_are_shares_of_ordered_pairs(levels: int, lanes: int, most: int) -> None:
    """Cases: groups without rows or with one label, units in several rows and groups, and ties."""
    generator = np.random.default_rng(levels + lanes + most)
    sizes = np.array([0, 1, 2, 3, 17, 0, 40, 5, 0])
    rows, starts = sizes.sum(), np.append(0, sizes.cumsum())
    group = np.repeat(np.arange(len(sizes)), sizes)
    score = generator.integers(levels, size=rows)
    order = np.lexsort([score, group])
    score = score[order]
    last = np.append((np.diff(score) != 0) | (np.diff(group) != 0), True)
    positive = (generator.random(rows) < 0.4) | (group == 3)
    unit = generator.integers(30, size=rows, dtype=np.int32)
    weight = generator.integers(4, size=rows) / 4
    counts = generator.integers(most + 1, size=(31, lanes), dtype=np.uint8)
    out = np.full((len(sizes), lanes), 7.0)
    compute_areas(counts, unit, positive, last, weight, starts, out)
    share = weight[:, None] * counts[unit]
    for number in range(len(sizes)):
        ones, others = (np.flatnonzero((group == number) & each) for each in (positive, ~positive))
        above = (np.sign(score[ones][:, None] - score[others]) + 1) / 2
        wins = np.einsum("il,ij,jl->l", share[ones], above, share[others])
        pairs = share[ones].sum(0) * share[others].sum(0)
        wanted = np.divide(wins, pairs, out=np.full(lanes, np.nan), where=pairs > 0)
        np.testing.assert_allclose(out[number], wanted, rtol=1e-13)
