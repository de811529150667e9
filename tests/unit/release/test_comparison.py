"""The noisy count that compares two heads: sensitivity, noise, epsilon, interval and power."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpprobe.errors import PrivacyError
from dpprobe.privacy.accountants import compute_epsilon
from dpprobe.privacy.entropy import SEEDED, SystemEntropy
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Plan, full_batch
from dpprobe.privacy.target import Target
from dpprobe.release.comparison import (
    DIFFERENCE,
    SQUARES,
    Difference,
    Metric,
    Noise,
    ReleasedSums,
    comparison_mechanisms,
    estimate_difference,
    least_difference,
    mean_frequencies,
    release_sums,
    sum_units,
    unit_differences,
)
from dpprobe.release.counted_units import weigh_rows
from tests.support.mechanisms import made_plan
from tests.support.refusals import refuses


def plan_of(n: int, *, noise: float = 1e-3, unit: str = "image") -> Plan:
    return made_plan(comparison_mechanisms(), n, noise=noise, unit=unit)


def sums(first: Any, second: Any, units: Any, classes: Any = 1.0) -> tuple[float, float]:
    """Returns both sums without noise, in units of privacy."""
    codes = np.array(units)
    n = len(set(units))
    weights = weigh_rows(codes, len(codes), plan_of(n, unit="patient")) * classes
    each = unit_differences(np.array(first), np.array(second), weights, codes)
    total, squares = (float(sum_units(values, n).values[0, 0]) for values in (each, each**2))
    return total, squares


def total(first: Any, second: Any, units: Any) -> float:
    return sums(first, second, units)[0]


# two heads' shares of correct labels per row (NaN: a null row), and the row's unit
SHARES = st.one_of(st.sampled_from([0.0, 1.0, math.nan]), st.floats(0, 1))
ROWS = st.lists(st.tuples(SHARES, SHARES, st.integers(0, 5)), min_size=1, max_size=40)


@given(ROWS, st.floats(0, 1))
def test_no_unit_moves_a_sum_by_more_than_one(
    rows: list[tuple[float, float, int]], weight: float
) -> None:
    first, second, numbers = map(np.array, zip(*rows, strict=True))
    units = np.unique(numbers, return_inverse=True)[1].tolist()
    classes = np.where(np.arange(len(units)) % 2, weight, 1.0)
    whole = np.array(sums(first, second, units, classes))
    assert np.isfinite(whole).all()
    for unit in set(units):
        null = np.array(units) == unit
        for head in (first, second):
            less = np.where(null, math.nan, head)
            pair = (less, second) if head is first else (first, less)
            assert (abs(whole - sums(*pair, units, classes)) <= 1).all()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 49, 1000, 99_991])
def test_a_unit_of_any_size_adds_one_at_most(size: int) -> None:
    """The bound is reached if all rows of a unit differ alike; rounded weights cost little."""
    added = total(np.zeros(size), np.ones(size), [0] * size)
    assert 1 - size * 2.0**-25 <= added <= 1
    assert total(np.ones(size), np.zeros(size), [0] * size) == -added


def test_the_images_of_a_patient_are_averaged() -> None:
    first, second = [0.0, 0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 1.0, 0.0]
    assert sums(first, second, [0, 0, 0, 0, 1]) == (0.5, 0.25)
    assert sums(first, second, [0, 1, 2, 3, 4]) == (2, 2)
    # two images of a class of weight 1/4 of four images: (1/4 + 1/4) / 4
    assert sums(first, second, [0, 0, 0, 0, 1], np.array([0.25, 0.25, 1, 1, 1])) == (1 / 8, 1 / 64)


def test_null_rows_and_unlabelled_rows_contribute_zero_to_the_total() -> None:
    """A label of -1 never equals a predicted class."""
    scores, labels = np.eye(3), np.array([-1, 1, 2])
    right = (scores.argmax(axis=1) == labels).astype(float)
    none = np.array([0.0, 0.0, math.nan])
    assert total(none, right, [0, 1, 2]) == 1
    assert total(np.full(3, math.nan), right, [0, 1, 2]) == 0


def test_a_released_difference_is_a_whole_number_of_steps() -> None:
    """Low bits then reveal nothing about the sum; `privacy.releases` refuses any other sum."""
    shares = np.random.default_rng(0).random((2, 30))
    first, second = shares
    grid = sum_units(unit_differences(first, second, np.ones(30), None), 30)
    assert grid.units.item() == int(grid.units.item())
    assert math.log2(grid.step) == int(math.log2(grid.step))
    noisy = release_sums(first, second, None, plan_of(30, noise=3.0), SystemEntropy())
    assert all(each / grid.step == int(each / grid.step) for each in noisy)


def test_noise_has_the_deviations_of_the_plan() -> None:
    """The squares have a fifth of mu^2, so their noise is twice as large."""
    plan, draws = plan_of(6, noise=4.0), 1500
    entropies = (SystemEntropy() for _ in range(draws))
    ones = np.ones(6)
    drawn = np.array([release_sums(ones, ones, None, plan, each) for each in entropies])
    for column, name in zip(drawn.T, (DIFFERENCE, SQUARES), strict=True):
        noise = plan.find_mechanism(name).noise_scale
        assert noise == {DIFFERENCE: 4.0, SQUARES: 8.0}[name]
        assert abs(column.mean()) < 5 * noise / math.sqrt(draws)
        assert column.std() == pytest.approx(noise, rel=5 / math.sqrt(2 * draws))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (0.5, 1e-4), (2.0, 1e-6)])
def test_epsilon_equals_that_of_a_gaussian_mechanism(
    tmp_path: Path, epsilon: float, delta: float
) -> None:
    """Both releases together are compared with Balle and Wang 2018, theorem 8, and a library."""
    plan = calibrate(
        comparison_mechanisms(), Target(n=500, epsilon=epsilon, delta=delta), cache=tmp_path
    )
    for mechanism in plan.mechanisms:
        assert (mechanism.sensitivity, mechanism.count, mechanism.sample_rate) == (1, 1, 1)
    sigma = 1 / math.hypot(*(1 / mechanism.noise_scale for mechanism in plan.mechanisms))
    for price, rel in ((plan.realised_epsilon, 1e-4), (epsilon, 0.02)):
        above = norm.cdf(0.5 / sigma - price * sigma)
        below = math.exp(price) * norm.cdf(-0.5 / sigma - price * sigma)
        assert above - below == pytest.approx(delta, rel=10 * rel)
    assert compute_epsilon(plan.mechanisms, delta, "pld") <= epsilon * (1 + 1e-9)
    checks = [value for value in plan.checks.values() if value is not None]
    assert checks
    assert all(value == pytest.approx(epsilon, rel=0.3) for value in checks)


def test_refused() -> None:
    ones, plan = np.ones(4), plan_of(4)
    other = made_plan([full_batch("accuracy", "a sum", 1.0)], 4)
    with refuses(PrivacyError, "difference"):
        release_sums(ones, ones, None, other, SEEDED)
    with refuses(PrivacyError, "n = 4"):
        release_sums(np.ones(5), np.ones(5), None, plan, SEEDED)
    with refuses(PrivacyError, "n = 4", "patient"):
        release_sums(ones, ones, np.array([0, 0, 1, 2]), plan_of(4, unit="patient"), SEEDED)
    with refuses(PrivacyError, "0 to 1"):
        release_sums(ones, 1.5 * ones, None, plan, SEEDED)
    with refuses(PrivacyError, "weight", "0 to 1"):
        release_sums(ones, ones, None, plan, SEEDED, class_weights=1.5 * ones)
    with refuses(PrivacyError, 4, 3):
        release_sums(ones, np.ones(3), None, plan, SEEDED)
    silent = made_plan(comparison_mechanisms(), 4, noise=0.0)
    with refuses(PrivacyError, "not private"):
        release_sums(ones, ones, None, silent, SEEDED)


def draw_sums(
    n: int, noise: Noise, disagree: float, share: float, frequencies: tuple[float, ...]
) -> list[ReleasedSums]:
    """Draws comparisons of heads that disagree on the share `disagree` of the units of each class.

    The second head is right in `share` of these units.
    """
    draws, generator = 20_000, np.random.default_rng(1)
    classes = generator.multinomial(n, frequencies or (1.0,), draws)
    weights = min(frequencies or (1.0,)) / np.array(frequencies or (1.0,))
    differing = generator.binomial(classes, disagree)
    better = 2 * generator.binomial(differing, share) - differing
    total = better @ weights + generator.normal(0, noise.difference, draws)
    squares = differing @ weights**2 + generator.normal(0, noise.squares, draws)
    return [ReleasedSums(*pair) for pair in zip(total.tolist(), squares.tolist(), strict=True)]


FREQUENCIES = [(), (0.2, 0.8), (0.1, 0.3, 0.6)]


@pytest.mark.parametrize("disagree", [0.01, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("share", [0.5, 0.8])
@pytest.mark.parametrize("deviation", [1.0, 30.0])
@pytest.mark.parametrize("frequencies", FREQUENCIES)
def test_the_interval_covers_the_true_difference(
    disagree: float, share: float, deviation: float, frequencies: tuple[float, ...]
) -> None:
    """Coverage is at least 95%. All classes share the same difference, and so do mean recalls."""
    noise, metric = Noise(n=400, difference=deviation, squares=2 * deviation), Metric(frequencies)
    true = disagree * (2 * share - 1)
    drawn = draw_sums(400, noise, disagree, share, frequencies)
    ends = [estimate_difference(one, noise, metric) for one in drawn]
    covered = np.mean([one.low <= true <= one.high for one in ends])
    assert covered > 0.95 - 4 * math.sqrt(0.05 * 0.95 / len(drawn))


@pytest.mark.parametrize("disagree", [0.1, 0.4])
@pytest.mark.parametrize("frequencies", FREQUENCIES)
def test_the_least_difference_is_found_in_four_of_five_comparisons(
    disagree: float, frequencies: tuple[float, ...]
) -> None:
    """The power is a little above 80%, because the bounds on the noise hold jointly."""
    noise, metric = Noise(n=2000, difference=5.0, squares=10.0), Metric(frequencies)
    least = least_difference(noise, metric, disagreement=disagree)
    assert least < disagree
    drawn = draw_sums(2000, noise, disagree, (1 + least / disagree) / 2, frequencies)
    found = np.mean([estimate_difference(one, noise, metric).better == 1 for one in drawn])
    assert 0.79 < found < 0.92


def test_squares_shorten_the_interval_of_heads_that_mostly_agree() -> None:
    """Without squares, E d^2 may be 1: 1.96 sqrt(1 / n + (noise / n)^2) at the full budget."""
    for n, mu in ((100, 0.27), (400, 0.27), (5000, 0.27), (400, 1.0)):
        noise = Noise(n=n, difference=1 / mu / math.sqrt(0.8), squares=1 / mu / math.sqrt(0.2))
        drawn = draw_sums(n, noise, 0.1, 0.5, ())
        ends = [estimate_difference(one, noise, Metric()) for one in drawn]
        width = np.mean([one.high - one.low for one in ends])
        assert width < 0.7 * 2 * 1.96 * math.sqrt(1 / n + (1 / mu / n) ** 2)


def test_equal_heads_differ_in_at_most_one_of_twenty_comparisons() -> None:
    noise = Noise(n=300, difference=25.0, squares=50.0)
    drawn = draw_sums(300, noise, 0.0, 0.5, ())
    found = [estimate_difference(one, noise, Metric()).better for one in drawn]
    assert np.mean([each is not None for each in found]) < 0.05


def test_a_macro_accuracy_counts_classes_equally() -> None:
    """With exact frequencies, the result equals the mean recall of a plain loop."""
    generator = np.random.default_rng(4)
    labels = np.repeat([0, 1, 2], [50, 150, 300])
    first, second = (generator.random((2, 500)) < 0.6).astype(float)
    metric = Metric((0.1, 0.3, 0.6))
    each = unit_differences(first, second, metric.weigh_labels(labels), None)
    noise = Noise(n=500, difference=1e-9, squares=1e-9)
    found = estimate_difference(ReleasedSums(each.sum(), (each**2).sum()), noise, metric)
    recalls = [np.mean((second - first)[labels == label]) for label in range(3)]
    assert found.value == pytest.approx(np.mean(recalls))
    assert metric.name == "macro_accuracy"
    assert metric.weights == pytest.approx([1, 1 / 3, 1 / 6])
    assert metric.mean_square == pytest.approx(0.1 + 0.3 / 9 + 0.6 / 36)
    assert mean_frequencies([(0.1, 0.9), (0.3, 0.7)]) == pytest.approx((0.2, 0.8))


@pytest.mark.parametrize(
    ("ends", "better"),
    [((0.1, 0.2), 1), ((-0.2, -0.1), 0), ((-0.1, 0.1), None), ((0.0, 0.1), None)],
)
def test_a_head_is_better_if_the_interval_leaves_out_zero(
    ends: tuple[float, float], better: int | None
) -> None:
    assert Difference(sum(ends) / 2, *ends).better == better
