"""Units that determine the variance of compared values, and the metrics of each attribute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fairlearn.metrics import demographic_parity_difference, equalized_odds_difference
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.analyses.fairness.comparison import (
    gap_of,
    group_rows,
    left_out_rows,
    make_comparisons,
    measure_comparison,
    no_gap,
)
from dpprobe.analyses.fairness.fairness_record import GROUP_METRICS, PARITY_RATES, Gap, Minimum
from dpprobe.analyses.fairness.group_metrics import Resamples
from dpprobe.analyses.fairness.groupings import TestRows, make_groupings
from tests.support.fairness_rows import FEW, compare, head, made_rows

# Patients with and without the label: 2 and 3 in x, 4 and 1 in y; one of y is counted in both.
HAS = [1, 1, 0, 0, 0, 1, 1, 1, 1, 0]
SITES = ["x"] * 5 + ["y"] * 5
UNITS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]


def two_sites() -> TestRows:
    return made_rows(np.array(HAS)[:, None], {"site": SITES}, units=np.array(UNITS))


@pytest.mark.parametrize(
    ("metric", "units", "positives"),
    [
        ("accuracy", [[5], [4]], None),
        ("calibration_error", [[5], [4]], None),
        ("demographic_parity", [[5], [4]], None),
        ("recall", [[2], [4]], [[2], [4]]),
        # the variance of an AUC depends on the smaller count
        ("auc", [[2], [1]], [[2], [4]]),
        # one column per rate
        ("equalised_odds", [[2, 3], [4, 1]], [[2, 2], [4, 4]]),
    ],
)
def test_a_value_varies_with_the_patients_that_it_is_of(
    metric: str, units: list[list[int]], positives: list[list[int]] | None
) -> None:
    comparison = compare(two_sites(), metric)
    assert comparison.units.tolist() == units
    found = comparison.positives
    assert (None if found is None else found.tolist()) == positives
    assert comparison.kept == [0, 1]
    counted = comparison.count_units()
    assert counted == pytest.approx(np.array(units).T)


@pytest.mark.parametrize(
    ("metric", "units"),
    # of 9 patients, 6 and 3 have label a and b in some row, and 4 and 6 lack it in some row
    [("accuracy", [[9], [9]]), ("recall", [[6], [3]]), ("auc", [[4], [3]])],
)
def test_a_label_as_a_group_varies_with_all_patients_or_with_those_who_have_or_lack_it(
    metric: str, units: list[list[int]]
) -> None:
    has = np.stack([HAS, [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]], axis=1)
    has[0, 1] = 1
    rows = made_rows(has, units=np.array(UNITS))
    assert compare(rows, metric).units.tolist() == units


def metrics_of(rows: TestRows, *groups: str) -> list[str]:
    (grouping,) = make_groupings(rows, groups=groups, pairs=(), minimum=FEW)
    return [item.metric for item in make_comparisons(rows, grouping, FEW, seed=0)]


@pytest.mark.parametrize(
    ("labels", "of_columns", "of_classes"),
    [
        (np.arange(10) % 2, [*GROUP_METRICS, *PARITY_RATES], ["accuracy", "calibration_error"]),
        # no AUC for more than two classes
        (
            np.arange(12) % 3,
            ["accuracy", "recall", "calibration_error", *PARITY_RATES],
            ["accuracy", "calibration_error"],
        ),
        # labels as groups have no separate calibration error
        (
            np.eye(2, dtype=np.int64)[np.arange(10) % 2],
            [*GROUP_METRICS, *PARITY_RATES],
            ["auc", "accuracy", "recall"],
        ),
    ],
)
def test_an_attribute_has_the_metrics_that_are_defined_for_its_groups(
    labels: np.ndarray, of_columns: list[str], of_classes: list[str]
) -> None:
    rows = made_rows(labels, {"site": ["x", "y"] * (len(labels) // 2)})
    assert metrics_of(rows, "site") == of_columns
    assert metrics_of(rows, "class") == of_classes


def test_groups_that_are_kept_alike_are_shuffled_alike() -> None:
    """All metrics share the random groups; a single group and labels cannot be shuffled."""
    rows = two_sites()
    ways = [compare(rows, metric).ways for metric in ("accuracy", "recall", "auc")]
    assert all(each is not None for each in ways)
    assert np.array_equal(ways[0], ways[1])  # type: ignore[arg-type]
    alone = made_rows(np.array(HAS)[:, None], {"site": ["x"] * 10})
    assert compare(alone, "accuracy").ways is None
    (labels,) = make_groupings(rows, groups=("class",), pairs=(), minimum=FEW)
    assert all(item.ways is None for item in make_comparisons(rows, labels, FEW, seed=0))


# Equalised odds and demographic parity: fairlearn's numbers, laws, coverage, missing classes.


FAIRLEARN = {
    "equalised_odds": equalized_odds_difference,
    "demographic_parity": demographic_parity_difference,
}


def measure(
    rows: TestRows, metric: str, *scores: np.ndarray, resamples: int = 0, minimum: Minimum = FEW
) -> Gap:
    """Returns the gap of a cell with these heads; without resamples, only its value is usable."""
    heads = [head(rows, each) for each in scores]
    drawn, once = (Resamples(rows.count, number, seed=1) for number in (max(resamples, 2), 0))
    comparison = compare(rows, metric, minimum=minimum)
    return gap_of(measure_comparison(comparison, heads, drawn, once, 0.95), None, 0.95)


def difference_of(
    metric: str, labels: np.ndarray, scores: np.ndarray, groups: Any, weights: np.ndarray
) -> tuple[float, str]:
    """Returns the largest difference of a label against the rest by fairlearn, and the label."""
    if labels.ndim == 2:
        pairs = list(zip(labels.T, (scores > 0).T, strict=True))
    else:
        predicted = scores.argmax(axis=1)
        pairs = [(labels == k, predicted == k) for k in range(scores.shape[1])]
    found = [
        FAIRLEARN[metric](
            has.astype(int), told.astype(int), sensitive_features=groups, sample_weight=weights
        )
        for has, told in pairs
    ]
    if labels.ndim == 1 and len(found) == 2:
        assert found[0] == pytest.approx(found[1]), "two classes have one difference"
        return found[1], "b"
    return max(found), "abcdefgh"[int(np.argmax(found))]


def draw_case(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draws labels, scores, groups and units of 300 rows; each unit is in one group."""
    generator = np.random.default_rng(seed)
    units = np.unique(generator.integers(150, size=300), return_inverse=True)[1]
    groups = (units * 7) % 3
    classes = {"two classes": 2, "five classes": 5, "four labels": 4}[kind]
    labels = generator.integers(classes, size=300)
    target = np.eye(classes)[labels]
    if kind == "four labels":
        labels = target = (generator.random((300, classes)) < 0.4).astype(np.int64)
    shift = 0.5 * generator.normal(size=(3, classes))[groups]
    return labels, generator.normal(size=(300, classes)) + target + shift, groups, units


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["two classes", "five classes", "four labels"])
@pytest.mark.parametrize("metric", PARITY_RATES)
def test_gaps_are_fairlearns_differences_of_the_worst_label(
    metric: str, kind: str, seed: int
) -> None:
    labels, scores, groups, units = draw_case(kind, seed)
    rows = made_rows(labels, {"site": groups.tolist()}, units=units)
    wanted, label = difference_of(metric, labels, scores, groups, rows.weights)
    gap = measure(rows, metric, scores)
    assert gap.gap == pytest.approx(wanted, abs=1e-12)
    assert (gap.label, gap.groups) == (label, 3)
    assert gap.rate in PARITY_RATES[metric]
    assert abs(gap.best - gap.worst) == pytest.approx(wanted)  # type: ignore[operator]
    lower_is_better = gap.rate == "false_positive_rate"
    assert (gap.worst > gap.best) == lower_is_better  # type: ignore[operator]
    # for two heads, the mean of their differences
    other = difference_of(metric, labels, scores[::-1], groups, rows.weights)[0]
    both = measure(rows, metric, scores, np.ascontiguousarray(scores[::-1]))
    assert both.gap == pytest.approx((wanted + other) / 2, abs=1e-12)


