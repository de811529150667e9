"""The noisy count that compares two heads: sensitivity, noise, price, interval and power."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpprobe.errors import PrivacyError
from dpprobe.heads.accuracy_difference import sum_differences
from dpprobe.privacy.accountants import compute_epsilon
from dpprobe.privacy.entropy import SEEDED, SystemEntropy
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Plan, full_batch
from dpprobe.privacy.target import Target
from dpprobe.release import comparison
from dpprobe.release.comparison import (
    Difference,
    comparison_mechanisms,
    estimate_difference,
    least_difference,
    release_difference,
)
from dpprobe.release.counted_units import weigh_rows
from tests.support.mechanisms import made_plan
from tests.support.refusals import refuses

Floats = npt.NDArray[np.float64]


def plan_of(n: int, *, noise: float = 1e-3, unit: str = "image") -> Plan:
    return made_plan(comparison_mechanisms(), n, noise=noise, unit=unit)


def total(first: Any, second: Any, units: Any) -> float:
    """The sum without noise, in units."""
    codes = np.array(units)
    n = len(set(units))
    weights = weigh_rows(codes, len(codes), plan_of(n, unit="patient"))
    return float(sum_differences(np.array(first), np.array(second), weights, n).values[0, 0])


# rows of two heads: shares of right labels, or a null row, and the row's unit
SHARES = st.one_of(st.sampled_from([0.0, 1.0, math.nan]), st.floats(0, 1))
ROWS = st.lists(st.tuples(SHARES, SHARES, st.integers(0, 5)), min_size=1, max_size=40)


@given(ROWS)
def test_no_unit_moves_the_sum_by_more_than_one(rows: list[tuple[float, float, int]]) -> None:
    first, second, numbers = map(np.array, zip(*rows, strict=True))
    units = np.unique(numbers, return_inverse=True)[1].tolist()
    whole = total(first, second, units)
    assert math.isfinite(whole)
    for unit in set(units):
        null = np.array(units) == unit
        for head in (first, second):
            less = np.where(null, math.nan, head)
            pair = (less, second) if head is first else (first, less)
            assert abs(whole - total(*pair, units)) <= 1


@pytest.mark.parametrize("size", [1, 2, 3, 7, 49, 1000, 99_991])
def test_a_unit_of_any_size_adds_one_at_most(size: int) -> None:
    """Where all its rows differ alike; its weights, rounded down, hardly lose anything."""
    added = total(np.zeros(size), np.ones(size), [0] * size)
    assert 1 - size * 2.0**-25 <= added <= 1
    assert total(np.ones(size), np.zeros(size), [0] * size) == -added


def test_the_images_of_a_patient_are_averaged() -> None:
    first, second = [0.0, 0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 1.0, 0.0]
    assert total(first, second, [0, 0, 0, 0, 1]) == 0.5
    assert total(first, second, [0, 1, 2, 3, 4]) == 2


def test_null_rows_and_rows_without_a_label_add_nothing() -> None:
    """A label of -1 is right for no head."""
    scores, labels = np.eye(3), np.array([-1, 1, 2])
    right = (scores.argmax(axis=1) == labels).astype(float)
    none = np.array([0.0, 0.0, math.nan])
    assert total(none, right, [0, 1, 2]) == 1
    assert total(np.full(3, math.nan), right, [0, 1, 2]) == 0


def test_what_leaves_is_a_whole_number_of_steps() -> None:
    """So that no low bit of it tells what was added: `privacy.releases` refuses any other sum."""
    shares = np.random.default_rng(0).random((2, 30))
    first, second = shares
    grid = sum_differences(first, second, np.ones(30), 30)
    assert grid.units.item() == int(grid.units.item())
    assert math.log2(grid.step) == int(math.log2(grid.step))
    noisy = release_difference(first, second, None, plan_of(30, noise=3.0), SystemEntropy())
    assert noisy / grid.step == int(noisy / grid.step)


def test_noise_has_the_deviation_of_the_plan() -> None:
    noise, draws = 4.0, 1500
    entropies = (SystemEntropy() for _ in range(draws))
    ones = np.ones(6)
    drawn = np.array(
        [release_difference(ones, ones, None, plan_of(6, noise=noise), each) for each in entropies]
    )
    assert abs(drawn.mean()) < 5 * noise / math.sqrt(draws)
    assert drawn.std() == pytest.approx(noise, rel=5 / math.sqrt(2 * draws))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (0.5, 1e-4), (2.0, 1e-6)])
def test_epsilon_is_that_of_a_gaussian_mechanism(
    tmp_path: Path, epsilon: float, delta: float
) -> None:
    """In closed form (Balle and Wang 2018, theorem 8), with mu = 1 / sigma, and by a library."""
    plan = calibrate(
        comparison_mechanisms(), Target(n=500, epsilon=epsilon, delta=delta), cache=tmp_path
    )
    (mechanism,) = plan.mechanisms
    assert (mechanism.sensitivity, mechanism.count, mechanism.sample_rate) == (1, 1, 1)
    sigma = mechanism.noise_scale
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
        release_difference(ones, ones, None, other, SEEDED)
    with refuses(PrivacyError, "n = 4"):
        release_difference(np.ones(5), np.ones(5), None, plan, SEEDED)
    with refuses(PrivacyError, "n = 4", "patient"):
        release_difference(ones, ones, np.array([0, 0, 1, 2]), plan_of(4, unit="patient"), SEEDED)
    with refuses(PrivacyError, "0 to 1"):
        release_difference(ones, 1.5 * ones, None, plan, SEEDED)
    with refuses(PrivacyError, 4, 3):
        release_difference(ones, np.ones(3), None, plan, SEEDED)
    silent = made_plan(comparison_mechanisms(), 4, noise=0.0)
    with refuses(PrivacyError, "not private"):
        release_difference(ones, ones, None, silent, SEEDED)


@pytest.mark.parametrize("disagree", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("share", [0.5, 0.8])
@pytest.mark.parametrize("noise", [1.0, 30.0])
def test_the_interval_covers_the_true_difference(
    disagree: float, share: float, noise: float
) -> None:
    """`share` of the units on which heads disagree are the second head's; 95% and more cover."""
    n, draws, generator = 400, 20_000, np.random.default_rng(1)
    true = disagree * (2 * share - 1)
    differing = generator.binomial(n, disagree, draws)
    sums = 2 * generator.binomial(differing, share) - differing
    noisy = sums + generator.normal(0, noise, draws)
    for assumed in {1.0, disagree}:
        ends = [estimate_difference(one, n, noise, disagreement=assumed) for one in noisy]
        covered = np.mean([one.low <= true <= one.high for one in ends])
        assert covered > 0.95 - 4 * math.sqrt(0.05 * 0.95 / draws)


