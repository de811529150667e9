"""Memorisation scores: heads against new fits, planted rows, chance, removal."""

from __future__ import annotations

import numpy as np
import pytest

from dpprobe.analyses.long_tail.memorisation import (
    HeadsByColumns,
    HeadsByRows,
    Memorisation,
    Scaling,
    _draw_subsets,
    measure_memorisation,
    remove_memorised,
    ridge_heads,
)
from dpprobe.errors import DataError

CLASSES = 3


def _clouds(rows: int, columns: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of three well separated classes."""
    random = np.random.default_rng(seed)
    labels = np.arange(rows) % CLASSES
    return 6 * np.eye(CLASSES, columns)[labels] + random.normal(size=(rows, columns)), labels


def _scores(features: np.ndarray, labels: np.ndarray, **changes: object) -> Memorisation:
    given = {"units": np.arange(len(labels)), "heads": 100, "seed": 5} | changes
    columns = Scaling.measure_scaling(features).scale_columns(features)
    return measure_memorisation(columns, labels, num_classes=CLASSES, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [HeadsByColumns, HeadsByRows])
@pytest.mark.parametrize("shape", [(60, 8), (30, 50)])
@pytest.mark.parametrize("left_out", [0, 1, 11])
def test_a_head_without_rows_is_a_new_fit_without_them(
    kind: type, shape: tuple[int, int], left_out: int
) -> None:
    random = np.random.default_rng(1)
    rows, targets = random.normal(size=shape), np.eye(CLASSES)[random.integers(3, size=shape[0])]
    out = np.sort(random.permutation(shape[0])[:left_out])
    kept = np.delete(rows, out, axis=0)
    expected = np.linalg.solve(
        kept.T @ kept + 0.3 * np.eye(shape[1]), kept.T @ np.delete(targets, out, axis=0)
    )
    assert kind(rows, targets, 0.3).weights_without(out) == pytest.approx(expected, abs=1e-9)


def test_few_rows_are_solved_by_rows_and_many_by_columns() -> None:
    targets = np.eye(CLASSES)[np.zeros(40, dtype=int)]
    assert isinstance(ridge_heads(np.ones((40, 30)), targets, 1.0), HeadsByRows)
    assert isinstance(ridge_heads(np.ones((40, 5)), targets, 1.0), HeadsByColumns)


def _with_outliers(columns: int, outliers: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of which the first few, of another label, stand where no other row does."""
    features, labels = _clouds(300, columns)
    features[:outliers] = 6 * np.eye(columns)[0] + 25 * np.eye(columns)[5]
    labels[:outliers] = 1
    return features, labels


@pytest.mark.parametrize("columns", [10, 150], ids=["by columns", "by rows"])
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


def test_each_head_has_seven_tenths_of_the_units() -> None:
    units = np.repeat(np.arange(50), 2)
    drawn = list(_draw_subsets(units, 400, seed=3, name="test"))
    assert {int(out.sum()) for out in drawn} == {30}
    share = np.mean(drawn, axis=0)
    assert share == pytest.approx(0.3, abs=0.12), "five standard errors"
    assert all(np.array_equal(out[::2], out[1::2]) for out in drawn)


def test_the_same_seed_gives_the_same_scores() -> None:
    features, labels = _clouds(60, 5)
    first, second = (_scores(features, labels, heads=60) for _ in range(2))
    assert np.array_equal(first.right_in, second.right_in)
    other = _scores(features, labels, heads=60, seed=6)
    assert not np.array_equal(first.heads_in, other.heads_in)


def _drawn(share_in: float, share_out: float, rows: int) -> Memorisation:
    random = np.random.default_rng(0)
    heads_in = random.binomial(200, 0.7, size=rows)
    return Memorisation(
        random.binomial(heads_in, share_in),
        heads_in,
        random.binomial(200 - heads_in, share_out),
        200 - heads_in,
        1.0,
    )


def test_the_standard_error_is_the_spread_of_scores() -> None:
    measured = _drawn(0.9, 0.5, 20_000)
    assert measured.scores.mean() == pytest.approx(0.4, abs=0.002)
    assert measured.standard_errors.mean() == pytest.approx(measured.scores.std(), rel=0.04)


def _counted(*counts: list[int]) -> Memorisation:
    """Makes scores from right_in, heads_in, right_out and heads_out of each row."""
    right_in, heads_in, right_out, heads_out = map(np.array, counts)
    return Memorisation(right_in, heads_in, right_out, heads_out, 1.0)


def test_agreement_of_all_heads_is_no_certainty() -> None:
    measured = _counted([140], [140], [0], [60])
    assert measured.scores[0] == 1
    assert 0.005 < measured.standard_errors[0] < 0.05


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.25])
def test_chance_is_the_share_of_rows_that_nothing_distinguishes(threshold: float) -> None:
    measured = _drawn(0.6, 0.6, 40_000)
    assert measured.expected_share_above(threshold) == pytest.approx(
        measured.share_above(threshold), abs=0.01
    )