@pytest.mark.parametrize("kind", ["two classes", "five classes", "four labels"])
@pytest.mark.parametrize("metric", PARITY_RATES)
def test_rates_in_a_resample_equal_those_of_repeated_rows(metric: str, kind: str) -> None:
    labels, scores, groups, units = draw_case(kind, 5)
    rows = made_rows(labels, {"site": groups.tolist()}, units=units)
    resamples, comparison = Resamples(rows.count, 70, seed=3), compare(rows, metric)
    values, drawn = comparison.compute_metric(head(rows, scores), resamples)
    counts = np.concatenate(resamples.blocks, axis=1)
    several = labels.ndim == 2
    for column, (rate, label) in enumerate(comparison.columns):
        k = "abcde".index(label)
        has = labels[:, k] > 0 if several else labels == k
        told = scores[:, k] > 0 if several else scores.argmax(axis=1) == k
        counted = {
            "selection_rate": np.ones(300, dtype=bool),
            "true_positive_rate": has,
            "false_positive_rate": ~has,
        }[rate]
        for group in range(3):
            of_group = (groups == group) & counted
            for resample in (0, 1, 70):
                weights = (rows.weights * counts[units, resample])[of_group]
                wanted = np.average(told[of_group], weights=weights) if weights.any() else np.nan
                found = drawn[group, column, resample - 1] if resample else values[group, column]
                assert found == pytest.approx(wanted, abs=1e-6, nan_ok=True)


