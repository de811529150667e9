"""Test rows of patients: each patient counts once, and intervals are over patients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    recall_score,
    roc_auc_score,
    top_k_accuracy_score,
)

from dpprobe.results.intervals import wilson_interval
from dpprobe.results.metrics import (
    Link,
    calibration_error,
    evaluate_scores,
    right_predictions,
    training_metrics,
)
from dpprobe.results.uncertainty import (
    ROW_BOOTSTRAP,
    ROW_CLASSES,
    ROW_PROPORTION,
    UNIT_BOOTSTRAP,
    UNIT_CLASSES,
    UNIT_PROPORTION,
    summarise_records,
)
from dpprobe.results.unit_counts import row_weights


def _patients(generator: np.random.Generator, rows: int) -> np.ndarray:
    """Patients of mostly one row and some of many, in any order."""
    return np.minimum(generator.geometric(0.15, size=rows), generator.integers(1, rows + 1)) - 1


def _made(
    seed: int, *, rows: int = 200, classes: int = 4, several: bool = False, digits: int = 9
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, labels and units of test rows; few digits make ties."""
    generator = np.random.default_rng(seed)
    labels: np.ndarray = generator.integers(classes, size=rows)
    shown = np.eye(classes)[labels]
    if several:
        labels = (generator.random((rows, classes)) < 0.3).astype(np.uint8)
        shown = labels.astype(np.float64)
    scores = generator.normal(size=(rows, classes)) + shown - (0.5 if several else 0.0)
    return scores.round(digits), labels, _patients(generator, rows)


def _summary(
    scores: np.ndarray, labels: np.ndarray, units: np.ndarray | None, link: Link = "softmax"
) -> dict[str, dict[str, Any]]:
    return summarise_records(
        [evaluate_scores(scores, labels, link=link, units=units)],
        correct=right_predictions(scores, labels, link=link), labels=labels, scores=scores,
        units=units,
    )  # fmt: skip


