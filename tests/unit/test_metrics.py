"""Accuracy, calibration and their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import balanced_accuracy_score, top_k_accuracy_score

from dpprobe.errors import DataError
from dpprobe.metrics import ROW_INTERVAL, SEED_INTERVAL, calibration_error, evaluate, summarise


def _scores(seed: int, *, rows: int = 300, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=rows)
    return generator.normal(size=(rows, classes)) + 1.5 * np.eye(classes)[labels], labels


def test_evaluate_agrees_with_scikit_learn() -> None:
    scores, labels = _scores(0, classes=12)
    result = evaluate(scores, labels)
    assert result["accuracy"] == pytest.approx(np.mean(scores.argmax(1) == labels))
    assert result["macro_accuracy"] == pytest.approx(
        balanced_accuracy_score(labels, scores.argmax(1))
    )
    assert result["top5_accuracy"] == pytest.approx(top_k_accuracy_score(labels, scores, k=5))


def test_top5_is_left_out_for_few_classes() -> None:
    assert "top5_accuracy" not in evaluate(*_scores(0, classes=10))


def test_a_class_without_test_rows_has_no_recall_and_does_not_enter_the_mean() -> None:
    scores = np.array([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    result = evaluate(scores, np.array([0, 1, 1]))
    assert result["per_class_recall"] == [1.0, 0.5, None]
    assert result["macro_accuracy"] == 0.75


def test_equal_scores_rank_in_class_order() -> None:
    result = evaluate(np.zeros((4, 11)), np.array([0, 4, 5, 10]))
    assert result["accuracy"] == 0.25
    assert result["top5_accuracy"] == 0.5


def test_calibration_error_of_a_head_that_knows_its_accuracy() -> None:
    # Softmax of (log 4, 0) says 0.8; four in five such rows are right.
    scores = np.tile([np.log(4.0), 0.0], (10, 1))
    assert calibration_error(scores, np.arange(10) < 8) == pytest.approx(0.0, abs=1e-12)
    assert calibration_error(scores, np.arange(10) < 3) == pytest.approx(0.5)


def test_calibration_error_against_a_plain_loop() -> None:
    scores, labels = _scores(3)
    probability = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    confidence, correct = probability.max(1), probability.argmax(1) == labels
    expected = 0.0
    for index in range(15):
        own = (confidence > index / 15) & (confidence <= (index + 1) / 15)
        if own.any():
            expected += own.mean() * abs(confidence[own].mean() - correct[own].mean())
    assert calibration_error(scores, correct) == pytest.approx(expected)


def test_huge_scores_do_not_overflow() -> None:
    result = evaluate(np.array([[1e30, -1e30], [-1e30, 1e30]]), np.array([0, 0]))
    assert result["expected_calibration_error"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (np.zeros((3, 2)), np.zeros(2, dtype=int), "do not match"),
        (np.zeros((0, 2)), np.zeros(0, dtype=int), "do not match"),
        (np.zeros((2, 2)), np.array([0, 2]), "2 scores a row"),
        (np.array([[0.0, 1.0], [np.nan, 0.0]]), np.array([0, 1]), "test row 1 are not finite"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    scores: np.ndarray, labels: np.ndarray, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        evaluate(scores, labels)


def test_interval_over_seeds_is_students() -> None:
    values = np.array([0.70, 0.72, 0.69, 0.74, 0.71])
    entry = summarise([{"index": i, "accuracy": value} for i, value in enumerate(values)])
    low, high = stats.t.interval(0.95, 4, loc=values.mean(), scale=stats.sem(values))
    found = entry["accuracy"]
    assert found["mean"] == pytest.approx(values.mean())
    assert found["std"] == pytest.approx(values.std(ddof=1))
    assert (found["low"], found["high"]) == (pytest.approx(low), pytest.approx(high))
    assert (found["count"], found["interval"]) == (5, SEED_INTERVAL)
    assert "index" not in entry


def test_one_seed_has_a_bootstrap_interval_close_to_the_binomial_one() -> None:
    scores, labels = _scores(1, rows=2000)
    correct = scores.argmax(1) == labels
    summary = summarise([evaluate(scores, labels)], correct=correct, labels=labels)
    entry = summary["accuracy"]
    half = 1.96 * np.sqrt(entry["mean"] * (1 - entry["mean"]) / 2000)
    assert entry["high"] - entry["low"] == pytest.approx(2 * half, rel=0.08)
    assert entry["low"] < entry["mean"] < entry["high"]
    assert (entry["interval"], entry["std"], entry["count"]) == (ROW_INTERVAL, None, 1)
    assert summary["macro_accuracy"]["interval"] == ROW_INTERVAL
    assert summary["expected_calibration_error"]["interval"] is None


def test_bootstrap_agrees_with_resampling_rows() -> None:
    scores, labels = _scores(2, rows=150, classes=3)
    correct = scores.argmax(1) == labels
    summary = summarise([evaluate(scores, labels)], correct=correct, labels=labels)
    generator = np.random.default_rng(0)
    means = []
    for _ in range(2000):
        rows = generator.integers(150, size=150)
        means.append(np.mean([correct[rows][labels[rows] == k].mean() for k in range(3)]))
    entry = summary["macro_accuracy"]
    assert entry["low"] == pytest.approx(np.quantile(means, 0.025), abs=0.012)
    assert entry["high"] == pytest.approx(np.quantile(means, 0.975), abs=0.012)


def test_seeds_that_do_not_vary_get_the_bootstrap_and_no_spread() -> None:
    scores, labels = _scores(4)
    record = evaluate(scores, labels)
    entry = summarise([record] * 3, correct=scores.argmax(1) == labels, labels=labels)["accuracy"]
    assert (entry["std"], entry["count"], entry["interval"]) == (0.0, 3, ROW_INTERVAL)
    assert entry["mean"] == record["accuracy"]
    assert entry["high"] > entry["low"]


def test_without_rows_one_seed_has_no_interval() -> None:
    entry = summarise([{"accuracy": 0.5}])["accuracy"]
    assert (entry["low"], entry["high"], entry["interval"]) == (None, None, None)


def test_the_bootstrap_is_seeded() -> None:
    correct = np.arange(50) < 30
    runs = [summarise([{"accuracy": 0.6}], correct=correct, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(2, 14), st.integers(0, 2**32 - 1))
def test_metrics_are_fractions(rows: int, classes: int, seed: int) -> None:
    result = evaluate(*_scores(seed, rows=rows, classes=classes))
    recall = [value for value in result.pop("per_class_recall") if value is not None]
    assert all(0.0 <= value <= 1.0 for value in [*result.values(), *recall])


def test_seeds_that_differ_in_rounding_alone_get_the_bootstrap() -> None:
    correct = np.arange(100) < 90
    records = [
        {"accuracy": 0.9, "macro_accuracy": 0.9, "expected_calibration_error": 0.1 + offset}
        for offset in (0.0, 1e-9, -1e-9)
    ]
    entry = summarise(records, correct=correct)["accuracy"]
    assert entry["interval"] == ROW_INTERVAL
    assert entry["low"] < 0.9 < entry["high"]
