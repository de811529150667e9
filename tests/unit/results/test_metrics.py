"""Accuracy, calibration and their intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from dpprobe.results import bootstrap, metrics
from dpprobe.results.bootstrap import Runs
from dpprobe.results.intervals import wilson_interval
from dpprobe.results.metrics import (
    calibration_error,
    evaluate_scores,
    ranked_labels,
    right_predictions,
)
from dpprobe.results.uncertainty import (
    ROW_BOOTSTRAP,
    ROW_CLASSES,
    ROW_PROPORTION,
    SEED_INTERVAL,
    summarise_records,
)


def _scores(seed: int, *, rows: int = 300, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=rows)
    return generator.normal(size=(rows, classes)) + 1.5 * np.eye(classes)[labels], labels


def _multi_hot(
    seed: int, *, rows: int = 300, classes: int = 4, digits: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of which each is there in a fifth of the rows; rounding makes ties."""
    generator = np.random.default_rng(seed)
    labels = (generator.random((rows, classes)) < 0.2).astype(np.uint8)
    scores = generator.normal(size=(rows, classes)) + 1.5 * labels - 1.0
    return (scores if digits is None else scores.round(digits)), labels


def test_calibration_error_of_a_head_that_knows_its_accuracy() -> None:
    probability = np.full(10, 0.8)
    assert calibration_error(probability, np.arange(10) < 8) == pytest.approx(0.0, abs=1e-12)
    assert calibration_error(probability, np.arange(10) < 3) == pytest.approx(0.5)


@pytest.mark.parametrize("several", [False, True])
def test_calibration_error_against_a_plain_loop(several: bool) -> None:
    if several:
        scores, labels = _multi_hot(2)
        probability, outcome = (1 / (1 + np.exp(-scores))).ravel(), labels.ravel()
    else:
        scores, labels = _scores(3)
        chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        probability, outcome = chances.max(1), chances.argmax(1) == labels
    expected = 0.0
    for index in range(15):
        own = (probability > index / 15) & (probability <= (index + 1) / 15)
        if own.any():
            expected += own.mean() * abs(probability[own].mean() - outcome[own].mean())
    found = evaluate_scores(scores, labels, link="sigmoid" if several else "softmax")
    assert found["expected_calibration_error"] == pytest.approx(expected)


