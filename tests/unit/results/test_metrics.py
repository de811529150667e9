"""Accuracy, calibration and their intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    roc_auc_score,
    top_k_accuracy_score,
)

from dpprobe.errors import DataError
from dpprobe.results import bootstrap, metrics
from dpprobe.results.bootstrap import Runs
from dpprobe.results.intervals import wilson_interval
from dpprobe.results.metrics import (
    calibration_error,
    evaluate_scores,
    ranked_labels,
    right_predictions,
    training_metrics,
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


def test_evaluate_agrees_with_scikit_learn() -> None:
    scores, labels = _scores(0, classes=12)
    result = evaluate_scores(scores, labels)
    assert result["accuracy"] == pytest.approx(np.mean(scores.argmax(1) == labels))
    assert result["macro_accuracy"] == pytest.approx(
        balanced_accuracy_score(labels, scores.argmax(1))
    )
    assert result["top5_accuracy"] == pytest.approx(top_k_accuracy_score(labels, scores, k=5))


def test_top5_is_left_out_for_few_classes() -> None:
    assert "top5_accuracy" not in evaluate_scores(*_scores(0, classes=10))


def test_a_class_without_test_rows_has_no_recall_and_does_not_enter_the_mean() -> None:
    scores = np.array([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    result = evaluate_scores(scores, np.array([0, 1, 1]))
    assert result["per_class_recall"] == [1.0, 0.5, None]
    assert result["macro_accuracy"] == 0.75


def test_equal_scores_rank_in_class_order() -> None:
    result = evaluate_scores(np.zeros((4, 11)), np.array([0, 4, 5, 10]))
    assert result["accuracy"] == 0.25
    assert result["top5_accuracy"] == 0.5


def test_calibration_error_of_a_head_that_knows_its_accuracy() -> None:
    probability = np.full(10, 0.8)
    assert calibration_error(probability, np.arange(10) < 8) == pytest.approx(0.0, abs=1e-12)
    assert calibration_error(probability, np.arange(10) < 3) == pytest.approx(0.5)


def test_calibration_error_against_a_plain_loop() -> None:
    scores, labels = _scores(3)
    probability = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    confidence, correct = probability.max(1), probability.argmax(1) == labels
    expected = 0.0
    for index in range(15):
        own = (confidence > index / 15) & (confidence <= (index + 1) / 15)
        if own.any():
            expected += own.mean() * abs(confidence[own].mean() - correct[own].mean())
    found = evaluate_scores(scores, labels)["expected_calibration_error"]
    assert found == pytest.approx(expected)


def test_huge_scores_do_not_overflow() -> None:
    result = evaluate_scores(np.array([[1e30, -1e30], [-1e30, 1e30]]), np.array([0, 0]))
    assert result["expected_calibration_error"] == pytest.approx(0.5)


@pytest.mark.parametrize("labels", [np.array([0, 1]), np.eye(2)], ids=["one", "several"])
def test_scores_that_are_not_finite_are_refused(labels: np.ndarray) -> None:
    with pytest.raises(DataError, match="test row 1 are not finite"):
        evaluate_scores(np.array([[0.0, 1.0], [np.nan, 0.0]]), labels, link="sigmoid")


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


def test_one_seed_has_an_interval_over_test_rows_close_to_the_binomial_one() -> None:
    scores, labels = _scores(1, rows=2000)
    correct = scores.argmax(1) == labels
    summary = summarise_records(
        [evaluate_scores(scores, labels)], correct=correct, labels=labels, scores=scores
    )
    entry = summary["accuracy"]
    half = 1.96 * np.sqrt(entry["mean"] * (1 - entry["mean"]) / 2000)
    assert entry["high"] - entry["low"] == pytest.approx(2 * half, rel=0.08)
    assert entry["low"] < entry["mean"] < entry["high"]
    assert (entry["interval"], entry["std"], entry["count"]) == (ROW_PROPORTION, None, 1)
    assert summary["macro_accuracy"]["interval"] == ROW_CLASSES
    assert summary["expected_calibration_error"]["interval"] is None


def test_bootstrap_agrees_with_resampling_rows() -> None:
    scores, labels = _scores(2, rows=150, classes=3)
    correct = scores.argmax(1) == labels
    summary = summarise_records(
        [evaluate_scores(scores, labels)], correct=correct, labels=labels, scores=scores
    )
    generator = np.random.default_rng(0)
    means = []
    for _ in range(2000):
        rows = generator.integers(150, size=150)
        means.append(np.mean([correct[rows][labels[rows] == k].mean() for k in range(3)]))
    entry = summary["macro_accuracy"]
    assert entry["low"] == pytest.approx(np.quantile(means, 0.025), abs=0.012)
    assert entry["high"] == pytest.approx(np.quantile(means, 0.975), abs=0.012)


def test_seeds_that_do_not_vary_get_the_interval_over_test_rows_and_no_spread() -> None:
    scores, labels = _scores(4)
    record = evaluate_scores(scores, labels)
    entry = _summarise_shares([record] * 3, scores.argmax(1) == labels)["accuracy"]
    assert (entry["std"], entry["count"], entry["interval"]) == (0.0, 3, ROW_PROPORTION)
    assert entry["mean"] == record["accuracy"]
    assert entry["high"] > entry["low"]


def test_the_bootstrap_is_seeded() -> None:
    scores, labels = _scores(4, rows=50, classes=2)
    correct = right_predictions(scores, labels)
    runs = [
        summarise_records([{"auc": 0.6}], correct=correct, labels=labels, scores=scores, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(2, 14), st.integers(0, 2**32 - 1))
def test_metrics_are_fractions(rows: int, classes: int, seed: int) -> None:
    result = evaluate_scores(*_scores(seed, rows=rows, classes=classes))
    recall = [value for value in result.pop("per_class_recall") if value is not None]
    assert set(result.pop("never_predicted")) <= set(range(classes))
    assert all(0.0 <= value <= 1.0 for value in [*result.values(), *recall])


def test_seeds_that_differ_in_rounding_alone_get_the_interval_over_test_rows() -> None:
    correct = np.arange(100) < 90
    records = [
        {"accuracy": 0.9, "macro_accuracy": 0.9, "expected_calibration_error": 0.1 + offset}
        for offset in (0.0, 1e-9, -1e-9)
    ]
    entry = _summarise_shares(records, correct)["accuracy"]
    assert entry["interval"] == ROW_PROPORTION
    assert entry["low"] < 0.9 < entry["high"]


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
    correct = right_predictions(scores, labels)
    record = evaluate_scores(scores, labels)
    summary = summarise_records([record] * seeds, correct=correct, labels=labels, scores=scores)
    entry = summary["accuracy"]
    assert (entry["rows_low"], entry["rows_high"]) == wilson_interval(right / 3, 3)
    assert entry["rows_high"] - entry["rows_low"] > 0.5, "all right says little of a fourth row"
    for name in ("macro_accuracy", "auc"):
        low, high = summary[name]["both_low"], summary[name]["both_high"]
        assert high - low > 0.5, "also where every resample is the same"
        assert low <= summary[name]["mean"] <= high


def test_one_class_has_no_auc_and_a_macro_accuracy_over_itself() -> None:
    labels = np.zeros(20, dtype=np.int64)
    scores = np.eye(2)[np.arange(20) % 4 // 3]
    record = evaluate_scores(scores, labels)
    summary = summarise_records(
        [record], correct=right_predictions(scores, labels), labels=labels, scores=scores
    )
    assert "auc" not in summary
    assert summary["macro_accuracy"]["rows_low"] < 0.75 < summary["macro_accuracy"]["rows_high"]


def test_a_private_cell_has_the_uncertainty_of_its_test_rows_beside_that_of_its_seeds() -> None:
    scores, labels = _scores(5, classes=2)
    others = scores + np.random.default_rng(1).normal(size=scores.shape) / 2
    records = [evaluate_scores(each, labels) for each in (scores, others)]
    summary = summarise_records(
        records, correct=right_predictions(scores, labels), labels=labels, scores=scores
    )
    entry = summary["accuracy"]
    assert (entry["interval"], entry["rows_interval"]) == (SEED_INTERVAL, ROW_PROPORTION)
    mean = (records[0]["accuracy"] + records[1]["accuracy"]) / 2
    assert (entry["rows_low"], entry["rows_high"]) == pytest.approx(wilson_interval(mean, 300))
    alone = summarise_records(
        records[:1], correct=right_predictions(scores, labels), labels=labels, scores=scores
    )
    for name, kind in (("macro_accuracy", ROW_CLASSES), ("auc", ROW_BOOTSTRAP)):
        moved = summary[name]["mean"] - alone[name]["mean"]
        assert summary[name]["interval"] == SEED_INTERVAL
        assert summary[name]["rows_interval"] == kind
        assert summary[name]["rows_low"] == pytest.approx(alone[name]["rows_low"] + moved)
        assert summary[name]["rows_high"] == pytest.approx(alone[name]["rows_high"] + moved)


def test_a_metric_that_does_not_vary_gets_no_interval_without_width() -> None:
    """All seeds have 9 of 10 right, and differ in their probabilities."""
    correct = np.arange(10) < 9
    records = [{"accuracy": 0.9, "expected_calibration_error": error} for error in (0.1, 0.2)]
    summary = _summarise_shares(records, correct)
    assert summary["expected_calibration_error"]["interval"] == SEED_INTERVAL
    assert summary["accuracy"]["interval"] == ROW_PROPORTION
    assert (summary["accuracy"]["low"], summary["accuracy"]["high"]) == wilson_interval(0.9, 10)


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
    summary = summarise_records(
        records,
        correct=right_predictions(each[0], labels, link=link),
        labels=labels,
        scores=each[0],
    )
    for entry in summary.values():
        for low, high in (("low", "high"), ("rows_low", "rows_high")):
            if entry[low] is not None:
                assert 0.0 <= entry[low] < entry[high] <= 1.0
        if entry["interval"] in (SEED_INTERVAL, ROW_PROPORTION):
            assert entry["low"] <= entry["mean"] <= entry["high"]


@pytest.mark.parametrize("digits", [None, 1, 0])
def test_auc_of_two_classes_agrees_with_scikit_learn(digits: int | None) -> None:
    scores, labels = _scores(5, classes=2)
    scores = scores if digits is None else scores.round(digits)
    expected = roc_auc_score(labels, scores[:, 1] - scores[:, 0])
    assert evaluate_scores(scores, labels)["auc"] == pytest.approx(expected, abs=1e-12)
    assert "auc" not in evaluate_scores(*_scores(5, classes=3))
    assert "auc" not in evaluate_scores(scores[labels == 1], labels[labels == 1])


def test_auc_of_equal_scores_is_a_half() -> None:
    assert evaluate_scores(np.zeros((5, 2)), np.array([0, 1, 1, 0, 1]))["auc"] == 0.5


@pytest.mark.parametrize("link", ["sigmoid", "none"])
def test_only_softmax_scores_of_one_label_have_a_calibration_error(link: Any) -> None:
    scores, labels = _scores(0)
    found = evaluate_scores(scores, labels, link=link)
    whole = evaluate_scores(scores, labels)
    assert "expected_calibration_error" not in found
    assert found == {
        name: value for name, value in whole.items() if name != "expected_calibration_error"
    }


@pytest.mark.parametrize("digits", [None, 0])
def test_several_labels_agree_with_scikit_learn(digits: int | None) -> None:
    scores, labels = _multi_hot(0, digits=digits)
    found = evaluate_scores(scores, labels, link="sigmoid")
    areas = roc_auc_score(labels, scores, average=None)
    precisions = average_precision_score(labels, scores, average=None)
    np.testing.assert_allclose(found["per_label_auc"], areas, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["per_label_average_precision"], precisions, rtol=0, atol=1e-12)
    assert found["auc"] == pytest.approx(areas.mean())
    assert found["mean_average_precision"] == pytest.approx(precisions.mean())
    right = (1 / (1 + np.exp(-scores)) > 0.5) == labels
    assert found["per_label_accuracy"] == pytest.approx(right.mean(axis=0).tolist())
    assert found["accuracy"] == pytest.approx(right.mean())
    assert found["exact_match_accuracy"] == pytest.approx(right.all(axis=1).mean())


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
    with pytest.raises(DataError, match="train with `loss: sigmoid`"):
        evaluate_scores(scores, labels, link="softmax")


def test_label_calibration_error_against_a_plain_loop() -> None:
    scores, labels = _multi_hot(2)
    probability, outcome = (1 / (1 + np.exp(-scores))).ravel(), labels.ravel()
    expected = 0.0
    for index in range(15):
        own = (probability > index / 15) & (probability <= (index + 1) / 15)
        if own.any():
            expected += own.mean() * abs(probability[own].mean() - outcome[own].mean())
    found = evaluate_scores(scores, labels, link="sigmoid")
    assert found["expected_calibration_error"] == pytest.approx(expected)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_label_metrics_are_fractions_and_auc_ranks_alone(
    rows: int, classes: int, seed: int
) -> None:
    scores, labels = _multi_hot(seed, rows=rows, classes=classes, digits=1)
    found = evaluate_scores(scores, labels, link="sigmoid")
    for value in found.values():
        listed = value if isinstance(value, list) else [value]
        assert all(0.0 <= item <= 1.0 for item in listed if item is not None)
    moved = evaluate_scores(3.0 * scores + np.arange(classes), labels, link="none")
    assert moved.get("auc") == found.get("auc")
    turned = evaluate_scores(-scores, labels, link="none")
    if "auc" in found:
        assert turned["auc"] == pytest.approx(1.0 - found["auc"])


def _resampled(
    statistic: Callable[[np.ndarray], float], rows: int, *, times: int = 1000
) -> tuple[float, float]:
    generator = np.random.default_rng(0)
    values = [statistic(generator.integers(rows, size=rows)) for _ in range(times)]
    return float(np.nanquantile(values, 0.025)), float(np.nanquantile(values, 0.975))


@pytest.mark.parametrize("digits", [None, 0])
def test_bootstrap_of_the_auc_agrees_with_resampling_rows(digits: int | None) -> None:
    scores, labels = _scores(2, rows=120, classes=2)
    scores = scores if digits is None else scores.round(digits)
    record = evaluate_scores(scores, labels)
    entry = summarise_records(
        [record], correct=right_predictions(scores, labels), labels=labels, scores=scores
    )["auc"]

    def area(rows: np.ndarray) -> float:
        return float(evaluate_scores(scores[rows], labels[rows])["auc"])

    low, high = _resampled(area, 120)
    assert entry["low"] == pytest.approx(low, abs=0.008)
    assert entry["high"] == pytest.approx(high, abs=0.008)
    assert (entry["mean"], entry["interval"]) == (record["auc"], ROW_BOOTSTRAP)


def test_bootstrap_over_labels_agrees_with_resampling_rows() -> None:
    scores, labels = _multi_hot(3, rows=60, classes=3, digits=1)
    labels[:, 0] = 0
    labels[:3, 0] = 1  # one resample in twenty has none of these
    summary = summarise_records(
        [evaluate_scores(scores, labels, link="sigmoid")],
        correct=right_predictions(scores, labels, link="sigmoid"), labels=labels, scores=scores,
    )  # fmt: skip
    assert summary["exact_match_accuracy"]["interval"] == ROW_PROPORTION
    for name in ("auc", "accuracy"):

        def value(rows: np.ndarray, name: str = name) -> float:
            found = evaluate_scores(scores[rows], labels[rows], link="sigmoid")
            return float(found.get(name, np.nan))

        low, high = _resampled(value, 60, times=400)
        entry = summary[name]
        assert entry["low"] == pytest.approx(low, abs=0.03), name
        assert entry["high"] == pytest.approx(high, abs=0.03), name
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
    correct = right_predictions(scores, labels, link="sigmoid")
    record = evaluate_scores(scores, labels, link="sigmoid")

    def run() -> Any:
        return summarise_records([record], correct=correct, labels=labels, scores=scores)

    whole = run()
    monkeypatch.setattr(bootstrap, "_BLOCK_BYTES", 50 * 4 * 300)
    assert run() == whole


def test_auc_over_seeds_has_students_interval() -> None:
    made = [_multi_hot(seed) for seed in range(4)]
    records = [evaluate_scores(*each, link="sigmoid") for each in made]
    scores, labels = made[0]
    correct = right_predictions(scores, labels, link="sigmoid")
    entry = summarise_records(records, correct=correct, labels=labels, scores=scores)["auc"]
    values = [record["auc"] for record in records]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (entry["low"], entry["high"]) == (pytest.approx(low), pytest.approx(high))
    assert entry["interval"] == SEED_INTERVAL


def test_training_metrics_are_those_of_the_evaluation() -> None:
    scores, labels = _multi_hot(5)
    found = training_metrics(scores, labels, link="sigmoid")
    whole = evaluate_scores(scores, labels, link="sigmoid")
    assert found["test_auc"] == pytest.approx(whole["auc"])
    assert found["test_accuracy"] == pytest.approx(whole["accuracy"])
    scores, labels = _scores(5, classes=3)
    found = training_metrics(scores, labels)
    assert found["test_accuracy"] == pytest.approx(evaluate_scores(scores, labels)["accuracy"])
    assert "test_auc" not in found
    scores, labels = _multi_hot(5)
    scores[0, 0] = np.nan
    assert np.isnan(training_metrics(scores, labels, link="sigmoid")["test_auc"])


def test_real_accuracy_takes_any_accepted_label_and_leaves_out_rows_without() -> None:
    scores = np.eye(4)[[0, 1, 2, 3, 0]]
    labels = np.array([0, 0, 2, 1, 3])
    accepted = [[0], [1, 2], [3], [], [2, 0]]
    result = evaluate_scores(scores, labels, accepted=accepted)
    assert result["real_accuracy"] == pytest.approx(3 / 4)
    assert result["accuracy"] == pytest.approx(2 / 5)
    assert "real_accuracy" not in evaluate_scores(scores, labels)


def test_real_accuracy_of_no_judged_row_is_refused() -> None:
    with pytest.raises(DataError, match="no test row has an accepted label"):
        evaluate_scores(np.eye(3), np.arange(3), accepted=[[], [], []])


def test_a_probability_on_an_edge_is_in_the_bin_below_it() -> None:
    edges = np.linspace(0.0, 1.0, metrics.CALIBRATION_BINS + 1)[1:]
    for edge, middle in zip(edges, edges - 0.5 / metrics.CALIBRATION_BINS, strict=True):
        # In one bin, the two gaps cancel in part.
        error = calibration_error(np.array([edge, middle]), np.array([True, False]))
        assert error == pytest.approx(abs(edge - 1 + middle) / 2)
