"""Metrics, and intervals over seeds, rows and patients, agree with other libraries and loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from dpprobe.errors import DataError
from dpprobe.results import bootstrap, metrics
from dpprobe.results import uncertainty as kinds
from dpprobe.results.bootstrap import Runs
from dpprobe.results.intervals import combine_errors, over_classes, wilson_interval
from dpprobe.results.metrics import Evaluation, right_predictions
from dpprobe.results.uncertainty import summarise_records
from dpprobe.results.unit_counts import row_weights

TIMES = 400


def _patients(generator: np.random.Generator, rows: int) -> np.ndarray:
    """Returns a patient for each row: most patients have one row, some have many, in any order."""
    return np.minimum(generator.geometric(0.15, size=rows), generator.integers(1, rows + 1)) - 1


def _made(
    seed: int, *, rows: int = 200, classes: int = 4, several: bool = False, digits: int = 9
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns scores, labels and units of test rows; few digits cause ties."""
    generator = np.random.default_rng(seed)
    labels: np.ndarray = generator.integers(classes, size=rows)
    shown = np.eye(classes)[labels]
    if several:
        labels = (generator.random((rows, classes)) < 0.3).astype(np.uint8)
        shown = labels.astype(np.float64)
    scores = generator.normal(size=(rows, classes)) + shown - (0.5 if several else 0.0)
    return scores.round(digits), labels, _patients(generator, rows)


def _link(several: bool) -> metrics.Link:
    return "sigmoid" if several else "softmax"