case = st.tuples(st.integers(0, 10**6), st.integers(2, 4))


@given(case)
@settings(max_examples=15)
def test_parity_gaps_of_perfect_and_constant_heads_match_theory(drawn: tuple[int, int]) -> None:
    seed, classes = drawn
    generator = np.random.default_rng(seed)
    labels = np.concatenate([np.tile(np.arange(classes), 4), generator.integers(classes, size=60)])
    groups = np.concatenate([np.repeat([0, 1], 2 * classes), generator.integers(2, size=60)])
    rows = made_rows(labels, {"site": groups.tolist()}, classes=classes)
    knows, constant = np.eye(classes)[labels], np.eye(classes)[np.zeros_like(labels)]
    shares = [np.bincount(labels[groups == group], minlength=classes) for group in (0, 1)]
    of_labels = np.abs(shares[0] / shares[0].sum() - shares[1] / shares[1].sum()).max()
    # A perfect head has equal rates per label, but its predictions follow the label frequencies.
    assert measure(rows, "equalised_odds", knows).gap == 0
    assert measure(rows, "demographic_parity", knows).gap == pytest.approx(of_labels, abs=1e-12)
    # A constant head has no gap, but also no information.
    for metric in PARITY_RATES:
        assert measure(rows, metric, constant).gap == 0
        assert measure(rows, metric, constant).high > 0  # type: ignore[operator]


def test_groups_that_lack_a_class_are_left_out_instead_of_counted_as_equal() -> None:
    """Group 2 has no rows without the label, and group 3 no rows with it."""
    minimum = Minimum(units=20, positives=5, negatives=5)
    groups = np.repeat([0, 1, 2, 3], 40)
    labels = np.where(groups == 2, 1, np.where(groups == 3, 0, np.arange(160) % 2))
    rows = made_rows(labels, {"site": groups.tolist()})
    scores = np.eye(2)[labels ^ (np.arange(160) % 5 == 0)]
    odds = compare(rows, "equalised_odds", minimum=minimum)
    assert odds.group_names == ["0", "1"]
    assert odds.compared.left_out == {
        "2": "0 rows without b, 5 needed",
        "3": "0 rows with b, 5 needed",
    }
    told = {(line["group"], line["metric"]): line for line in left_out_rows(odds)}
    assert set(told) == {(g, rate) for g in "23" for rate in PARITY_RATES["equalised_odds"]}
    assert not any(line.get("value") for line in told.values())
    assert measure(rows, "equalised_odds", scores, minimum=minimum).groups == 2
    # demographic parity needs no labels, so all groups are compared
    parity = compare(rows, "demographic_parity", minimum=minimum)
    assert parity.group_names == ["0", "1", "2", "3"]
    # if only one group has both labels, there is no comparison
    few = groups != 1
    alone = made_rows(labels[few], {"site": groups[few].tolist()})
    comparison = compare(alone, "equalised_odds", minimum=minimum)
    assert not comparison.is_possible
    assert no_gap(comparison).gap is None
    # the same for a group of four rows, and for classes as groups
    tiny = np.where(np.arange(160) < 4, 9, groups)
    small = compare(
        made_rows(labels, {"site": tiny.tolist()}), "demographic_parity", minimum=minimum
    )
    assert small.grouping.left_out == {"9": "4 rows, 20 needed"}
    with pytest.raises(StopIteration):
        compare(made_rows(labels), "demographic_parity")


