"""The measurement of long tails: datasets, sub-classes, memorisation and the record."""

from __future__ import annotations

import numpy as np
import pytest

from dpprobe.analyses.long_tail.measure import measure_sub_classes
from dpprobe.analyses.long_tail.memorisation import (
    Heads,
    Memorisation,
    measure_memorisation,
    scale_columns,
)
from dpprobe.analyses.long_tail.sub_classes import (
    cluster_sizes,
    compute_coordinates,
    draw_reference,
    effective_number,
    tail_index,
)
from dpprobe.privacy.randomness import derived_seed


def _zipf(index: float, *, seed: int) -> list[np.ndarray]:
    """Sizes of twelve sub-classes of each of four classes."""
    shares = np.arange(1, 13) ** -index
    drawn = np.random.default_rng(seed).multinomial(400, shares / shares.sum(), size=4)
    return [np.sort(one[one > 0])[::-1] for one in drawn]


@pytest.mark.parametrize("index", [0.0, 1.5])
def test_the_index_of_a_known_tail_lies_in_its_interval(index: float) -> None:
    """The interval misses 5% of the draws; seven or more of 40 once in 300 tries."""
    caught = 0
    values = []
    for seed in range(40):
        measured = tail_index(_zipf(index, seed=seed), seed=seed)
        assert measured is not None
        assert measured.low <= measured.value <= (measured.high or 0)
        caught += measured.low <= index <= (measured.high or 0)
        values.append(measured.value)
    assert caught > 33
    assert np.mean(values) == pytest.approx(index, abs=0.05)


def test_the_kept_variance_is_that_of_all_classes() -> None:
    random, labels = np.random.default_rng(0), np.repeat([0, 1, 2], [70, 90, 80])
    features = random.normal(size=(240, 120)) * np.array([1.0, 5.0, 0.2])[labels, None]
    places = [
        compute_coordinates(features[labels == one], seed=derived_seed(3, f"class {one}"))
        for one in range(3)
    ]
    whole = sum(place.kept for place in places) / sum(place.total for place in places)
    measured = measure_sub_classes(features, labels, [2], seed=3)["variance_kept"]
    assert measured == pytest.approx(whole)
    assert whole < 1


def test_planted_sub_classes_come_back_with_their_sizes() -> None:
    random = np.random.default_rng(0)
    planted = [60, 25, 10, 5]
    centres = 30 * np.eye(4, 20)
    rows = np.concatenate(
        [
            centre + random.normal(size=(size, 20))
            for centre, size in zip(centres, planted, strict=True)
        ],
    )
    placed = compute_coordinates(rows, seed=1)
    assert list(cluster_sizes(placed.rows, 4, seed=1)) == planted
    assert placed.kept == pytest.approx(placed.total)
    # without sub-classes, of the same variances, the same clustering sees less of a tail
    plain = cluster_sizes(draw_reference(placed.rows, seed=1), 4, seed=1)
    assert effective_number([plain]) > effective_number([np.array(planted)])


CLASSES = 3


def _clouds(rows: int, columns: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of three well separated classes."""
    random = np.random.default_rng(seed)
    labels = np.arange(rows) % CLASSES
    return 6 * np.eye(CLASSES, columns)[labels] + random.normal(size=(rows, columns)), labels


def _scores(features: np.ndarray, labels: np.ndarray, **changes: object) -> Memorisation:
    given = {"units": np.arange(len(labels)), "heads": 100, "seed": 5} | changes
    return measure_memorisation(scale_columns(features), labels, num_classes=CLASSES, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(60, 8), (30, 50)])
@pytest.mark.parametrize("left_out", [0, 1, 11])
def test_a_head_without_rows_is_a_new_fit_without_them(
    shape: tuple[int, int], left_out: int
) -> None:
    random = np.random.default_rng(1)
    rows, targets = random.normal(size=shape), np.eye(CLASSES)[random.integers(3, size=shape[0])]
    out = np.sort(random.permutation(shape[0])[:left_out])
    kept = np.delete(rows, out, axis=0)
    expected = np.linalg.solve(
        kept.T @ kept + 0.3 * np.eye(shape[1]), kept.T @ np.delete(targets, out, axis=0)
    )
    assert Heads(rows, targets, 0.3).weights_without(out) == pytest.approx(expected, abs=1e-9)


def _with_outliers(columns: int, outliers: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of which the first few, of another label, stand where no other row does."""
    features, labels = _clouds(300, columns)
    features[:outliers] = 6 * np.eye(columns)[0] + 25 * np.eye(columns)[5]
    labels[:outliers] = 1
    return features, labels


@pytest.mark.parametrize("columns", [10, 150])
def test_a_planted_outlier_is_memorised_and_its_duplicates_are_not(columns: int) -> None:
    """A row in no class's place is learnt only from itself; of six copies four are mostly left."""
    features, labels = _with_outliers(columns, 1)
    alone = _scores(features, labels)
    assert alone.scores[0] > 0.9
    assert np.median(alone.scores[1:]) == 0
    copies = np.vstack([features, np.repeat(features[:1], 5, axis=0)])
    together = _scores(copies, np.append(labels, [1] * 5))
    assert together.scores[[0, *range(300, 305)]] == pytest.approx(0, abs=0.15)


def test_a_mislabelled_row_is_memorised_where_there_are_columns_to_do_it() -> None:
    features, labels = _clouds(90, 200)
    labels[7] = (labels[7] + 1) % CLASSES
    measured = _scores(features, labels)
    assert measured.scores[7] == measured.scores.max() > 0.8


def test_rows_of_a_unit_are_in_or_out_together() -> None:
    """Two copies in one unit are memorised as one is, and as two units they are less so."""
    features, labels = _with_outliers(10, 2)
    units = np.concatenate([[0, 0], np.arange(1, 299)])
    as_one = _scores(features, labels, units=units)
    assert as_one.scores[:2].min() > 0.9
    assert (as_one.heads_in[0], as_one.right_in[0]) == (as_one.heads_in[1], as_one.right_in[1])
    assert _scores(features, labels).scores[:2].max() < 0.6


def _drawn(share_in: float, share_out: float, rows: int) -> Memorisation:
    random = np.random.default_rng(0)
    heads_in = random.binomial(200, 0.7, size=rows)
    right_in, right_out = (
        random.binomial(heads, share)
        for heads, share in ((heads_in, share_in), (200 - heads_in, share_out))
    )
    return Memorisation(right_in, heads_in, right_out, 200 - heads_in, 1.0)


def test_the_standard_error_is_the_spread_of_scores() -> None:
    measured = _drawn(0.9, 0.5, 20_000)
    assert measured.scores.mean() == pytest.approx(0.4, abs=0.002)
    assert measured.standard_errors.mean() == pytest.approx(measured.scores.std(), rel=0.04)


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.25])
def test_chance_is_the_share_of_rows_that_nothing_distinguishes(threshold: float) -> None:
    measured = _drawn(0.6, 0.6, 40_000)
    assert measured.expected_share_above(threshold) == pytest.approx(
        measured.share_above(threshold), abs=0.01
    )


def test_chance_is_exact_where_all_outcomes_can_be_listed() -> None:
    """Two of four heads are right, two have the row: six orders, in one the score is 1."""
    two, none = np.array([2]), np.array([0])
    measured = Memorisation(two, two, none, two, 1.0)
    for threshold in (0.0, 0.25):  # four orders give 0, which is not above
        assert measured.expected_share_above(threshold) == pytest.approx(1 / 6)