def _summary(
    scores: np.ndarray,
    labels: np.ndarray,
    records: list[dict[str, Any]] | None = None,
    link: metrics.Link = "softmax",
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Summarises records, by default of these scores alone, with intervals over the rows."""
    return summarise_records(
        records or [evaluate_scores(scores, labels, link=link)],
        correct=right_predictions(scores, labels, link=link),
        labels=labels,
        scores=scores,
        seed=seed,
    )


def _summarise_shares(records: list[dict[str, Any]], correct: np.ndarray) -> dict[str, Any]:
    """Summarises records of shares, which need neither labels nor scores."""
    labels, scores = np.zeros(len(correct), dtype=int), np.zeros((len(correct), 2))
    return summarise_records(records, correct=correct, labels=labels, scores=scores)


def test_interval_over_seeds_is_students() -> None:
    values = np.array([0.70, 0.72, 0.69, 0.74, 0.71])
    records = [{"index": i, "accuracy": value} for i, value in enumerate(values)]
    entry = _summarise_shares(records, np.arange(100) < 71)
    low, high = stats.t.interval(0.95, 4, loc=values.mean(), scale=stats.sem(values))
    found = entry["accuracy"]
    assert found["mean"] == pytest.approx(values.mean())
    assert found["std"] == pytest.approx(values.std(ddof=1))
    assert (found["low"], found["high"]) == (pytest.approx(low), pytest.approx(high))
    assert (found["count"], found["interval"]) == (5, SEED_INTERVAL)
    assert "index" not in entry


@pytest.mark.parametrize("accuracies", [[0.9], [0.9] * 3, [0.9, 0.9 + 1e-9, 0.9 - 1e-9]])
def test_seeds_that_do_not_vary_have_the_interval_over_test_rows(accuracies: list[float]) -> None:
    """The seeds may differ in other metrics."""
    records = [
        {"accuracy": accuracy, "expected_calibration_error": 0.1 * index}
        for index, accuracy in enumerate(accuracies)
    ]
    summary = _summarise_shares(records, np.arange(10) < 9)
    entry, seeds = summary["accuracy"], len(accuracies)
    assert (entry["low"], entry["high"]) == wilson_interval(0.9, 10)
    assert (entry["interval"], entry["count"]) == (ROW_PROPORTION, seeds)
    assert entry["std"] == (None if seeds == 1 else 0.0)
    others = summary["expected_calibration_error"]["interval"]
    assert others == (None if seeds == 1 else SEED_INTERVAL)


@pytest.mark.parametrize(("right", "rows"), [(0, 3), (3, 3), (1, 1), (47, 300), (299, 300)])
def test_wilson_is_scipys(right: int, rows: int) -> None:
    expected = stats.binomtest(right, rows).proportion_ci(0.95, method="wilson")
    assert wilson_interval(right / rows, rows) == pytest.approx(
        (expected.low, expected.high), abs=1e-12
    )


def _three_rows(right: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and labels of three test rows, so many of them right."""
    labels = np.array([0, 1, 1])
    chosen = np.where(np.arange(3) < right, labels, 1 - labels)
    return 4.0 * np.eye(2)[chosen], labels


@pytest.mark.parametrize("seeds", [1, 2, 5])
@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_three_test_rows_leave_much_open(right: int, seeds: int) -> None:
    scores, labels = _three_rows(right)
    summary = _summary(scores, labels, [evaluate_scores(scores, labels)] * seeds)
    entry = summary["accuracy"]
    assert (entry["rows_low"], entry["rows_high"]) == wilson_interval(right / 3, 3)
    assert entry["rows_high"] - entry["rows_low"] > 0.5, "all right says little of a fourth row"
    for name in ("macro_accuracy", "auc"):
        low, high = summary[name]["both_low"], summary[name]["both_high"]
        assert high - low > 0.5, "also where every resample is the same"
        assert low <= summary[name]["mean"] <= high


def test_a_private_cell_has_the_uncertainty_of_its_test_rows_beside_that_of_its_seeds() -> None:
    scores, labels = _scores(5, classes=2)
    others = scores + np.random.default_rng(1).normal(size=scores.shape) / 2
    records = [evaluate_scores(each, labels) for each in (scores, others)]
    summary, alone = _summary(scores, labels, records), _summary(scores, labels)
    entry = summary["accuracy"]
    assert (entry["interval"], entry["rows_interval"]) == (SEED_INTERVAL, ROW_PROPORTION)
    mean = (records[0]["accuracy"] + records[1]["accuracy"]) / 2
    assert (entry["rows_low"], entry["rows_high"]) == pytest.approx(wilson_interval(mean, 300))
    for name, kind in (("macro_accuracy", ROW_CLASSES), ("auc", ROW_BOOTSTRAP)):
        moved = summary[name]["mean"] - alone[name]["mean"]
        assert summary[name]["interval"] == SEED_INTERVAL
        assert summary[name]["rows_interval"] == kind
        assert summary[name]["rows_low"] == pytest.approx(alone[name]["rows_low"] + moved)
        assert summary[name]["rows_high"] == pytest.approx(alone[name]["rows_high"] + moved)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12), st.integers(2, 12), st.integers(1, 4), st.booleans(),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_intervals_stay_within_0_and_1_and_hold_the_mean(
    rows: int, classes: int, seeds: int, several: bool, seed: int
) -> None:
    make = _multi_hot if several else _scores
    link: metrics.Link = "sigmoid" if several else "softmax"
    scores, labels = make(seed, rows=rows, classes=classes)
    generator = np.random.default_rng(seed)
    each = [scores + generator.normal(size=scores.shape) for _ in range(seeds)]
    records = [evaluate_scores(item, labels, link=link) for item in each]
    for entry in _summary(each[0], labels, records, link).values():
        for low, high in (("low", "high"), ("rows_low", "rows_high")):
            if entry[low] is not None:
                assert 0.0 <= entry[low] < entry[high] <= 1.0
        if entry["interval"] in (SEED_INTERVAL, ROW_PROPORTION):
            assert entry["low"] <= entry["mean"] <= entry["high"]