@pytest.mark.parametrize("disagree", [0.2, 0.5])
@pytest.mark.parametrize("assumed", [None, 1.0])
def test_the_least_difference_is_found_in_four_of_five_comparisons(
    disagree: float, assumed: float | None
) -> None:
    """Of draws whose disagreement is the stated one, so that chances are a little higher."""
    n, noise, draws, generator = 2000, 20.0, 20_000, np.random.default_rng(2)
    assumed = assumed or disagree
    least = least_difference(n, noise, disagreement=disagree, assumed=assumed)
    assert least < disagree
    differing = generator.binomial(n, disagree, draws)
    sums = 2 * generator.binomial(differing, (1 + least / disagree) / 2) - differing
    noisy = sums + generator.normal(0, noise, draws)
    ends = [estimate_difference(one, n, noise, disagreement=assumed) for one in noisy]
    assert 0.79 < np.mean([one.better == 1 for one in ends]) < 0.86


def test_equal_heads_are_told_apart_in_one_of_twenty_comparisons_at_most() -> None:
    noisy = np.random.default_rng(3).normal(0, 25.0, 20_000)
    found = [estimate_difference(one, 300, 25.0, disagreement=1e-9).better for one in noisy]
    assert np.mean([each is not None for each in found]) == pytest.approx(0.05, abs=0.007)


@pytest.mark.parametrize(
    ("ends", "better"),
    [((0.1, 0.2), 1), ((-0.2, -0.1), 0), ((-0.1, 0.1), None), ((0.0, 0.1), None)],
)
def test_a_head_is_better_if_the_interval_leaves_out_zero(
    ends: tuple[float, float], better: int | None
) -> None:
    assert Difference(sum(ends) / 2, *ends).better == better


@given(st.floats(-1e4, 1e4), st.integers(1, 1000), st.floats(1e-3, 1e3), st.floats(1e-3, 1))
def test_ends_are_in_order_and_differences_of_shares(
    released: float, n: int, deviation: float, share: float
) -> None:
    found = estimate_difference(released, n, deviation, disagreement=share)
    assert -1 <= found.low <= found.value <= found.high <= 1
    assert comparison.least_difference(n, deviation, disagreement=share) > 0
