"""The best possible attack: closed forms, brute force by definition, and monotonicity."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binom, norm

from dpprobe.privacy import accountants
from dpprobe.privacy.plan import Mechanism
from dpprobe.privacy.trade_off import bound_attacks
from tests.support.mechanisms import best_of, gaussians, mixed, mixed_delta, sampled_delta

RATES = [0.0, 0.001, 0.01, 0.1, 0.5, 1.0]
DELTA = 1e-5
# Answers are rounded up to six decimals, after adding 1e-12.
UNIT = 1.01e-6


def best_attack(*given: Any, **prices: Any) -> list[float]:
    return list(bound_attacks(*given, **prices).true_positives)


def sampled_best(noise: float, sample_rate: float, alpha: float) -> float:
    """Returns the error of the best test of one sampled release, from both densities.

    Their ratio rises with the output, so by Neyman and Pearson the best test is a threshold.
    """
    threshold = norm.isf(alpha) * noise
    missed = norm.sf(threshold / noise)
    return float((1 - sample_rate) * missed + sample_rate * norm.sf((threshold - 1) / noise))


@given(mu=st.floats(0.01, 8), rate=st.floats(0.0, 1.0))
def test_one_gaussian_is_its_closed_form_rounded_up(mu: float, rate: float) -> None:
    (answer,) = best_attack([gaussians(1 / mu)], [rate], delta=DELTA, epsilon=1.0)
    exact = norm.cdf(norm.ppf(rate) + mu)
    assert exact <= answer <= min(1.0, exact + UNIT)


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (0.7, 0.5), (2.0, 0.9)])
def test_a_sampled_release_is_bounded_tightly(noise: float, rate: float) -> None:
    """The bound exceeds the best test's rate only by the cost of covering both directions."""
    answers = best_attack([gaussians(noise, rate)], RATES, delta=DELTA, epsilon=1.0)
    exact = [sampled_best(noise, rate, alpha) for alpha in RATES]
    for answer, least in zip(answers, exact, strict=True):
        assert answer >= least
    assert answers[1:4] == pytest.approx(exact[1:4], rel=0.01, abs=1e-5)


def test_a_selection_is_bounded_only_by_its_price() -> None:
    answers = best_attack([gaussians(5.0)], RATES, best_of(10), delta=DELTA, epsilon=math.log(3))
    expected = [DELTA, 0.003 + DELTA, 0.03 + DELTA, 0.3 + DELTA, 1 - (0.5 - DELTA) / 3, 1.0]
    assert all(
        low <= answer <= min(1.0, low + UNIT) + 1e-12
        for low, answer in zip(expected, answers, strict=True)
    )
    far = best_attack([gaussians(0.01)], RATES, best_of(10), delta=DELTA, epsilon=1e4)
    assert far == [1.0] * len(expected)


def simple_bound(epsilon: float) -> float:
    """Returns the balanced accuracy that a single (epsilon, delta) allows."""
    return (math.exp(epsilon) + DELTA) / (1 + math.exp(epsilon))


@settings(max_examples=30)
@given(mu=st.floats(0.01, 8))
def test_the_balanced_accuracy_of_gaussians_is_an_integral_rounded_up(mu: float) -> None:
    """The balanced accuracy is (1 + total variation) / 2; the densities cross at mu / 2."""
    above, _ = quad(lambda x: norm.pdf(x - mu) - norm.pdf(x), mu / 2, mu + 40, epsabs=1e-12)
    parts = [gaussians(2 / mu, count=2, name="a"), gaussians(math.sqrt(2) / mu, name="b")]
    answer = bound_attacks(parts, [], delta=DELTA, epsilon=1.0)
    assert answer.exact
    assert (1 + above) / 2 - 1e-9 <= answer.balanced_accuracy <= (1 + above) / 2 + UNIT + 1e-9
    assert above - 1e-6 <= answer.advantage <= above + 3 * UNIT


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (0.7, 0.5), (2.0, 0.9)])
def test_the_balanced_accuracy_of_one_sampled_release_is_tight(noise: float, rate: float) -> None:
    answer = bound_attacks([gaussians(noise, rate)], [], delta=DELTA, epsilon=1.0)
    least = (1 + sampled_delta(noise, rate, 0.0)) / 2
    assert not answer.exact
    assert least - 1e-8 <= answer.balanced_accuracy <= least + 1e-4