def _plain(summary: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A summary without the words by which intervals over patients differ from those over rows."""
    words = {
        UNIT_PROPORTION: ROW_PROPORTION,
        UNIT_BOOTSTRAP: ROW_BOOTSTRAP,
        UNIT_CLASSES: ROW_CLASSES,
    }
    return {
        name: {key: words.get(value, value) for key, value in entry.items()}
        for name, entry in summary.items()
    }


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 60), st.sampled_from([2, 3, 12]), st.sampled_from([9, 1, 0]), st.booleans(),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_one_label_agrees_with_scikit_learn_s_weighted_metrics(
    rows: int, classes: int, digits: int, named: bool, seed: int
) -> None:
    scores, labels, units = _made(seed, rows=rows, classes=classes, digits=digits)
    found = evaluate_scores(scores, labels, units=units if named else None)
    weights = 1 / np.bincount(units)[units] if named else None
    predicted = scores.argmax(1)
    assert found["accuracy"] == pytest.approx(
        accuracy_score(labels, predicted, sample_weight=weights)
    )
    present = np.unique(labels)
    recall = recall_score(
        labels, predicted, labels=present, average=None, sample_weight=weights, zero_division=0
    )
    assert [found["per_class_recall"][label] for label in present] == pytest.approx(list(recall))
    assert found["macro_accuracy"] == pytest.approx(recall.mean())
    if classes == 12 and digits == 9:
        top5 = top_k_accuracy_score(
            labels, scores, k=5, labels=np.arange(classes), sample_weight=weights
        )
        assert found["top5_accuracy"] == pytest.approx(top5)
    if "auc" in found:
        area = roc_auc_score(labels, scores[:, 1] - scores[:, 0], sample_weight=weights)
        assert found["auc"] == pytest.approx(area, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 60), st.sampled_from([9, 1, 0]), st.booleans(), st.integers(0, 2**32 - 1))
def test_several_labels_agree_with_scikit_learn_s_weighted_metrics(
    rows: int, digits: int, named: bool, seed: int
) -> None:
    scores, labels, units = _made(seed, rows=rows, several=True, digits=digits)
    found = evaluate_scores(scores, labels, link="sigmoid", units=units if named else None)
    weights = 1 / np.bincount(units)[units] if named else None
    right = (scores > 0) == (labels != 0)
    for label in range(4):
        column, score = labels[:, label], scores[:, label]
        assert found["per_label_accuracy"][label] == pytest.approx(
            accuracy_score(column, score > 0, sample_weight=weights)
        )
        if found["per_label_auc"][label] is None:
            continue
        area = roc_auc_score(column, score, sample_weight=weights)
        precision = average_precision_score(column, score, sample_weight=weights)
        assert found["per_label_auc"][label] == pytest.approx(area, abs=1e-12)
        assert found["per_label_average_precision"][label] == pytest.approx(precision, abs=1e-12)
    assert found["accuracy"] == pytest.approx(np.average(right.mean(1), weights=weights))
    assert found["exact_match_accuracy"] == pytest.approx(np.average(right.all(1), weights=weights))


def test_a_patient_of_thirty_images_counts_as_much_as_one_of_one() -> None:
    units = np.array([0] * 30 + [1])
    labels = np.zeros(31, dtype=np.int64)
    scores = np.tile([1.0, 0.0], (31, 1))
    scores[30] = [0.0, 1.0]
    accepted = [[0]] * 31
    found = evaluate_scores(scores, labels, accepted=accepted, units=units)
    for name in ("accuracy", "macro_accuracy", "real_accuracy"):
        assert found[name] == pytest.approx(0.5)
    assert evaluate_scores(scores, labels)["accuracy"] == 30 / 31


@pytest.mark.parametrize("several", [False, True])
def test_a_patient_s_images_in_copies_change_nothing(several: bool) -> None:
    """Every metric of means over patients, computed from one row a patient and from m copies."""
    scores, labels, _ = _made(1, rows=60, classes=2 if not several else 4, several=several)
    link: Link = "sigmoid" if several else "softmax"
    copies = np.random.default_rng(0).integers(1, 30, size=60)
    units = np.repeat(np.arange(60), copies)
    once = evaluate_scores(scores, labels, link=link)
    often = evaluate_scores(scores[units], labels[units], link=link, units=units)
    for name, value in once.items():
        assert often[name] == pytest.approx(value, abs=1e-12), name
    followed = training_metrics(scores[units], labels[units], link=link, units=units)
    assert followed["test_accuracy"] == pytest.approx(once["accuracy"])
    assert followed["test_auc"] == pytest.approx(once["auc"])
    few = _summary(scores, labels, None, link)
    many = _summary(scores[units], labels[units], units, link)
    for name in ("auc", "accuracy" if several else "macro_accuracy"):
        assert many[name]["rows_interval"] == UNIT_BOOTSTRAP
        assert many[name]["rows_low"] == pytest.approx(few[name]["rows_low"], abs=0.02)
        assert many[name]["rows_high"] == pytest.approx(few[name]["rows_high"], abs=0.02)


def test_calibration_is_of_weighted_rows() -> None:
    units = np.array([0, 1, 2, 3] + [4] * 16)  # four patients in five are right, few rows are
    probability = np.full(20, 0.8)
    weighted = calibration_error(probability, units < 4, row_weights(units))
    assert weighted == pytest.approx(0.0, abs=1e-12)
    assert calibration_error(probability, units < 4) == pytest.approx(0.6)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(2, 12), st.booleans(), st.integers(0, 2**32 - 1))
def test_patients_of_one_image_change_no_bit(
    rows: int, classes: int, several: bool, seed: int
) -> None:
    scores, labels, _ = _made(seed, rows=rows, classes=classes, several=several)
    link: Link = "sigmoid" if several else "softmax"
    units = np.random.default_rng(seed).permutation(rows)
    assert evaluate_scores(scores, labels, link=link, units=units) == evaluate_scores(
        scores, labels, link=link
    )
    over_patients = _summary(scores, labels, units, link)
    assert _plain(over_patients) == _summary(scores, labels, None, link)
    kinds = {entry["rows_interval"] for entry in over_patients.values()}
    assert kinds <= {UNIT_PROPORTION, UNIT_BOOTSTRAP, UNIT_CLASSES, None}
    assert row_weights(units) is None


def _clustered(
    generator: np.random.Generator, patients: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of patients whose images are all easy or all hard; an accuracy of 0.8 in the mean.

    Three patients in ten are hard, a third of their images is right; of the others all are.
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
            assert summary[name]["rows_interval"] == UNIT_BOOTSTRAP
            covered[name] += summary[name]["rows_low"] <= 0.8 <= summary[name]["rows_high"]
        low, high = wilson_interval(evaluate_scores(scores, labels)["accuracy"], len(labels))
        covered["rows"] += low <= 0.8 <= high
    # Of 150 intervals that cover in 92 of 100 cases, fewer than 129 do so in 1 of 200.
    assert covered["accuracy"] >= 129
    assert covered["macro_accuracy"] >= 129
    assert covered["rows"] < 90, "an interval over rows takes them for a thousand patients"


def test_where_all_is_right_the_number_of_patients_says_how_much_is_open() -> None:
    units = np.repeat(np.arange(20), 49)  # 49 times 1 / 49 is not 1 in floating point
    labels = units % 2
    summary = _summary(3.0 * np.eye(2)[labels], labels, units)
    # Each class, and each kind of row, is one of ten patients.
    for name, counted in (("accuracy", 20), ("macro_accuracy", 10), ("auc", 10)):
        assert summary[name]["rows_interval"] == UNIT_PROPORTION
        assert summary[name]["rows_low"] == pytest.approx(wilson_interval(1.0, counted)[0])


def test_one_error_leaves_no_less_open_than_none() -> None:
    units = np.repeat(np.arange(100), 30)
    scores = np.tile([1.0, 0.0], (3000, 1))
    scores[7] = [0.0, 1.0]
    entry = _summary(scores, np.zeros(3000, dtype=np.int64), units)["accuracy"]
    assert (entry["mean"], entry["rows_interval"]) == (pytest.approx(1 - 1 / 3000), UNIT_PROPORTION)
    assert entry["rows_low"] < wilson_interval(1.0, 100)[0] + 0.01 < 0.98


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_one_patient_says_next_to_nothing_of_others(right: float) -> None:
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


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 30), st.integers(1, 14), st.integers(2, 12), st.booleans(),
    st.sampled_from([0.0, 1.0, 5.0]), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_intervals_over_patients_have_a_width_within_0_and_1(
    rows: int, patients: int, classes: int, several: bool, quality: float, seed: int
) -> None:
    """Also where units span classes, where there is one, and where all or nothing is right."""
    generator = np.random.default_rng(seed)
    scores, labels, _ = _made(seed, rows=rows, classes=classes, several=several)
    scores += quality * (labels * 2.0 - 1 if several else np.eye(classes)[labels])
    units = generator.integers(patients, size=rows)
    if row_weights(units) is None:
        units = np.zeros(rows, dtype=np.int64)
    link: Link = "sigmoid" if several else "softmax"
    for name, entry in _summary(scores, labels, units, link).items():
        assert 0.0 <= entry["mean"] <= 1.0
        if rows > 1 and name not in (
            "expected_calibration_error", "real_accuracy", "mean_average_precision"
        ):  # fmt: skip
            assert 0.0 <= entry["rows_low"] < entry["rows_high"] <= 1.0
            if entry["rows_interval"] == UNIT_PROPORTION:
                assert entry["rows_low"] <= entry["mean"] <= entry["rows_high"]
