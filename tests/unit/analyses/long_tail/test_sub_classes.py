"""Sub-classes: laws of distances and sizes, and hand-computed cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import pdist
from scipy.stats import entropy

from dpprobe.analyses.long_tail.sub_classes import (
    cluster_sizes,
    compute_coordinates,
    draw_reference,
    effective_number,
    few_rows,
    shares_by_rank,
    tail_index,
)


def _rows(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) * np.arange(1, shape[1] + 1) + 5


@pytest.mark.parametrize("shape", [(2, 1), (30, 4), (30, 80)])
def test_coordinates_keep_all_distances_up_to_the_scale(shape: tuple[int, int]) -> None:
    rows = _rows(*shape)
    placed = compute_coordinates(rows, seed=3)
    largest = np.abs(rows - rows.mean(axis=0)).max()
    np.testing.assert_allclose(pdist(placed.rows) * largest, pdist(rows), rtol=1e-6)
    squares = ((rows - rows.mean(axis=0)) ** 2).sum()
    assert placed.total == pytest.approx(squares)
    assert placed.kept == pytest.approx(squares)


def test_no_more_than_the_64_largest_components_are_kept() -> None:
    rows = _rows(120, 90)
    placed = compute_coordinates(rows, seed=3)
    singular = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    assert placed.rows.shape == (120, 64)
    assert placed.kept == pytest.approx((singular[:64] ** 2).sum(), rel=0.01)
    assert placed.total == pytest.approx((singular**2).sum())


def test_a_reference_has_the_variances_of_the_columns_and_no_correlation() -> None:
    rows = _rows(20_000, 3)
    rows[:, 1] += rows[:, 0]
    drawn = draw_reference(rows, seed=1)
    np.testing.assert_allclose(drawn.std(axis=0), rows.std(axis=0), rtol=0.03)
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.eye(3), atol=0.03)
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=0.1)
    assert np.array_equal(drawn, draw_reference(rows, seed=1))
    assert not np.array_equal(drawn, draw_reference(rows, seed=2))


@given(rows=st.integers(1, 60), clusters=st.integers(1, 12), kinds=st.integers(1, 60))
def test_clusters_hold_every_row_once_and_five_rows_on_average(
    rows: int, clusters: int, kinds: int
) -> None:
    points = _rows(rows, 2)[np.arange(rows) % kinds]
    sizes = cluster_sizes(points, clusters, seed=1)
    assert sizes.sum() == rows
    assert (np.diff(sizes) <= 0).all(), f"largest first: {sizes}"
    assert (sizes > 0).all()
    most = max(1, min(clusters, rows // 5, kinds))
    assert len(sizes) == most, f"{sizes} of {rows} rows, {clusters} clusters, {kinds} kinds"


def _sizes(*classes: list[int]) -> list[np.ndarray]:
    return [*map(np.array, classes)]


def test_equal_sizes_have_no_tail_and_a_steep_tail_no_upper_end() -> None:
    equal = tail_index(_sizes([50, 50], [50, 50, 50]), seed=4)
    assert equal is not None
    assert equal.low == 0
    assert equal.value == pytest.approx(0, abs=0.02), "the median of equal frequencies"
    assert 0 < (equal.high or 0) < 0.5
    steep = tail_index(_sizes([999, 1]), seed=4)
    assert steep is not None
    assert steep.high is None
    assert steep.low > 3


def _mean_logs(sizes: list[np.ndarray], index: float) -> np.ndarray:
    """Returns simulated means over rows of the logarithm of the rank of their sub-class."""
    random, means = np.random.default_rng(1), []
    for _ in range(2000):
        logs = 0.0
        for each in sizes:
            ranks = np.arange(1, len(each) + 1)
            shares = ranks**-index / (ranks**-index).sum()
            drawn = np.sort(random.multinomial(each.sum(), shares))[::-1]
            logs += float(drawn @ np.log(ranks))
        means.append(logs / sum(map(np.sum, sizes)))
    return np.array(means)


@pytest.mark.parametrize("classes", [([50, 50], [50, 50, 50]), ([150, 50, 25], [60, 20])])
def test_the_interval_holds_the_indices_that_may_give_the_sizes(classes: list[list[int]]) -> None:
    """At the ends, the sizes are at the 2.5% and 97.5% quantiles of draws; no index is below 0."""
    sizes = _sizes(*classes)
    found = tail_index(sizes, seed=4)
    assert found is not None
    ranks = sum(each @ np.log(np.arange(1, len(each) + 1)) for each in sizes)
    # more even sizes than the median draw at index 0 count as the median
    measured = min(ranks / sum(map(np.sum, sizes)), np.median(_mean_logs(sizes, 0)))
    for index, share in ((found.low, 0.025), (found.value, 0.5), (found.high or 9, 0.975)):
        if index > 0:
            expected = np.quantile(_mean_logs(sizes, index), share)
            assert measured == pytest.approx(expected, abs=0.012), f"{share} at index {index}"


def test_steeper_sizes_have_a_larger_index() -> None:
    found = [tail_index(_sizes(each), seed=4) for each in ([40, 35, 25], [60, 25, 15], [80, 15, 5])]
    values = [each.value for each in found if each is not None]
    assert len(values) == 3
    assert values == sorted(set(values))


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=6), min_size=1, max_size=5))
def test_the_effective_number_is_scipy_s_entropy_over_all_classes(classes: list[list[int]]) -> None:
    joined = [size for each in classes for size in each]
    assert effective_number(_sizes(*classes)) == pytest.approx(np.exp(entropy(joined)))


def test_rare_sub_classes_and_shares_are_counted_over_classes() -> None:
    sizes = _sizes([6, 3, 1], [5, 5])
    assert few_rows(sizes) == {1: 0.2, 2: 0.2, 5: 0.8}
    # of ten rows each: 60%, 30%, 10% and 50%, 50%
    assert shares_by_rank(sizes) == pytest.approx([0.55, 0.4, 0.05])
    assert shares_by_rank(_sizes([7])) == [1.0]
