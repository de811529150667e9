"""The noisy test result of a released head: sensitivity, noise, and coverage of its interval."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import binom, norm
from sklearn.metrics import accuracy_score, recall_score, roc_auc_score

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.target import Target
from dpprobe.release.parts.evaluation import measure as results
from dpprobe.release.parts.evaluation.class_recalls import Estimate, recall_mechanisms
from dpprobe.release.probabilities import Calibration
from dpprobe.results import metrics
from tests.support.mechanisms import made_plan
from tests.support.refusals import refuses
from tests.support.shown_scores import draw_of, head, of_test_rows

Metric = Literal["accuracy", "auc", "macro_accuracy"]
NULL = math.nan
LITTLE = 1e-3  # times a plan's noise: results are then as if without noise


def plan_area(folder: Path, n: int, epsilon: float) -> Plan:
    wanted = results.evaluation_mechanisms("auc", classes=2, multi_label=False)
    target = Target(n=n, epsilon=epsilon, delta=1e-5)
    return calibrate(wanted, target, cache=folder / "calibration")


def measure(
    scores: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    plan: Plan,
    metric: Metric,
    *,
    units: npt.NDArray[Any] | None = None,
    seed: int = 1,
    **more: Any,
) -> dict[str, Any]:
    """Evaluates a head that yields these scores, with noise from a seed."""
    return results.evaluate_heads(
        draw_of(head(scores.shape[1], seed), of_test_rows(scores, labels, units)),
        plan,
        metric=metric,
        link="sigmoid" if labels.ndim == 2 else "softmax",
        **more,
    )


def two_classes(n: int, generator: np.random.Generator, apart: float = 1.5) -> Any:
    """Returns scores and labels of two normal classes, with the true area under the ROC curve."""
    labels = generator.integers(0, 2, n)
    margins = generator.normal(labels * apart, 1)
    return np.stack([np.zeros(n), margins], 1), labels, float(ndtr(apart / math.sqrt(2)))


@pytest.mark.parametrize("units", [[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 0, 0]])
@pytest.mark.parametrize(
    ("metric", "multi_label"),
    [
        ("accuracy", False),
        ("accuracy", True),
        ("auc", False),
        ("auc", True),
        ("macro_accuracy", False),
    ],
)
def test_no_unit_moves_what_is_released_by_more_than_its_sensitivity(
    metric: Metric, multi_label: bool, units: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compares evaluations of all units with evaluations in which one unit has only null rows."""
    generator, whose = np.random.default_rng(5), np.array(units)
    classes, n = 3 if multi_label else 2, len(set(units))
    wanted = results.evaluation_mechanisms(metric, classes=classes, multi_label=multi_label)
    plan = made_plan(wanted, n, noise=LITTLE, unit="image" if n == 6 else "patient")
    told: dict[str, torch.Tensor] = {}
    sums: list[dict[str, torch.Tensor]] = []
    draw = Releases.release_gaussian

    def release(self: Releases, name: str, total: GridSum) -> torch.Tensor:
        sums[-1][name] = total.values.double()
        return told.setdefault(name, draw(self, name, total))

    monkeypatch.setattr(Releases, "release_gaussian", release)
    # intervals take most of the time and are not tested here
    estimate = Estimate(0.5, 0.0, 1.0, 0.5)
    monkeypatch.setattr(results, "accuracy_estimate", lambda *_: estimate)
    monkeypatch.setattr(results, "area_estimate", lambda *_: (estimate, ""))
    worst = dict.fromkeys((item.name for item in wanted), 0.0)
    for _ in range(60):
        scores = generator.normal(size=(6, classes)) * generator.choice([0.01, 1, 1e6])
        drawn = generator.integers(0, 2, (6, classes) if multi_label else 6)
        labels: npt.NDArray[Any] = drawn.astype(np.uint8) if multi_label else drawn
        if generator.random() < 0.3:  # equal rows give the longest sum of a unit
            scores[:], labels[:] = scores[0], labels[0]
        told.clear()
        sums.clear()
        for nulled in (-1, *set(units)):
            sums.append({})
            rows = np.where((whose == nulled)[:, None], NULL, scores)
            measure(rows, labels, plan, metric, units=None if n == 6 else whose)
        for name, whole in sums[0].items():
            changes = [float((whole - less[name]).norm()) for less in sums[1:]]
            worst[name] = max(worst[name], *changes)
    for item in wanted:
        assert item.sensitivity * (1 - 1e-6) < worst[item.name] <= item.sensitivity + 1e-9


