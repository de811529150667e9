"""Metrics of groups, compared with the project's, with scikit-learn's and with repeated rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import recall_score, roc_auc_score

from dpprobe.analyses.fairness import group_metrics
from dpprobe.analyses.fairness.fairness_record import GROUP_METRICS, PARITY_RATES
from dpprobe.analyses.fairness.group_metrics import PERMUTATIONS, Layout, Resamples
from dpprobe.results.metrics import Evaluation, Link
from tests.support.fairness_rows import compare, head, made_rows

METRICS = {"auc": "auc", "accuracy": "accuracy", "calibration_error": "expected_calibration_error"}


def _data(kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draws labels, scores with ties, groups and units; each unit is in one group."""
    generator = np.random.default_rng(seed)
    units = np.sort(generator.integers(80, size=240))
    units = np.unique(units, return_inverse=True)[1]
    groups = (units * 7) % 3
    classes = {"two": 2, "equal": 2, "five": 5, "several": 4}[kind]
    labels = generator.integers(classes, size=240)
    target = np.eye(classes)[labels]
    if kind == "several":
        labels = target = (generator.random((240, classes)) < 0.4).astype(np.int64)
    scores = np.round(generator.normal(size=(240, classes)) + target, 1).astype(np.float32)
    return labels, scores * (kind != "equal"), groups, units


@pytest.mark.parametrize("kind", ["two", "equal", "five", "several"])
def test_values_of_groups_are_the_metrics_of_their_rows(kind: str) -> None:
    labels, scores, groups, units = _data(kind)
    rows = made_rows(labels, {"site": groups.tolist()}, units=units)
    link: Link = "sigmoid" if kind == "several" else "softmax"
    once = Resamples(rows.count, 0, seed=0)
    for metric in set(head(rows, scores).metrics) - set(PARITY_RATES):
        values = compare(rows, metric).compute_metric(head(rows, scores), once)[0].mean(axis=1)
        for group in range(3):
            part = groups == group
            expected = Evaluation(
                scores[part],
                labels[part],
                link=link,
                units=np.unique(units[part], return_inverse=True)[1],
            ).compute_metrics()
            if metric in METRICS:
                assert values[group] == pytest.approx(expected[METRICS[metric]], abs=1e-12)
            elif kind == "five":
                assert values[group] == pytest.approx(expected["macro_accuracy"], abs=1e-12)


@pytest.mark.parametrize("metric", ["auc", "accuracy", "recall", "calibration_error"])
def test_a_resample_is_the_metric_of_the_rows_as_often_as_their_unit_is_drawn(metric: str) -> None:
    labels, scores, groups, units = _data("several", seed=1)
    rows = made_rows(labels, {"site": groups.tolist()}, units=units)
    resamples = Resamples(rows.count, 130, seed=3)
    drawn = compare(rows, metric).compute_metric(head(rows, scores), resamples)[1].mean(axis=1)
    counts = np.concatenate(resamples.blocks, axis=1)[:, 1:]
    assert counts.shape == (rows.count, 130)
    assert (counts.sum(axis=0) == rows.count).all()
    for resample in (0, 62, 63, 129):
        often = counts[units, resample]
        for group in range(3):
            place = np.repeat(np.flatnonzero(groups == group), often[groups == group])
            expected = _metric(metric, scores[place], labels[place], rows.weights[place])
            assert drawn[group, resample] == pytest.approx(expected, abs=1e-6)