def test_rows_of_the_table_name_rate_label_and_counts() -> None:
    labels, scores, groups, units = draw_case("two classes", 0)
    rows = made_rows(labels, {"site": groups.tolist()}, units=units)
    drawn, once = (Resamples(rows.count, number, seed=1) for number in (200, 0))
    comparison = compare(rows, "equalised_odds")
    measured = measure_comparison(comparison, [head(rows, scores)], drawn, once, 0.95)
    lines = list(group_rows(measured, 0.95))
    assert [(line["metric"], line["label"]) for line in lines[:2]] == [
        ("true_positive_rate", "b"),
        ("false_positive_rate", "b"),
    ]
    for line in lines:
        of_group = (groups == int(line["group"])) & (labels == 1)
        assert line["positives"] == len(np.unique(units[of_group]))
        assert 0 <= line["low"] <= line["value"] <= line["high"] <= 1
        whole = (labels == 1) == (line["metric"] == "true_positive_rate")
        rate = np.average(scores.argmax(axis=1)[whole], weights=rows.weights[whole])
        assert line["difference"] == pytest.approx(line["value"] - rate)


TRIALS, ROWS = 120, 400
# With 120 trials at 95%, 106 or more succeed with probability 0.999.
LEAST = 105.5 / TRIALS


def _trial(seed: int, metric: str, rates: np.ndarray) -> Gap:
    """Returns the gap of a head that predicts "b" at the given rates [group, label]."""
    generator = np.random.default_rng(seed)
    groups, labels = np.arange(ROWS) % 2, (np.arange(ROWS) // 2) % 2
    rows = made_rows(labels, {"site": groups.tolist()})
    told = generator.random(ROWS) < rates[groups, labels]
    return measure(rows, metric, np.eye(2)[told.astype(int)], resamples=200)


@pytest.mark.parametrize(
    ("metric", "rates", "truth"),
    [
        ("equalised_odds", [[0.1, 0.8], [0.35, 0.8]], 0.25),
        ("demographic_parity", [[0.1, 0.6], [0.3, 0.8]], 0.2),
        ("equalised_odds", [[0.3, 0.7], [0.3, 0.7]], 0.0),
        ("demographic_parity", [[0.3, 0.7], [0.3, 0.7]], 0.0),
    ],
)
def test_intervals_cover_planted_gaps(metric: str, rates: Any, truth: float) -> None:
    gaps = [_trial(seed, metric, np.array(rates)) for seed in range(TRIALS)]
    covered = np.mean([gap.low <= truth <= gap.high for gap in gaps])  # type: ignore[operator]
    assert covered > LEAST
    apart = np.mean([gap.is_apart for gap in gaps])
    chance = np.mean([gap.gap > gap.chance_gap for gap in gaps])  # type: ignore[operator]
    if truth:
        assert apart > 0.9
        assert np.mean([gap.chance_gap for gap in gaps]) < truth
    else:
        assert apart < 1 - LEAST
        assert chance < 1 - LEAST
    if metric == "equalised_odds" and truth:
        assert np.mean([gap.rate == "false_positive_rate" for gap in gaps]) > 0.9
        assert np.mean([gap.worst_group == "1" for gap in gaps]) > 0.9


def test_gaps_of_many_labels_without_a_difference_are_rarely_significant() -> None:
    """The largest of 20 gaps must not be taken for a difference."""
    groups, apart = np.arange(ROWS) % 2, 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        labels = (generator.random((ROWS, 10)) < 0.5).astype(int)
        told = generator.random((ROWS, 10)) < 0.3 + 0.4 * labels
        rows = made_rows(labels, {"site": groups.tolist()})
        apart += measure(rows, "equalised_odds", told - 0.5, resamples=200).is_apart
    assert apart <= 8  # of 60 at 5%, more than 8 occur once in a hundred
