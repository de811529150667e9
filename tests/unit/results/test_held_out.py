"""Halves of the test rows, and the best of several cells read on what did not choose it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpprobe.results.halves import HALVINGS, half_values, split_rows, split_units
from dpprobe.results.held_out import held_out
from dpprobe.results.metrics import evaluate_scores


def _halves(correct: np.ndarray) -> np.ndarray:
    """The accuracy of a cell's seeds on halves, from what is right, [seeds, rows]."""
    rows = correct.shape[1]
    labels = np.zeros(rows, dtype=np.int64)
    return np.array(
        [half_values("accuracy", np.eye(2)[1 - right.astype(int)], labels) for right in correct]
    )


def test_halves_are_disjoint_and_hold_each_class_evenly() -> None:
    labels = np.repeat([0, 1, 2], [600, 7, 2])
    halves = split_units(labels, np.arange(609))
    assert halves.shape == (HALVINGS, 2, 609)
    assert (halves.sum(axis=1) == 1).all()
    for split in halves:
        counts = np.array([np.bincount(labels[half], minlength=3) for half in split])
        assert (abs(counts[0] - counts[1]) <= 1).all()
        assert (counts[:, 2] == 1).all()
    assert len({split[0].tobytes() for split in halves}) == HALVINGS


def test_for_an_accuracy_classes_are_shuffled_together() -> None:
    """As many of a class fall in a half as of any rows, not the same number every time."""
    labels = np.repeat([0, 1], 300)
    counts = split_rows("accuracy", labels).members[:, 0, :300].sum(axis=1)
    assert counts.min() < 150 < counts.max()
    # hypergeometric: the standard deviation is 6.1
    assert 3 < counts.std() < 10
    even = split_rows("macro_accuracy", labels).members[:, 0, :300].sum(axis=1)
    assert set(even) == {150}


def test_splits_of_classes_are_those_of_a_sort_by_class_and_number() -> None:
    labels = np.random.default_rng(0).integers(300, size=2000)
    generator = np.random.Generator(np.random.Philox(20260101))
    for split in split_units(labels, np.arange(2000)):
        order = np.lexsort((generator.random(2000), labels))
        expected = np.empty(2000, dtype=bool)
        expected[order] = np.arange(2000) % 2 == generator.integers(2)
        np.testing.assert_array_equal(split, [expected, ~expected])


def test_only_the_metric_that_is_asked_for_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(0).integers(2, size=50)
    scores = np.random.default_rng(1).normal(size=(50, 2))
    expected = half_values("accuracy", scores, labels)

    def costly(*_: Any) -> None:
        raise AssertionError("made")

    for name in ("label_ranks", "Runs", "Recalls"):
        monkeypatch.setattr(f"dpprobe.results.uncertainty.{name}", costly)
    assert half_values("accuracy", scores, labels) == expected
    with pytest.raises(AssertionError, match="made"):
        half_values("auc", scores, labels)


def test_patients_stay_together() -> None:
    units = np.array([3, 3, 0, 0, 1, 2])
    assert split_units(np.zeros(6, dtype=np.int64), units).shape == (HALVINGS, 2, 4)


@pytest.mark.parametrize("metric", ["accuracy", "auc", "macro_accuracy"])
@pytest.mark.parametrize("patients", [False, True])
def test_values_on_halves_are_those_of_their_rows(metric: Any, patients: bool) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=80)
    scores = generator.normal(size=(80, 2)) + np.eye(2)[labels]
    units = generator.integers(25, size=80) if patients else None
    codes = np.arange(80) if units is None else np.unique(units, return_inverse=True)[1]
    values = half_values(metric, scores, labels, units=units)
    members = split_rows(metric, labels, units=units).members
    strata = None if metric == "accuracy" else labels
    np.testing.assert_array_equal(members, split_units(strata, codes))
    for pair, split in zip(values, members, strict=True):
        for value, half in zip(pair, split, strict=True):
            rows = half[codes]
            own_units = None if units is None else codes[rows]
            expected = evaluate_scores(scores[rows], labels[rows], units=own_units)[metric]
            assert value == pytest.approx(expected, abs=2e-6)


def test_a_half_without_one_of_the_classes_has_no_area() -> None:
    scores = np.random.default_rng(0).normal(size=(3, 2))
    values = half_values("auc", scores, np.array([0, 0, 1]))
    assert all(None in pair for pair in values)
    assert half_values("accuracy", scores[:1], np.array([0])) == []
    assert half_values("auc", scores, np.zeros(3, dtype=np.int64)) == []
    cell = np.array([values, values], dtype=np.float64)
    assert held_out([0.5, 0.4], [cell, cell], 0) is None


def test_several_labels_have_their_mean_area_on_halves() -> None:
    generator = np.random.default_rng(0)
    labels = (generator.random((60, 3)) < 0.4).astype(np.uint8)
    values = half_values("auc", generator.normal(size=(60, 3)), labels, link="sigmoid")
    assert np.isfinite(np.array(values, dtype=np.float64)).all()


@pytest.mark.parametrize(("seeds", "spread"), [(1, 0.0), (4, 0.0), (4, 0.06)])
def test_the_best_of_equal_cells_is_reported_without_bias(seeds: int, spread: float) -> None:
    """12 cells of which each is right in 8 of 10 rows, its seeds in more or fewer by `spread`.

    The mean of the best is too high by several standard errors; what is reported is not.
    """
    generator = np.random.default_rng(0)
    naive, reported = [], []
    for _ in range(120):
        hard = generator.random(120)  # rows are as hard for all cells
        chance = np.clip(0.8 + spread * generator.normal(size=(12, seeds, 1)), 0, 1)
        correct = 0.5 * hard + 0.5 * generator.random((12, seeds, 120)) < _quantile(chance)
        means = correct.mean(axis=(1, 2))
        best = int(means.argmax())
        result = held_out(list(means), [_halves(cell) for cell in correct], best)
        assert result is not None
        naive.append(means[best] - 0.8)
        reported.append(result.value - 0.8)
    error = np.std(reported) / len(reported) ** 0.5
    assert np.mean(naive) > 6 * error
    assert abs(np.mean(reported)) < 3.5 * error


def _quantile(chance: np.ndarray) -> np.ndarray:
    """The quantile of (U + V) / 2, U and V uniform: below it with that chance."""
    low, high = np.sqrt(chance / 2), 1 - np.sqrt((1 - chance) / 2)
    return np.asarray(np.where(chance < 0.5, low, high))


def test_a_cell_that_wins_everywhere_keeps_its_mean() -> None:
    generator = np.random.default_rng(0)
    correct = generator.random((3, 4, 200)) < np.array([0.5, 0.95, 0.6])[:, None, None]
    means = correct.mean(axis=(1, 2))
    result = held_out(list(means), [_halves(cell) for cell in correct], 1)
    assert result is not None
    assert result.value == means[1]
    assert result.seeds


def test_nothing_is_chosen_of_one_cell_and_nothing_known_without_halves() -> None:
    cell = np.full((2, 8, 2), 0.5)
    assert held_out([0.5], [cell], 0) is None
    assert held_out([0.5, 0.4], [cell, None], 0) is None
