"""Sub-classes by clustering, and how unequal they are."""

from __future__ import annotations

import numpy as np
import pytest

from dpprobe.analyses.long_tail.sub_classes import (
    cluster_sizes,
    compute_coordinates,
    draw_reference,
    effective_number,
    few_rows,
    shares_by_rank,
    tail_index,
)


def _zipf(
    index: float, *, classes: int, sub_classes: int, rows: int, seed: int
) -> list[np.ndarray]:
    shares = np.arange(1, sub_classes + 1) ** -index
    drawn = np.random.default_rng(seed).multinomial(rows, shares / shares.sum(), size=classes)
    return [np.sort(one[one > 0])[::-1] for one in drawn]


@pytest.mark.parametrize("index", [0.0, 0.5, 1.0, 1.5])
def test_the_index_of_a_known_tail_lies_in_its_interval(index: float) -> None:
    """The interval misses 5 % of the draws; seven or more of 40 once in 300 tries."""
    caught = 0
    values = []
    for seed in range(40):
        sizes = _zipf(index, classes=4, sub_classes=12, rows=400, seed=seed)
        measured = tail_index(sizes, seed=seed)
        assert measured is not None
        assert measured.high is not None
        assert measured.low <= measured.value <= measured.high
        caught += measured.low <= index <= measured.high
        values.append(measured.value)
    assert caught > 33
    assert np.mean(values) == pytest.approx(index, abs=0.05)


def test_equal_sub_classes_have_no_tail() -> None:
    measured = tail_index([np.array([50, 50, 50, 50])] * 3, seed=0)
    assert measured is not None
    assert measured.low == measured.value == 0
    assert measured.high is not None
    assert 0 < measured.high < 0.3


def test_a_tail_beyond_those_tried_has_no_upper_end() -> None:
    measured = tail_index([np.array([100_000, 1])], seed=0)
    assert measured is not None
    assert measured.high is None
    assert measured.low > 4


def test_one_sub_class_has_no_index() -> None:
    assert tail_index([np.array([7]), np.array([3])], seed=0) is None


def test_the_effective_number_counts_equal_sub_classes_and_no_empty_weight() -> None:
    assert effective_number([np.array([5, 5]), np.array([5, 5, 5])]) == pytest.approx(5)
    assert effective_number([np.array([9])]) == pytest.approx(1)
    one_big = effective_number([np.array([97, 1, 1, 1])])
    assert 1 < one_big < 1.3


def test_few_rows_are_counted_up_to_each_bound() -> None:
    assert few_rows([np.array([9, 5, 2]), np.array([1])]) == {1: 0.25, 2: 0.5, 5: 0.75}


def test_shares_by_rank_are_means_over_classes() -> None:
    assert shares_by_rank([np.array([3, 1]), np.array([8])]) == [0.875, 0.125]


def test_planted_sub_classes_come_back_with_their_sizes() -> None:
    random = np.random.default_rng(0)
    planted = [60, 25, 10, 5]
    centres = 30 * np.eye(4, 20)
    rows = np.concatenate(
        [
            centre + random.normal(size=(size, 20))
            for centre, size in zip(centres, planted, strict=True)
        ]
    )
    placed = compute_coordinates(rows, seed=1)
    assert list(cluster_sizes(placed.rows, 4, seed=1)) == planted
    assert placed.kept == pytest.approx(placed.total)
    # without sub-classes, of the same variances, the same clustering sees less of a tail
    plain = cluster_sizes(draw_reference(placed.rows, seed=1), 4, seed=1)
    assert effective_number([plain]) > effective_number([np.array(planted)])


def test_the_reference_has_the_variances_and_no_sub_classes() -> None:
    rows = np.random.default_rng(0).normal(size=(20_000, 3)) * [5.0, 1.0, 0.0]
    drawn = draw_reference(rows, seed=0)
    assert drawn.std(axis=0) == pytest.approx(rows.std(axis=0), rel=0.03)
    assert not np.array_equal(drawn, rows)


def test_a_class_has_at_most_one_cluster_for_five_rows() -> None:
    rows = np.random.default_rng(0).normal(size=(23, 4))
    sizes = cluster_sizes(rows, 50, seed=0)
    assert len(sizes) == 4
    assert sizes.sum() == 23


@pytest.mark.parametrize(
    "features",
    [np.zeros((1, 3)), np.ones((40, 3)), np.full((2, 1), 1e30), np.zeros((12, 5))],
    ids=["one row", "all equal", "huge", "zero"],
)
def test_classes_without_a_spread_are_one_sub_class(features: np.ndarray) -> None:
    placed = compute_coordinates(features, seed=0)
    assert list(cluster_sizes(placed.rows, 5, seed=0)) == [len(features)]
    assert np.isfinite(draw_reference(placed.rows, seed=0)).all()


def test_copies_of_few_rows_are_no_more_clusters_than_rows() -> None:
    rows = np.repeat(np.array([[0.0, 1.0], [5.0, 0.0]]), [30, 10], axis=0)
    sizes = cluster_sizes(compute_coordinates(rows, seed=0).rows, 5, seed=0)
    assert list(sizes) == [30, 10]