@pytest.mark.parametrize("metric", ["accuracy", "auc", "macro_accuracy"])
def test_the_step_of_a_site_fits_the_total_of_all_sites(
    metric: Metric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The total over all sites' units is at most 2^53 steps, which float64 adds exactly."""
    n, steps, draw = 2**30, list[float](), Releases.release_gaussian

    def release(self: Releases, name: str, total: GridSum) -> torch.Tensor:
        steps.append(total.step)
        return draw(self, name, total)

    monkeypatch.setattr(Releases, "release_gaussian", release)
    monkeypatch.setattr(results, "accuracy_estimate", lambda *_: Estimate(0.5, 0.0, 1.0, 0.5))
    rows = replace(of_test_rows(np.eye(2), np.arange(2)), public_test_n=n)
    wanted = results.evaluation_mechanisms(metric, classes=2, multi_label=False)
    usual: dict[str, Any] = {"metric": metric, "link": "softmax"}
    results.evaluate_heads(draw_of(head(2), rows), made_plan(wanted, n), **usual)
    assert 2**50 <= min(n / step for step in steps) <= max(n / step for step in steps) <= 2**53


def test_without_noise_the_area_is_the_benchmarks() -> None:
    generator = np.random.default_rng(0)
    scores, labels, _ = two_classes(20_000, generator)
    bench = metrics.Evaluation(scores, labels).compute_metrics()["auc"]
    wanted = results.evaluation_mechanisms("auc", classes=2, multi_label=False)
    plan = made_plan(wanted, 20_000, noise=LITTLE)
    # ranks change only by binning if a bias is added to all scores or they are rescaled
    for shift, scale in ((0, 1), (5, 1), (-3, 0.1), (0, 40)):
        moved = np.stack([scores[:, 0], scores[:, 1] * scale + shift], 1)
        result = measure(moved, labels, plan, "auc")
        assert result["value"] == pytest.approx(bench, abs=1e-3)


@pytest.fixture
def few_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses fewer simulations: the noise's part of a spread may be off by 3%, as tested below."""
    monkeypatch.setattr(results, "SIMULATIONS", 1000)


@pytest.mark.usefixtures("few_simulations")
@pytest.mark.parametrize(
    ("n", "epsilon", "apart"),
    [(60, 8.0, 1.5), (400, 0.2, 1.5), (400, 8.0, 3.5), (2500, 0.5, 1.5), (8000, 2.0, 1.5)],
)
def test_the_interval_of_an_area_covers_sampling_and_noise(
    tmp_path: Path, n: int, epsilon: float, apart: float
) -> None:
    plan = plan_area(tmp_path, n, epsilon)
    generator = np.random.default_rng(4)
    inside = 0
    for repetition in range(200):
        scores, labels, area = two_classes(n, generator, apart)
        result = measure(scores, labels, plan, "auc", seed=repetition)
        low, high = result["interval"]
        assert 0 <= low < high <= 1
        inside += low <= area <= high
    assert inside >= 200 * 0.95 - 3 * math.sqrt(200 * 0.95 * 0.05)


def test_standard_errors_equal_those_of_draws() -> None:
    generator, n, deviation = np.random.default_rng(0), 400, 9.0
    drawn = (generator.binomial(n, 0.8, 20_000) + generator.normal(0, deviation, 20_000)) / n
    estimate = results.accuracy_estimate(0.8, n, deviation)
    assert estimate.standard_error == pytest.approx(drawn.std(), rel=0.03)
    counts = np.array([[np.arange(16.0), np.arange(16.0)[::-1]]]) + 20
    noise = generator.normal(0, 3, (20_000, *counts.shape))
    areas = results.compute_areas(counts + noise).mean(axis=-1)
    assert results.simulate_noise(counts, 3.0) == pytest.approx(areas.std(), rel=0.05)


def test_negative_counts_give_an_area_in_range() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        counts = generator.normal(0, 20, (2, 2, 16)) + generator.choice([0, 5, 50])
        estimate, _ = results.area_estimate(counts, 20.0)
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
        assert estimate.high > estimate.low


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_with_the_stated_test_units_95_percent_of_areas_have_a_result(
    tmp_path: Path, epsilon: float
) -> None:
    plan = plan_area(tmp_path, 1000, epsilon)
    deviation = plan.mechanisms[-1].noise_scale
    enough = results.enough_of_a_class(plan, classes=2)
    bins = results.count_bins(plan.n, deviation)
    generator = np.random.default_rng(3)
    noise = generator.normal(0, deviation, (3000, 1, 2, bins))
    shares = [
        np.mean(
            [
                (
                    results.area_estimate(np.full((1, 2, bins), units / bins) + each, deviation)[0]
                    != Estimate(0.5, 0.0, 1.0, 0.5)
                )
                for each in noise[:200]
            ]
        )
        for units in (1.25 * enough, 0.75 * enough)
    ]
    totals = enough + noise.sum(axis=-1)
    assert (totals > 4 * deviation * math.sqrt(bins)).all(axis=(1, 2)).mean() == pytest.approx(
        0.95, abs=0.015
    )
    assert shares[0] > 0.98
    assert shares[1] < 0.7


# The numbers of a test result, compared with plain loops and other libraries; its words.


Z = norm.ppf(0.975)


def chance_below(hit: float, p: float, n: int, deviation: float) -> float:
    """Returns P(n coin tosses of chance p, plus normal noise, sum to at most `hit`)."""
    return sum(
        binom.pmf(count, n, p) * norm.cdf((hit - count) / deviation) for count in range(n + 1)
    )


def search(function: Any) -> float:
    """Finds by bisection where a decreasing function is 0.025; returns an end if it never is."""
    low, high = 0.0, 1.0
    for _ in range(24):  # to 1e-7
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0.025 else (low, middle)
    return low


@pytest.mark.parametrize("value", [0.0, 0.02, 0.5, 0.93, 1.0])
@pytest.mark.parametrize(("n", "deviation"), [(1, 0.1), (40, 0.1), (40, 5.0), (300, 2.0)])
def test_the_interval_of_an_accuracy_equals_a_search_over_all_counts(
    value: float, n: int, deviation: float
) -> None:
    """The interval has each p that the noisy sum does not reject at 2.5% on either side."""
    found = results.accuracy_estimate(value, n, deviation)
    high = search(lambda p: chance_below(value * n, p, n, deviation)) if value < 1 else 1.0
    low = 1 - search(lambda q: 1 - chance_below(value * n, 1 - q, n, deviation)) if value else 0.0
    assert found.value == value
    assert found.low == pytest.approx(min(low, value), abs=1e-6)
    assert found.high == pytest.approx(max(high, value), abs=1e-6)
    spread = n * value * (1 - value) + deviation**2
    assert found.standard_error == pytest.approx(math.sqrt(spread) / n)


def draw_counts(labels: int, bins: int, seed: int) -> Any:
    generator = np.random.default_rng(seed)
    return generator.integers(20, 90, (labels, 2, bins)).astype(float)


@pytest.mark.parametrize("labels", [1, 3])
def test_the_auc_equals_scikit_learns(labels: int) -> None:
    counts = draw_counts(labels, 9, labels)
    areas = [
        roc_auc_score(np.repeat([1, 0], 9), np.tile(np.arange(9), 2), sample_weight=each.ravel())
        for each in counts
    ]
    estimate, left_out = results.area_estimate(counts, 1e-6)
    assert estimate.value == pytest.approx(np.mean(areas))
    assert left_out == 0


@pytest.mark.parametrize(("labels", "deviation"), [(1, 1e-6), (3, 1e-6), (1, 3.0), (2, 6.0)])
def test_the_interval_of_an_auc_equals_newcombes(labels: int, deviation: float) -> None:
    """Ends are 1.96 deviations from the value; errors of the labels may all have one sign."""
    counts = draw_counts(labels, 16, 5)
    estimate, _ = results.area_estimate(counts, deviation)
    areas = results.compute_areas(counts)
    noise = results.simulate_noise(counts, deviation)

    def spread(area: float) -> float:
        errors = []
        for each, (positives, negatives) in zip(areas, counts.sum(axis=2), strict=True):
            a = min(max(each + area - np.mean(areas), 0), 1)
            m = (positives + negatives) / 2 - 1
            bracket = 1 + m * (1 - a) / (2 - a) + m * a / (1 + a)
            errors.append(math.sqrt(a * (1 - a) * bracket / (positives * negatives)))
        return math.hypot(float(np.mean(errors)), noise)

    assert estimate.standard_error == pytest.approx(spread(estimate.value))
    for end in (estimate.low, estimate.high):
        assert abs(end - estimate.value) == pytest.approx(Z * spread(end), rel=1e-5)
    assert estimate.low < estimate.value < estimate.high


def test_a_perfect_ranking_has_the_end_1() -> None:
    counts = np.zeros((1, 2, 4))
    counts[0, 0, 3], counts[0, 1, 0] = 50, 60
    estimate, _ = results.area_estimate(counts, 1e-9)
    assert (estimate.value, estimate.high) == (1.0, 1.0)
    assert 0.8 < estimate.low < 1


def test_labels_that_are_too_rare_are_left_out() -> None:
    """A class total must exceed four deviations of its noise, and one unit."""
    counts = draw_counts(3, 16, 7)
    deviation = 2.0
    rare = 4 * deviation * math.sqrt(16)
    for kind, factor, left in ((0, 0.999, 1), (1, 0.999, 1), (0, 1.001, 0)):
        changed = counts.copy()
        changed[1, kind] *= factor * rare / changed[1, kind].sum()
        estimate, left_out = results.area_estimate(changed, deviation)
        kept = changed[[0, 2]] if left else changed
        assert estimate.value == results.area_estimate(kept, deviation)[0].value
        assert left_out == left
    few = np.full((2, 2, 16), 0.01)
    estimate, left_out = results.area_estimate(few, deviation)
    assert estimate == Estimate(0.5, 0.0, 1.0, 0.5)
    assert left_out == 2
    one = np.full((1, 2, 4), 0.25)
    assert results.area_estimate(one, 0.01)[0] == Estimate(0.5, 0.0, 1.0, 0.5)
    assert results.area_estimate(one + 1e-6, 0.01)[0] != Estimate(0.5, 0.0, 1.0, 0.5)


@given(seed=st.integers(0, 10**6), bins=st.integers(3, 30))
def test_edges_of_bins_are_quantiles(seed: int, bins: int) -> None:
    """Edges are dense at both ends, for rare labels; without noise, ranges are filled evenly."""
    generator, fixed = np.random.default_rng(seed), np.linspace(-3, 3, 13)
    counts = generator.integers(0, 50, 12).astype(float)
    counts[generator.integers(12)] += 10
    edges = results.place_edges(counts, fixed, 0.0, bins)
    assert len(edges) == bins + 1
    assert (edges[0], edges[-1]) == (-3, 3)
    assert (np.diff(edges) >= 0).all()
    levels = 1 / (1 + np.exp(-np.linspace(-4.5, 4.5, bins - 1)))
    below = [np.interp(edge, fixed, np.append(0, counts.cumsum())) for edge in edges[1:-1]]
    np.testing.assert_allclose(np.array(below) / counts.sum(), levels, atol=1e-4)


def test_ranges_within_their_noise_have_no_edge() -> None:
    """A count of at most two deviations is taken as 0, unless all counts are that small."""
    fixed = np.arange(5.0)
    inner = results.place_edges(np.array([9.0, 2.0, 2.0, 1.9]), fixed, 1.0, 9)[1:-1]
    assert (inner <= 1 + 1e-4).all()
    inner = results.place_edges(np.array([9.0, 2.0, 2.0, 9.1]), fixed, 1.0, 9)[1:-1]
    assert not ((inner > 1.001) & (inner < 2.999)).any()
    inner = results.place_edges(np.array([0.0, 2.0, 0.0, -1.9]), fixed, 1.0, 9)[1:-1]
    assert ((inner > 0.999) & (inner < 2.001)).all()


def drawn(classes: int, several: bool = False, rows: int = 60) -> tuple[Any, Any]:
    generator = np.random.default_rng(classes)
    labels: Any = generator.integers(0, 2 if several else classes, (rows, classes)[: 1 + several])
    scores = generator.normal(labels if several else np.eye(classes)[labels], 1.0)
    return scores, labels.astype(np.uint8) if several else labels


def evaluate(metric: Any, scores: Any, labels: Any, units: Any = None, **more: Any) -> Any:
    several, classes = labels.ndim == 2, scores.shape[1]
    wanted = results.evaluation_mechanisms(metric, classes=classes, multi_label=several)
    n = len(labels) if units is None else len(set(units))
    plan = made_plan(wanted, n, noise=LITTLE, unit="image" if units is None else "patient")
    return measure(scores, labels, plan, metric, units=units, **more)


def test_accuracy_and_recalls_equal_scikit_learns() -> None:
    scores, labels = drawn(4)
    answers = scores.argmax(axis=1)
    made = evaluate("accuracy", scores, labels)
    assert made["value"] == pytest.approx(accuracy_score(labels, answers), abs=1e-3)
    assert list(made) == [
        "metric",
        "value",
        "interval",
        "standard_error",
        "n",
        "epsilon",
        "epsilon_target",
        "delta",
        "mechanisms",
    ]
    made = evaluate("macro_accuracy", scores, labels)
    recalls = recall_score(labels, answers, average=None)
    assert made["value"] == pytest.approx(recalls.mean(), abs=1e-3)
    for first in range(4):  # each class is once the worst
        named = evaluate("macro_accuracy", np.roll(scores, -first, axis=1), (labels - first) % 4)[
            "worst_class"
        ]
        assert named["name"] == "abcd"[(recalls.argmin() - first) % 4]
        assert named["recall"] == pytest.approx(recalls.min(), abs=1e-3)
    right = [(answers[labels == k] == k).sum() for k in range(4)]
    counts = np.stack([right, np.bincount(labels) - right], axis=1)
    np.testing.assert_allclose(made["class_counts"], counts, atol=0.02)
    assert (made["metric"], made["n"]) == ("macro_accuracy", 60)


def test_the_share_of_right_labels_is_counted() -> None:
    scores, labels = drawn(3, several=True)
    made = evaluate("accuracy", scores, labels)
    assert made["value"] == pytest.approx(((scores > 0) == labels).mean(), abs=1e-3)


def test_each_patient_counts_as_one() -> None:
    """A patient's three images have weight 1/3 each, also in a table of recalls."""
    scores, labels = drawn(3)
    units = np.repeat(np.arange(20), 3)
    hits = (scores.argmax(axis=1) == labels).reshape(20, 3).mean(axis=1)
    made = evaluate("accuracy", scores, labels, units)
    assert made["value"] == pytest.approx(hits.mean(), abs=2e-3)
    counts = evaluate("macro_accuracy", scores, labels, units)["class_counts"]
    assert np.sum(counts) == pytest.approx(20, abs=0.05)
    assert np.sum(counts, axis=0)[0] == pytest.approx(hits.sum(), abs=0.05)


def test_null_rows_count_as_wrong() -> None:
    scores, labels = drawn(3)
    scores[:6], labels[:6] = math.nan, 0
    counts = evaluate("macro_accuracy", scores, labels)["class_counts"]
    right = (scores[6:].argmax(axis=1) == labels[6:]).sum()
    np.testing.assert_allclose(np.sum(counts, axis=0), [right, 54 - right], atol=0.05)
    assert evaluate("accuracy", scores, labels)["value"] == pytest.approx(right / 60, abs=1e-3)
    scores, labels = drawn(2, rows=400)
    scores[:6] = math.nan
    counts = evaluate("auc", scores, labels, keep_counts=True)["score_counts"]["counts"]
    assert np.sum(counts) == pytest.approx(394, abs=0.2)


def test_a_calibration_moves_the_answers_of_two_classes() -> None:
    scores, labels = drawn(2)
    calibration = Calibration(scale=2.0, offset=1.5, thresholds={})
    made = evaluate("accuracy", scores, labels, calibration=calibration)
    answers = 2 * (scores[:, 1] - scores[:, 0]) + 1.5 > 0
    assert made["value"] == pytest.approx((answers == labels).mean(), abs=1e-3)


def test_counts_of_an_area_are_kept_for_a_calibration() -> None:
    scores, labels = drawn(2, rows=400)
    assert "score_counts" not in evaluate("auc", scores, labels)
    table = evaluate("auc", scores, labels, keep_counts=True)["score_counts"]
    edges, margins = np.array(table["edges"]), scores[:, 1] - scores[:, 0]
    assert edges[[0, -1]] == pytest.approx([-1000, 1000])
    for row, kind in enumerate((1, 0)):  # rows of the second class first
        expected, _ = np.histogram(margins[labels == kind], edges)
        np.testing.assert_allclose(table["counts"][row], expected, atol=1.05)
        assert np.sum(table["counts"][row]) == pytest.approx((labels == kind).sum(), abs=0.1)


def test_metrics_that_labels_do_not_allow_are_refused() -> None:
    with refuses(ConfigError, "macro_accuracy", "label"):
        results.evaluation_mechanisms("macro_accuracy", classes=3, multi_label=True)
    with refuses(ConfigError, "auc", "3 classes"):
        results.evaluation_mechanisms("auc", classes=3, multi_label=False)


def hit_plan(n: int) -> Plan:
    wanted = results.evaluation_mechanisms("accuracy", classes=2, multi_label=False)
    return made_plan(wanted, n, noise=2.0 / wanted[0].noise_multiplier)


def test_an_accuracy_within_20_points_of_noise_is_measured() -> None:
    results.check_telling(hit_plan(10))
    with refuses(PrivacyError, "epsilon 1", "9 test units", 22):
        results.check_telling(hit_plan(9))


def test_macro_accuracy_needs_enough_of_each_class() -> None:
    """Each class needs more than one unit even without noise; more classes need more units."""
    plan = made_plan(recall_mechanisms(), 30, noise=2.0)
    deviation = plan.mechanisms[0].noise_scale * math.sqrt(2)
    for classes in (2, 5):
        each = 4 * deviation + norm.ppf(0.95 ** (1 / classes)) * deviation
        assert results.enough_of_a_class(plan, classes=classes) == pytest.approx(each)
        n = math.ceil(classes * each)
        results.check_telling(made_plan(recall_mechanisms(), n, noise=2.0), classes=classes)
        with refuses(PrivacyError, math.ceil(each)):
            results.check_telling(made_plan(recall_mechanisms(), n - 1, noise=2.0), classes=classes)