def test_chance_is_exact_where_all_outcomes_can_be_listed() -> None:
    """Two of four heads are right, two have the row: six orders, in one the score is 1."""
    measured = _counted([2], [2], [0], [2])
    assert measured.expected_share_above(0.25) == pytest.approx(1 / 6)
    assert measured.expected_share_above(0.0) == pytest.approx(1 / 6), (
        "four orders give 0, which is not above"
    )


def test_rows_that_all_heads_have_are_left_out() -> None:
    measured = _counted([3, 4], [4, 4], [0, 0], [4, 0])
    assert np.isnan(measured.scores[1])
    assert measured.share_above(0.25) == 1
    assert 0 < measured.expected_share_above(0.25) < 1


def test_too_few_units_are_refused() -> None:
    features, labels = _clouds(19, 4)
    with pytest.raises(DataError, match="19 units; 20 are needed"):
        _scores(features, labels)


@pytest.mark.parametrize("features", [np.zeros((40, 3)), np.full((40, 3), 1e30)])
def test_equal_rows_are_nobodys_memory(features: np.ndarray) -> None:
    measured = _scores(features, np.arange(40) % 2)
    assert np.isfinite(measured.scores).all()
    assert measured.share_above(0.9) == 0


def test_rows_that_carry_a_sub_class_are_missed_and_random_ones_are_not() -> None:
    """The third class lives on four rows: without them, unlike others, all its tests are wrong."""
    features, labels = _clouds(200, 6)
    keep = (labels != 2) | (np.cumsum(labels == 2) <= 4)
    features, labels = features[keep], labels[keep]
    test, test_labels = _clouds(90, 6, seed=1)
    scaling = Scaling.measure_scaling(features)
    given = {"num_classes": CLASSES, "ridge": 0.1, "seed": 0}
    sides = (
        (scaling.scale_columns(features), labels),
        (scaling.scale_columns(test), test_labels, np.arange(90)),
    )
    result = remove_memorised(*sides, labels == 2, **given)  # type: ignore[arg-type]
    assert result is not None
    assert result.removed == 4
    assert result.accuracy > 0.97
    assert result.without == pytest.approx(2 / 3)
    assert result.lost == pytest.approx(1 / 3, abs=0.03)
    assert result.low < result.lost < result.high
    assert result.low > 0.2
    harmless = remove_memorised(*sides, np.arange(len(labels)) < 2, **given)  # type: ignore[arg-type]
    assert harmless is not None
    assert harmless.low < 0 < harmless.high, "an interval has a width where nothing changes"
    nobody = np.zeros(len(labels), dtype=bool)
    assert remove_memorised(*sides, nobody, **given) is None  # type: ignore[arg-type]
    assert remove_memorised(*sides, ~nobody, **given) is None  # type: ignore[arg-type]
