"""Intervals over seeds and test rows: never without width, and they hold what they should."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from dpprobe.results.intervals import combine_errors, over_classes, wilson_interval
from dpprobe.results.metrics import evaluate_scores, right_predictions
from dpprobe.results.uncertainty import summarise_records

TIMES = 400


def test_errors_add_up_side_by_side() -> None:
    assert combine_errors(0.5, (0.47, 0.54), (0.46, 0.53)) == pytest.approx((0.45, 0.55))
    assert combine_errors(0.99, (0.9, 1.0), (0.9, 1.0))[1] <= 1.0


@pytest.mark.parametrize(
    ("rows", "recalls"),
    [((600, 60), (0.95, 0.7)), ((600, 3), (0.95, 0.7)), ((5,) * 100, (0.8,) * 100),
     ((1,) * 100, (0.8,) * 100), ((600, 60), (1.0, 0.0))],
)  # fmt: skip
def test_the_interval_of_a_mean_over_classes_covers(
    rows: tuple[int, ...], recalls: tuple[float, ...]
) -> None:
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(rows)), rows)
    held = 0
    for _ in range(TIMES):
        correct = generator.random(len(labels)) < np.array(recalls)[labels]
        recall = np.bincount(labels, weights=correct) / np.array(rows)
        low, high = over_classes(float(recall.mean()), correct, labels)
        assert low < high
        held += bool(low <= np.mean(recalls) <= high)
    assert held >= 0.92 * TIMES


@pytest.mark.parametrize("seeds", [2, 5])
@pytest.mark.parametrize(
    ("noise", "base"), [(0.0, 2.0), (0.3, 2.0), (1.0, 1.0), (0.05, 4.5)], ids=str
)
def test_seeds_and_rows_together_cover_what_neither_does(
    seeds: int, noise: float, base: float
) -> None:
    """Rows are easy or hard, seeds lucky or not: the truth is the mean over both."""
    generator = np.random.default_rng(1)
    draws = generator.normal(size=(200_000, 2))
    truth = float(expit(base + draws[:, 0] + noise * draws[:, 1]).mean())
    held, rows_alone = 0, 0
    for _ in range(TIMES):
        easy, luck = generator.normal(size=300), noise * generator.normal(size=(seeds, 1))
        correct = generator.random((seeds, 300)) < expit(base + easy + luck)
        records = [{"accuracy": float(each.mean())} for each in correct]
        entry = summarise_records(
            records, correct=correct[0], labels=np.zeros(300, dtype=int), scores=np.zeros((300, 2))
        )["accuracy"]
        assert entry["both_low"] <= entry["rows_low"] < entry["rows_high"] <= entry["both_high"]
        held += entry["both_low"] <= truth <= entry["both_high"]
        rows_alone += entry["rows_low"] <= truth <= entry["rows_high"]
    assert held >= 0.935 * TIMES
    if noise == 1.0:
        assert rows_alone < 0.7 * TIMES, "the seeds' luck is no part of an interval over rows"


def test_each_metric_decides_for_itself_whether_seeds_vary() -> None:
    """Accuracy is the majority's in every seed; the AUC differs."""
    labels = np.zeros(660, dtype=np.int64)
    labels[:60] = 1
    generator = np.random.default_rng(2)
    scores = [generator.normal(size=(660, 2)) * 0.1 + [9.0, 0.0] for _ in range(5)]
    records = [evaluate_scores(each, labels) for each in scores]
    summary = summarise_records(
        records, correct=right_predictions(scores[0], labels), labels=labels, scores=scores[0]
    )
    entry = summary["accuracy"]
    assert entry["mean"] == pytest.approx(600 / 660)
    assert (entry["low"], entry["high"]) == wilson_interval(entry["mean"], 660)
    assert (entry["both_low"], entry["both_high"]) == (entry["low"], entry["high"])
    assert summary["auc"]["std"] > 0
    assert summary["auc"]["both_high"] - summary["auc"]["both_low"] > 0.1