def test_the_balanced_accuracy_of_a_mixed_plan_is_tight() -> None:
    noise, rate = 1.0, 0.3
    answer = bound_attacks(mixed(noise, rate, 1), [], delta=DELTA, epsilon=1.0)
    least = (1 + mixed_delta(1 / (8 * noise), noise, rate, 0.0)) / 2
    assert least - 1e-6 <= answer.balanced_accuracy <= least + 1e-4


def test_two_sampled_releases_are_bounded_tightly_by_brute_force() -> None:
    """Sorts all cells of a grid in the plane by their likelihood ratio (Neyman and Pearson)."""
    noise, rate = 1.0, 0.2
    x = np.linspace(-9, 10, 1501)
    without = norm.pdf(x, 0, noise)
    within = (1 - rate) * without + rate * norm.pdf(x, 1, noise)
    cell = (x[1] - x[0]) ** 2
    out, inside = (np.outer(each, each).ravel() * cell for each in (without, within))
    order = np.argsort(-inside / out)
    false, true = np.cumsum(out[order]), np.cumsum(inside[order])
    answer = bound_attacks([gaussians(noise, rate, 2)], [0.001, 0.01], delta=DELTA, epsilon=1.0)
    least = 0.5 + np.abs(inside - out).sum() / 4
    assert least - 1e-6 <= answer.balanced_accuracy <= least + 1e-4
    for alpha, bound in zip((0.001, 0.01), answer.true_positives, strict=True):
        attack = float(np.interp(alpha, false, true))
        assert attack - 1e-6 <= bound <= 1.01 * attack


@pytest.mark.parametrize(
    "make",
    [lambda noise: [gaussians(noise, 1.0, 60)], lambda noise: [gaussians(noise, 0.05, 60)], mixed],
)
def test_a_larger_epsilon_allows_more_and_never_more_than_its_bound(
    make: Callable[[float], list[Mechanism]],
) -> None:
    plans = [make(noise) for noise in (60.0, 20.0, 6.0, 2.0, 1.0)]
    epsilons = [accountants.compute_epsilon(parts, DELTA, "pld") for parts in plans]
    assert epsilons == sorted(epsilons)
    answers = [
        bound_attacks(parts, [0.001, 0.01], delta=DELTA, epsilon=epsilon)
        for parts, epsilon in zip(plans, epsilons, strict=True)
    ]
    right = [answer.balanced_accuracy for answer in answers]
    assert right == sorted(set(right))
    for answer, epsilon in zip(answers, epsilons, strict=True):
        assert 0.5 < answer.balanced_accuracy <= simple_bound(epsilon) + UNIT
        for alpha, bound in zip((0.001, 0.01), answer.true_positives, strict=True):
            assert alpha < bound <= math.exp(epsilon) * alpha + DELTA + UNIT


def test_a_group_is_attacked_with_as_many_times_the_mu() -> None:
    parts = [gaussians(5.0, count=4)]
    group = bound_attacks(parts, [0.01], delta=DELTA, epsilon=1.0, size=3)
    assert group == bound_attacks([gaussians(5.0 / 3, count=4)], [0.01], delta=DELTA, epsilon=1.0)


def test_a_group_in_a_sample_is_bounded_by_its_mixture() -> None:
    """The number of a group's rows in a Poisson sample is binomial."""
    noise, rate, size = 2.0, 0.3, 3
    x = np.linspace(-25, 30, 200_001)
    without = norm.pdf(x, 0, noise)
    within = sum(binom.pmf(k, size, rate) * norm.pdf(x, k, noise) for k in range(size + 1))
    least = 0.5 + np.trapezoid(np.abs(within - without), x) / 4
    answer = bound_attacks([gaussians(noise, rate)], [], delta=DELTA, epsilon=1.0, size=size)
    assert least - 1e-8 <= answer.balanced_accuracy <= least + 2e-3


@pytest.mark.parametrize(
    ("parts", "size"),
    [
        ([gaussians(0.0)], 1),
        ([gaussians(2.0, 0.1)], 101),
        ([gaussians(0.03, 0.9, 10**6)], 1),
        ([gaussians(0.05, 0.5, 10)], 1),  # epsilon is a few thousand
    ],
)
def test_a_void_guarantee_allows_every_attack(parts: list[Mechanism], size: int) -> None:
    answer = bound_attacks(parts, [0.0, 0.001, 0.01], delta=DELTA, epsilon=1.0, size=size)
    assert (answer.balanced_accuracy, answer.true_positives) == (1.0, (1.0, 1.0, 1.0))
    assert not answer.exact