def test_labels_that_all_rows_share_are_left_out_of_the_means() -> None:
    scores, labels = _multi_hot(1, classes=5)
    labels[:, 1], labels[:, 3] = 0, 1
    found = evaluate_scores(scores, labels, link="sigmoid")
    kept = [0, 2, 4]
    assert ranked_labels(labels, 5) == kept
    for name, mean in (
        ("per_label_auc", "auc"),
        ("per_label_average_precision", "mean_average_precision"),
    ):
        values = found[name]
        assert values[1] is values[3] is None
        assert found[mean] == pytest.approx(np.mean([values[label] for label in kept]))
    assert None not in found["per_label_accuracy"]
    alone = evaluate_scores(scores[:, [1, 3]], labels[:, [1, 3]], link="sigmoid")
    assert "auc" not in alone
    assert alone["per_label_auc"] == [None, None]


def test_scores_that_are_no_logits_are_cut_at_a_half() -> None:
    scores = np.array([[0.6, 0.4], [0.5, 0.51]])
    labels = np.array([[1, 0], [0, 0]])
    assert right_predictions(scores, labels, link="none").tolist() == [[True, True], [True, False]]
    assert right_predictions(scores, labels, link="sigmoid").tolist() == [
        [True, False],
        [False, False],
    ]
    assert "expected_calibration_error" not in evaluate_scores(scores, labels, link="none")


def test_bootstrap_over_labels_agrees_with_resampling_rows() -> None:
    scores, labels = _multi_hot(3, rows=60, classes=3, digits=1)
    labels[:, 0] = 0
    labels[:3, 0] = 1  # one resample in twenty has none of these
    summary = _summary(scores, labels, link="sigmoid")
    assert summary["exact_match_accuracy"]["interval"] == ROW_PROPORTION
    generator = np.random.default_rng(0)
    drawn = [generator.integers(60, size=60) for _ in range(400)]
    found = [evaluate_scores(scores[rows], labels[rows], link="sigmoid") for rows in drawn]
    for name in ("auc", "accuracy"):
        values = [each.get(name, np.nan) for each in found]
        low, high = np.nanquantile(values, [0.025, 0.975])
        assert summary[name]["low"] == pytest.approx(low, abs=0.03), name
        assert summary[name]["high"] == pytest.approx(high, abs=0.03), name
    assert summary["mean_average_precision"]["interval"] is None
    assert not [name for name in summary if name.startswith("per_label")]


def test_weighted_areas_are_those_of_repeated_rows() -> None:
    generator = np.random.default_rng(0)
    for seed in range(20):
        scores, labels = _multi_hot(seed, rows=25, classes=1, digits=seed % 2)
        positive = labels[:, 0] != 0
        if not positive.any():
            continue
        counts = generator.integers(0, 4, size=(25, 6)).astype(np.float32)
        counts[positive, 5] = 0
        found = Runs(scores[:, 0], positive, np.arange(25), np.ones(25)).compute_areas(counts)
        assert np.isnan(found[5])
        for column in range(5):
            rows = np.repeat(np.arange(25), counts[:, column].astype(int))
            expected = np.nan
            if len(set(positive[rows])) == 2:
                expected = roc_auc_score(positive[rows], scores[rows, 0])
            assert found[column] == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_the_bootstrap_does_not_depend_on_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, labels = _multi_hot(4, rows=50)
    whole = _summary(scores, labels, link="sigmoid")
    monkeypatch.setattr(bootstrap, "_BLOCK_BYTES", 50 * 4 * 300)
    assert _summary(scores, labels, link="sigmoid") == whole


def test_a_probability_on_an_edge_is_in_the_bin_below_it() -> None:
    edges = np.linspace(0.0, 1.0, metrics.CALIBRATION_BINS + 1)[1:]
    for edge, middle in zip(edges, edges - 0.5 / metrics.CALIBRATION_BINS, strict=True):
        # In one bin, the two gaps cancel in part.
        error = calibration_error(np.array([edge, middle]), np.array([True, False]))
        assert error == pytest.approx(abs(edge - 1 + middle) / 2)