def _metric(metric: str, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    if metric == "auc":
        return float(roc_auc_score(labels, scores, sample_weight=weights))
    if metric == "accuracy":
        right = (scores > 0) == (labels > 0)
        return float(np.average(right.mean(axis=1), weights=weights))
    if metric == "recall":
        return float(recall_score(labels, scores > 0, average="macro", sample_weight=weights))
    return _calibration(scores, labels, weights)


def _calibration(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    probability = 1 / (1 + np.exp(-scores.astype(np.float64)))
    place = np.ceil(probability * 15) - 1
    heavy = weights[:, None] * (probability - labels)
    return sum(abs(heavy[place == bin_].sum()) for bin_ in range(15)) / (weights.sum() * 4)


def test_a_group_without_rows_of_both_kinds_in_a_resample_has_no_value_there() -> None:
    labels = np.array([[1], [0], [1], [0], [1], [0]])
    rows = made_rows(labels, {"site": ["x", "x", "y", "y", "y", "y"]})
    resamples = Resamples(6, 400, seed=0)
    comparison = compare(rows, "auc")
    values, drawn = comparison.compute_metric(head(rows, np.arange(6.0)[:, None]), resamples)
    counts = np.concatenate(resamples.blocks, axis=1)[:, 1:]
    lacking = (counts[0] == 0) | (counts[1] == 0)
    assert 100 < lacking.sum() < 400
    assert (np.isnan(drawn[0, 0]) == lacking).all()
    assert values.tolist() == [[0.0], [0.25]]


@pytest.mark.parametrize("metric", [*GROUP_METRICS, *PARITY_RATES])
def test_groups_at_random_have_the_metrics_of_the_rows_they_are_given(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_metrics, "ROWS_AT_ONCE", 100)  # fewer than there are rows
    labels, scores, groups, units = _data("several", seed=2)
    rows = made_rows(labels, {"site": groups.tolist()}, units=units)
    comparison, made = compare(rows, metric), head(rows, scores)
    ways = comparison.ways
    assert ways is not None
    shuffled = comparison.compute_shuffled(made, ways)
    assert shuffled.shape[1:] == (3, PERMUTATIONS)
    once = Resamples(rows.count, 0, seed=0)
    for way in (0, 1, PERMUTATIONS - 1):
        # rows of one unit and one group stay together
        pairs = np.unique(np.stack([units, groups]), axis=1)
        assert np.bincount(ways[way]).tolist() == np.bincount(pairs[1]).tolist()
        block, _ = comparison.layout.assign_blocks(rows)
        layout = Layout(codes=ways[way][block].astype(np.int32), groups=3)
        values = [
            made.compute_metric(rate, layout, comparison.labels, once)[0]
            for rate in comparison.rates
        ]
        expected = values[0].mean(axis=1)[None] if metric in GROUP_METRICS else np.hstack(values).T
        assert shuffled[..., way] == pytest.approx(expected, abs=1e-12)


def test_no_number_of_threads_changes_a_draw() -> None:
    labels, scores, groups, units = _data("several", seed=4)
    rows = made_rows(labels, {"site": groups.tolist()}, units=units)
    one, three = (
        compare(rows, "auc").compute_metric(
            head(rows, scores), Resamples(rows.count, 200, seed=5, threads=threads)
        )[1]
        for threads in (1, 3)
    )
    assert np.array_equal(one, three, equal_nan=True)


@pytest.mark.parametrize(("units", "count"), [(1, 0), (5, 63), (5, 64), (7, 130)])
def test_resamples_draw_as_many_units_as_there_are_after_each_once(units: int, count: int) -> None:
    resamples = Resamples(units, count, seed=1)
    counts = np.concatenate(resamples.blocks, axis=1)
    assert counts.shape == (units, count + 1)
    assert (counts[:, 0] == 1).all()
    assert (counts.sum(axis=0) == units).all()
    other = np.concatenate(Resamples(units, count, seed=2).blocks, axis=1)
    assert count == 0 or not np.array_equal(counts, other)
    assert np.array_equal(counts, np.concatenate(Resamples(units, count, seed=1).blocks, axis=1))


def test_rows_are_sorted_by_group_and_keep_their_order_within_each() -> None:
    codes = np.array([0, 1, 2, -1, 0, 1, 2, -1, -1, 0, 0, 1], dtype=np.int32)
    order = np.arange(12)[::-1].copy()
    rows, starts = Layout(codes=codes, groups=4).in_groups(order)
    assert rows.tolist() == [10, 9, 4, 0, 11, 5, 1, 6, 2]
    assert starts.tolist() == [0, 4, 7, 9, 9], "the last group has no rows"


def test_blocks_are_the_rows_of_a_patient_in_a_group() -> None:
    codes = np.array([0, 1, 2, -1, 0, 0, 2, -1, -1, -1], dtype=np.int32)
    rows = made_rows(np.arange(10) % 2, units=np.arange(10) // 2)
    layout = Layout(codes=codes, groups=3)
    block, group = layout.assign_blocks(rows)
    pairs = [(unit // 2, 3 if code < 0 else code) for unit, code in enumerate(codes)]
    assert len(group) == len(set(pairs)) == 8
    for one in range(10):
        assert group[block[one]] == pairs[one][1]
        for other in range(10):
            assert (block[one] == block[other]) == (pairs[one] == pairs[other])
    ways = layout.shuffle_blocks(rows, 4)
    assert ways.shape == (PERMUTATIONS, 8)
    assert (np.sort(ways, axis=1) == np.sort(group)).all(), "groups keep their numbers of blocks"
    assert len(np.unique(ways, axis=0)) > PERMUTATIONS / 2