def _summary(
    scores: np.ndarray,
    labels: np.ndarray,
    units: np.ndarray | None = None,
    records: list[dict[str, Any]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Returns the summary of records, by default of only these scores."""
    link = _link(labels.ndim == 2)
    return summarise_records(
        records or [Evaluation(scores, labels, link=link, units=units).compute_metrics()],
        Evaluation(scores, labels, link=link, units=units),
    )


@pytest.mark.parametrize("several", [False, True])
def test_calibration_error_against_a_plain_loop(several: bool) -> None:
    scores, labels, _ = _made(2, several=several)
    if several:
        probability, outcome = (1 / (1 + np.exp(-scores))).ravel(), labels.ravel()
    else:
        chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        probability, outcome = chances.max(1), chances.argmax(1) == labels
    expected = 0.0
    for index in range(15):
        own = (probability > index / 15) & (probability <= (index + 1) / 15)
        if own.any():
            expected += own.mean() * abs(probability[own].mean() - outcome[own].mean())
    found = Evaluation(scores, labels, link=_link(several)).compute_metrics()
    assert found["expected_calibration_error"] == pytest.approx(expected)


def test_a_probability_on_an_edge_is_in_the_bin_below_it() -> None:
    edges = np.linspace(0.0, 1.0, metrics.CALIBRATION_BINS + 1)[1:]
    for edge, middle in zip(edges, edges - 0.5 / metrics.CALIBRATION_BINS, strict=True):
        # In the same bin, the two gaps partly cancel.
        error = metrics.calibration_error(np.array([edge, middle]), np.array([True, False]))
        assert error == pytest.approx(abs(edge - 1 + middle) / 2)


def test_calibration_is_of_weighted_rows() -> None:
    units = np.array([0, 1, 2, 3] + [4] * 16)  # four of five patients are right, but few rows
    probability = np.full(20, 0.8)
    weighted = metrics.calibration_error(probability, units < 4, row_weights(units))
    assert weighted == pytest.approx(0.0, abs=1e-12)
    assert metrics.calibration_error(probability, units < 4) == pytest.approx(0.6)


@settings(max_examples=60)
@given(
    st.integers(2, 60),
    st.sampled_from([2, 3, 12]),
    st.sampled_from([9, 1, 0]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_one_label_agrees_with_scikit_learn_s_weighted_metrics(
    rows: int, classes: int, digits: int, named: bool, seed: int
) -> None:
    scores, labels, units = _made(seed, rows=rows, classes=classes, digits=digits)
    found = Evaluation(scores, labels, units=units if named else None).compute_metrics()
    weights = 1 / np.bincount(units)[units] if named else None
    predicted = scores.argmax(1)
    assert found["accuracy"] == pytest.approx(
        sk.accuracy_score(labels, predicted, sample_weight=weights)
    )
    present = np.unique(labels)
    recall = sk.recall_score(
        labels, predicted, labels=present, average=None, sample_weight=weights, zero_division=0
    )
    assert [found["per_class_recall"][label] for label in present] == pytest.approx(list(recall))
    assert found["macro_accuracy"] == pytest.approx(recall.mean())
    if classes == 12 and digits == 9:
        top5 = sk.top_k_accuracy_score(
            labels, scores, k=5, labels=np.arange(classes), sample_weight=weights
        )
        assert found["top5_accuracy"] == pytest.approx(top5)
    if "auc" in found:
        area = sk.roc_auc_score(labels, scores[:, 1] - scores[:, 0], sample_weight=weights)
        assert found["auc"] == pytest.approx(area, abs=1e-12)


@settings(max_examples=60)
@given(st.integers(2, 60), st.sampled_from([9, 1, 0]), st.booleans(), st.integers(0, 2**32 - 1))
def test_several_labels_agree_with_scikit_learn_s_weighted_metrics(
    rows: int, digits: int, named: bool, seed: int
) -> None:
    scores, labels, units = _made(seed, rows=rows, several=True, digits=digits)
    labels[:, seed % 4] = seed % 3 == 0  # often, all rows have the same value of a label
    found = Evaluation(
        scores, labels, link="sigmoid", units=units if named else None
    ).compute_metrics()
    weights = 1 / np.bincount(units)[units] if named else None
    right = (scores > 0) == (labels != 0)
    for label in range(4):
        column, score = labels[:, label], scores[:, label]
        assert found["per_label_accuracy"][label] == pytest.approx(
            sk.accuracy_score(column, score > 0, sample_weight=weights)
        )
        if found["per_label_auc"][label] is None:
            continue
        area = sk.roc_auc_score(column, score, sample_weight=weights)
        precision = sk.average_precision_score(column, score, sample_weight=weights)
        assert found["per_label_auc"][label] == pytest.approx(area, abs=1e-12)
        assert found["per_label_average_precision"][label] == pytest.approx(precision, abs=1e-12)
    kept = metrics.ranked_labels(labels, 4)
    assert kept == [label for label in range(4) if len(np.unique(labels[:, label])) == 2]
    for each, mean in (("auc", "auc"), ("average_precision", "mean_average_precision")):
        values = found[f"per_label_{each}"]
        assert [label for label in range(4) if values[label] is not None] == kept
        expected = np.mean([values[label] for label in kept]) if kept else None
        assert found.get(mean) == (expected if expected is None else pytest.approx(expected))
    assert found["accuracy"] == pytest.approx(np.average(right.mean(1), weights=weights))
    assert found["exact_match_accuracy"] == pytest.approx(np.average(right.all(1), weights=weights))


def test_scores_that_are_not_logits_are_thresholded_at_one_half() -> None:
    scores = np.array([[0.6, 0.4], [0.5, 0.51]])
    labels = np.array([[1, 0], [0, 0]])
    assert right_predictions(scores, labels, link="none").tolist() == [[True, True], [True, False]]
    assert right_predictions(scores, labels, link="sigmoid").tolist() == [
        [True, False],
        [False, False],
    ]
    assert (
        "expected_calibration_error"
        not in Evaluation(scores, labels, link="none").compute_metrics()
    )


@pytest.mark.parametrize("several", [False, True])
def test_duplicating_a_patients_images_changes_no_metric(several: bool) -> None:
    """Each metric is a mean over patients: one row per patient and m copies give equal values."""
    scores, labels, _ = _made(1, rows=60, classes=2 if not several else 4, several=several)
    link = _link(several)
    copies = np.random.default_rng(0).integers(1, 30, size=60)
    units = np.repeat(np.arange(60), copies)
    once = Evaluation(scores, labels, link=link).compute_metrics()
    often = Evaluation(scores[units], labels[units], link=link, units=units).compute_metrics()
    for name, value in once.items():
        assert often[name] == pytest.approx(value, abs=1e-12), name
    followed = metrics.Evaluation(
        scores[units], labels[units], link=link, units=units
    ).compute_fast_metrics()
    assert followed["test_accuracy"] == pytest.approx(once["accuracy"])
    assert followed["test_auc"] == pytest.approx(once["auc"])
    few = _summary(scores, labels)
    many = _summary(scores[units], labels[units], units)
    for name in ("auc", "accuracy" if several else "macro_accuracy"):
        assert many[name]["rows_interval"] == kinds.UNIT_BOOTSTRAP
        assert many[name]["rows_low"] == pytest.approx(few[name]["rows_low"], abs=0.02)
        assert many[name]["rows_high"] == pytest.approx(few[name]["rows_high"], abs=0.02)


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(2, 12), st.booleans(), st.integers(0, 2**32 - 1))
def test_patients_of_one_image_change_no_bit(
    rows: int, classes: int, several: bool, seed: int
) -> None:
    scores, labels, _ = _made(seed, rows=rows, classes=classes, several=several)
    link, units = _link(several), np.random.default_rng(seed).permutation(rows)
    plain = Evaluation(scores, labels, link=link).compute_metrics()
    assert Evaluation(scores, labels, link=link, units=units).compute_metrics() == plain
    words = {
        kinds.UNIT_PROPORTION: kinds.ROW_PROPORTION,
        kinds.UNIT_BOOTSTRAP: kinds.ROW_BOOTSTRAP,
        kinds.UNIT_CLASSES: kinds.ROW_CLASSES,
        None: None,
    }
    of_rows = _summary(scores, labels)
    for name, entry in _summary(scores, labels, units).items():
        kind = entry["rows_interval"]
        said = {key: words[kind] if value == kind else value for key, value in entry.items()}
        assert said == of_rows[name]
    assert row_weights(units) is None


def _clustered(
    generator: np.random.Generator, patients: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rows of patients whose images are all easy or all hard, with mean accuracy 0.8.

    Of three in ten patients, a third of the images is right; of the other patients, all are.
    """
    sizes = generator.integers(1, 40, size=patients)
    units = np.repeat(np.arange(patients), sizes)
    chance = np.where(generator.random(patients) < 0.3, 1 / 3, 1.0)[units]
    labels = generator.integers(2, size=len(units))
    right = generator.random(len(units)) < chance
    return np.eye(2)[np.where(right, labels, 1 - labels)], labels, units


def test_intervals_over_patients_cover_where_those_over_rows_are_far_too_narrow() -> None:
    generator = np.random.default_rng(3)
    covered = {"accuracy": 0, "macro_accuracy": 0, "rows": 0}
    trials = 150
    for _ in range(trials):
        scores, labels, units = _clustered(generator, 50)
        summary = _summary(scores, labels, units)
        for name in ("accuracy", "macro_accuracy"):
            assert summary[name]["rows_interval"] == kinds.UNIT_BOOTSTRAP
            covered[name] += summary[name]["rows_low"] <= 0.8 <= summary[name]["rows_high"]
        low, high = wilson_interval(
            Evaluation(scores, labels).compute_metrics()["accuracy"], len(labels)
        )
        covered["rows"] += low <= 0.8 <= high
    # If coverage is 92%, fewer than 129 of 150 intervals cover with probability 1/200.
    assert covered["accuracy"] >= 129
    assert covered["macro_accuracy"] >= 129
    assert covered["rows"] < 90, "an interval over rows takes them for a thousand patients"


def test_where_all_is_right_the_number_of_patients_says_how_much_is_open() -> None:
    units = np.repeat(np.arange(20), 49)  # 49 times 1 / 49 is not 1 in floating point
    labels = units % 2
    summary = _summary(3.0 * np.eye(2)[labels], labels, units)
    # Each class, and thus each kind of row, has ten patients.
    for name, counted in (("accuracy", 20), ("macro_accuracy", 10), ("auc", 10)):
        assert summary[name]["rows_interval"] == kinds.UNIT_PROPORTION
        assert summary[name]["rows_low"] == pytest.approx(wilson_interval(1.0, counted)[0])


def test_the_lower_bound_with_one_error_is_not_above_that_without_errors() -> None:
    units = np.repeat(np.arange(100), 30)
    scores = np.tile([1.0, 0.0], (3000, 1))
    scores[7] = [0.0, 1.0]
    entry = _summary(scores, np.zeros(3000, dtype=np.int64), units)["accuracy"]
    assert (entry["mean"], entry["rows_interval"]) == (
        pytest.approx(1 - 1 / 3000),
        kinds.UNIT_PROPORTION,
    )
    assert entry["rows_low"] < wilson_interval(1.0, 100)[0] + 0.01 < 0.98


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_intervals_are_wide_if_all_images_belong_to_one_patient(right: float) -> None:
    labels = np.zeros(40, dtype=np.int64)
    scores = np.eye(2)[(np.arange(40) >= 40 * right).astype(int)]
    summary = _summary(scores, labels, labels)
    for name in ("accuracy", "macro_accuracy"):
        low, high = wilson_interval(right, 1)
        assert (summary[name]["rows_low"], summary[name]["rows_high"]) == pytest.approx((low, high))
        assert high - low > 0.75


def test_a_class_of_one_patient_widens_what_rests_on_it() -> None:
    units = np.repeat(np.arange(101), 5)
    labels = (units == 100).astype(np.int64)
    summary = _summary(3.0 * np.eye(2)[labels], labels, units)
    assert summary["accuracy"]["rows_low"] == wilson_interval(1.0, 101)[0] > 0.96
    assert summary["macro_accuracy"]["rows_low"] < 0.5
    assert summary["auc"]["rows_low"] == wilson_interval(1.0, 1)[0]


@settings(max_examples=120)
@given(
    st.integers(1, 30),
    st.integers(0, 14),
    st.integers(2, 12),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([0.0, 1.0, 5.0]),
    st.integers(0, 2**32 - 1),
)
def test_intervals_have_a_width_within_0_and_1_and_hold_the_mean(
    rows: int, patients: int, classes: int, seeds: int, several: bool, quality: float, seed: int
) -> None:
    """Units are rows or patients, who may span classes; all may be one unit, right or wrong."""
    generator = np.random.default_rng(seed)
    scores, labels, _ = _made(seed, rows=rows, classes=classes, several=several)
    scores += quality * (labels * 2.0 - 1 if several else np.eye(classes)[labels])
    units = generator.integers(patients, size=rows) if patients else None
    each = [scores + generator.normal(size=scores.shape) for _ in range(seeds)]
    records = [
        Evaluation(one, labels, link=_link(several), units=units).compute_metrics() for one in each
    ]
    for name, entry in _summary(each[0], labels, units, records).items():
        assert 0.0 <= entry["mean"] <= 1.0
        for low, high in (("low", "high"), ("rows_low", "rows_high"), ("both_low", "both_high")):
            if entry[low] is not None:
                assert 0.0 <= entry[low] < entry[high] <= 1.0
        if rows > 1 and name not in ("expected_calibration_error", "mean_average_precision"):
            assert entry["rows_low"] is not None
        if entry["interval"] in (kinds.SEED_INTERVAL, kinds.ROW_PROPORTION, kinds.UNIT_PROPORTION):
            assert entry["low"] <= entry["mean"] <= entry["high"]


def _summarise_shares(records: list[dict[str, Any]], correct: np.ndarray) -> dict[str, Any]:
    """Returns the summary of records of shares, which need neither labels nor scores."""
    labels, scores = np.zeros(len(correct), dtype=int), np.eye(2)[1 - correct.astype(int)]
    return summarise_records(records, Evaluation(scores, labels))


def test_interval_over_seeds_is_students() -> None:
    values = np.array([0.70, 0.72, 0.69, 0.74, 0.71])
    records = [{"index": i, "accuracy": value} for i, value in enumerate(values)]
    entry = _summarise_shares(records, np.arange(100) < 71)
    low, high = stats.t.interval(0.95, 4, loc=values.mean(), scale=stats.sem(values))
    found = entry["accuracy"]
    assert found["mean"] == pytest.approx(values.mean())
    assert found["std"] == pytest.approx(values.std(ddof=1))
    assert (found["low"], found["high"]) == (pytest.approx(low), pytest.approx(high))
    assert (found["count"], found["interval"]) == (5, kinds.SEED_INTERVAL)
    assert "index" not in entry


@pytest.mark.parametrize("accuracies", [[0.9], [0.9] * 3, [0.9, 0.9 + 1e-9, 0.9 - 1e-9]])
def test_seeds_that_do_not_vary_have_the_interval_over_test_rows(accuracies: list[float]) -> None:
    """Seeds may still differ in other metrics."""
    records = [
        {"accuracy": accuracy, "expected_calibration_error": 0.1 * index}
        for index, accuracy in enumerate(accuracies)
    ]
    summary = _summarise_shares(records, np.arange(10) < 9)
    entry, seeds = summary["accuracy"], len(accuracies)
    assert (entry["low"], entry["high"]) == wilson_interval(0.9, 10)
    assert (entry["interval"], entry["count"]) == (kinds.ROW_PROPORTION, seeds)
    assert entry["std"] == (None if seeds == 1 else 0.0)
    others = summary["expected_calibration_error"]["interval"]
    assert others == (None if seeds == 1 else kinds.SEED_INTERVAL)


@pytest.mark.parametrize(("right", "rows"), [(0, 3), (3, 3), (1, 1), (47, 300), (299, 300)])
def test_wilson_is_scipys(right: int, rows: int) -> None:
    expected = stats.binomtest(right, rows).proportion_ci(0.95, method="wilson")
    assert wilson_interval(right / rows, rows) == pytest.approx(
        (expected.low, expected.high), abs=1e-12
    )


@pytest.mark.parametrize("seeds", [1, 2, 5])
@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_three_test_rows_leave_much_open(right: int, seeds: int) -> None:
    labels = np.array([0, 1, 1])
    scores = 4.0 * np.eye(2)[np.where(np.arange(3) < right, labels, 1 - labels)]
    summary = _summary(scores, labels, None, [Evaluation(scores, labels).compute_metrics()] * seeds)
    entry = summary["accuracy"]
    assert (entry["rows_low"], entry["rows_high"]) == wilson_interval(right / 3, 3)
    assert entry["rows_high"] - entry["rows_low"] > 0.5, "all right says little of a fourth row"
    for name in ("macro_accuracy", "auc"):
        low, high = summary[name]["both_low"], summary[name]["both_high"]
        assert high - low > 0.5, "also where every resample is the same"
        assert low <= summary[name]["mean"] <= high


def test_a_private_cell_has_the_uncertainty_of_its_test_rows_next_to_that_of_its_seeds() -> None:
    scores, labels, _ = _made(5, rows=300, classes=2)
    others = scores + np.random.default_rng(1).normal(size=scores.shape) / 2
    records = [Evaluation(each, labels).compute_metrics() for each in (scores, others)]
    summary, alone = _summary(scores, labels, None, records), _summary(scores, labels)
    entry = summary["accuracy"]
    assert (entry["interval"], entry["rows_interval"]) == (
        kinds.SEED_INTERVAL,
        kinds.ROW_PROPORTION,
    )
    mean = (records[0]["accuracy"] + records[1]["accuracy"]) / 2
    assert (entry["rows_low"], entry["rows_high"]) == pytest.approx(wilson_interval(mean, 300))
    for name, kind in (("macro_accuracy", kinds.ROW_CLASSES), ("auc", kinds.ROW_BOOTSTRAP)):
        moved = summary[name]["mean"] - alone[name]["mean"]
        assert summary[name]["interval"] == kinds.SEED_INTERVAL
        assert summary[name]["rows_interval"] == kind
        assert summary[name]["rows_low"] == pytest.approx(alone[name]["rows_low"] + moved)
        assert summary[name]["rows_high"] == pytest.approx(alone[name]["rows_high"] + moved)


def test_weighted_areas_equal_those_of_repeated_rows() -> None:
    generator = np.random.default_rng(0)
    for seed in range(20):
        scores, labels, _ = _made(seed, rows=25, classes=1, several=True, digits=seed % 2)
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
                expected = sk.roc_auc_score(positive[rows], scores[rows, 0])
            assert found[column] == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_the_bootstrap_does_not_depend_on_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, labels, _ = _made(4, rows=50, several=True)
    whole = _summary(scores, labels)
    monkeypatch.setattr(bootstrap, "BLOCK_BYTES", 50 * 4 * 300)
    assert _summary(scores, labels) == whole


def test_errors_add_up_side_by_side() -> None:
    assert combine_errors(0.5, (0.47, 0.55), (0.46, 0.62)) == pytest.approx((0.45, 0.63))
    assert combine_errors(0.99, (0.9, 1.0), (0.9, 1.0))[1] <= 1.0


@pytest.mark.parametrize(
    ("rows", "recalls"),
    [
        ((600, 60), (0.95, 0.7)),
        ((600, 3), (0.95, 0.7)),
        ((5,) * 100, (0.8,) * 100),
        ((1,) * 100, (0.8,) * 100),
        ((600, 60), (1.0, 0.0)),
    ],
)
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


def test_seed_variation_is_assessed_separately_for_each_metric() -> None:
    """Accuracy is that of the majority class for every seed, but the AUC differs."""
    labels = np.zeros(660, dtype=np.int64)
    labels[:60] = 1
    generator = np.random.default_rng(2)
    scores = [generator.normal(size=(660, 2)) * 0.1 + [9.0, 0.0] for _ in range(5)]
    records = [Evaluation(each, labels).compute_metrics() for each in scores]
    summary = summarise_records(records, Evaluation(scores[0], labels))
    entry = summary["accuracy"]
    assert entry["mean"] == pytest.approx(600 / 660)
    assert (entry["low"], entry["high"]) == wilson_interval(entry["mean"], 660)
    assert (entry["both_low"], entry["both_high"]) == (entry["low"], entry["high"])
    area = summary["auc"]
    assert area["std"] > 0
    parts = (area["low"], area["high"]), (area["rows_low"], area["rows_high"])
    assert (area["both_low"], area["both_high"]) == combine_errors(area["mean"], *parts)


def test_answers_count_as_right_by_their_rows_accepted_labels() -> None:
    """Predictions are 0, 1, 2, 0; the third row has no accepted label and is left out."""
    scores = np.eye(3)[[0, 1, 2, 0]]
    labels, accepted = np.array([0, 0, 2, 1]), [[0], [1, 2], [], [1, 2]]
    assert Evaluation(scores, labels, accepted=accepted).compute_metrics()["real_accuracy"] == 2 / 3
    units = np.array([0, 0, 0, 5])  # weights 1/3 (two right rows) and 1
    found = Evaluation(scores, labels, accepted=accepted, units=units).compute_metrics()
    assert found["real_accuracy"] == pytest.approx((2 / 3) / (2 / 3 + 1))
    assert "real_accuracy" not in Evaluation(scores, labels).compute_metrics()
    with pytest.raises(DataError, match="no test row has an accepted label; add"):
        Evaluation(scores, labels, accepted=[[]] * 4).compute_metrics()


def test_an_error_names_the_first_row_with_non_finite_scores() -> None:
    scores = np.zeros((4, 2))
    scores[2, 1], scores[3, 0] = np.inf, np.nan
    labels = np.array([0, 1, 0, 1])
    with pytest.raises(DataError, match="test row 2 are not finite: .*lower its learning rate"):
        Evaluation(scores, labels).compute_metrics()
    followed = metrics.Evaluation(scores, labels).compute_fast_metrics()
    assert followed["test_accuracy"] == 0.25  # rows 0 and 3 are right
    assert np.isnan(followed["test_auc"])
    assert (
        "test_auc" not in metrics.Evaluation(scores, np.zeros(4, dtype=int)).compute_fast_metrics()
    )
    with pytest.raises(DataError, match="link softmax.*train with `loss: sigmoid`"):
        Evaluation(np.zeros((2, 2)), np.eye(2)).compute_metrics()


def test_equal_scores_go_to_the_first_class_and_classes_may_stay_unpredicted() -> None:
    scores = np.array([[1.0, 1.0, 1.0], [0.0, 2.0, 2.0], [0.0, 0.0, 3.0]])
    labels = np.array([1, 1, 2])
    assert metrics.label_ranks(scores, labels).tolist() == [1, 0, 0]
    found = Evaluation(scores, labels).compute_metrics()
    assert found["accuracy"] == 2 / 3
    assert found["per_class_recall"] == [None, 0.5, 1.0]
    assert found["macro_accuracy"] == 0.75
    assert found["never_predicted"] == []
    assert Evaluation(scores[:1], labels[:1]).compute_metrics()["never_predicted"] == [1]


@pytest.mark.parametrize(("classes", "shown"), [(10, False), (11, True)])
def test_the_top_five_count_from_eleven_classes(classes: int, shown: bool) -> None:
    scores = -np.arange(classes, dtype=float) * np.ones((classes, 1))  # ranks 0, 1, 2, ...
    found = Evaluation(scores, np.arange(classes)).compute_metrics()
    assert found.get("top5_accuracy") == (5 / classes if shown else None)


def test_the_majority_class_baseline_weighs_patients_and_averages_labels() -> None:
    labels = np.array([2, 2, 2, 0, 1])
    assert metrics.constant_accuracy(labels) == 3 / 5
    units = np.array([7, 7, 7, 1, 1])  # one patient of class 2, one half of class 0
    assert metrics.constant_accuracy(labels, units=units) == 1 / 2
    several = np.array([[1, 0], [1, 0], [1, 1], [0, 0]])
    assert metrics.constant_accuracy(several) == (3 / 4 + 3 / 4) / 2
    units = np.array([0, 0, 0, 3])  # label 0: half of the patients, label 1: a sixth
    assert metrics.constant_accuracy(several, units=units) == pytest.approx((1 / 2 + 5 / 6) / 2)


@pytest.mark.parametrize(("fewest", "kind"), [(9, kinds.ROW_PROPORTION), (10, kinds.ROW_BOOTSTRAP)])
def test_an_area_with_fewer_than_ten_rows_of_a_class_has_no_bootstrap(
    fewest: int, kind: str
) -> None:
    generator = np.random.default_rng(0)
    labels = (np.arange(200) < fewest).astype(np.int64)
    scores = generator.normal(size=(200, 2)) + 0.3 * np.eye(2)[labels]
    for either in (labels, 1 - labels):
        assert _summary(scores, either)["auc"]["rows_interval"] == kind


@pytest.mark.parametrize(
    ("patients", "kind"), [(9, kinds.UNIT_PROPORTION), (10, kinds.UNIT_BOOTSTRAP)]
)
def test_fewer_than_ten_patients_have_no_bootstrap(patients: int, kind: str) -> None:
    scores, labels, _ = _made(7, rows=400)
    units = np.arange(400) % patients
    assert _summary(scores, labels, units)["accuracy"]["rows_interval"] == kind


def test_seeds_that_differ_by_rounding_have_the_first_seeds_mean_and_no_spread() -> None:
    values = (0.5, 0.5 + 4e-7, 0.5 - 4e-7)
    summary = _summarise_shares([{"accuracy": value} for value in values], np.arange(20) < 10)
    entry = summary["accuracy"]
    assert (entry["mean"], entry["std"]) == (0.5, 0.0)
    apart = [{"accuracy": value} for value in (0.5, 0.5 + 2e-6)]
    assert _summarise_shares(apart, np.arange(20) < 10)["accuracy"]["std"] > 0
