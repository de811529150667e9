"""The best possible attack: closed forms, quadrature of the definition, monotonicity."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpprobe.errors import PrivacyError
from dpprobe.privacy import accountants
from dpprobe.privacy.trade_off import best_attack
from tests.support.mechanisms import best_of, gaussians, mixed

RATES = [0.0, 0.001, 0.01, 0.1, 0.5, 1.0]
DELTA = 1e-5
# Answers are rounded up to six decimals, after a guard of 1e-12.
UNIT = 1.01e-6


def sampled_best(noise: float, sample_rate: float, alpha: float) -> float:
    """The best test of one sampled release, from the two densities themselves.

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


def test_releases_on_all_rows_compose_to_one_gaussian() -> None:
    parts = [gaussians(3.0, count=4, name="a"), gaussians(5.0, name="b")]
    mu = math.sqrt(4 / 9 + 1 / 25)
    assert best_attack(parts, RATES, delta=DELTA, epsilon=1.0) == best_attack(
        [gaussians(1 / mu)], RATES, delta=DELTA, epsilon=1.0
    )


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (0.7, 0.5), (2.0, 0.9)])
def test_a_sampled_release_is_bounded_tightly(noise: float, rate: float) -> None:
    """Above the best test of the definition, and above it by no more than both directions cost."""
    answers = best_attack([gaussians(noise, rate)], RATES, delta=DELTA, epsilon=1.0)
    exact = [sampled_best(noise, rate, alpha) for alpha in RATES]
    for answer, least in zip(answers, exact, strict=True):
        assert answer >= least
    assert answers[1:4] == pytest.approx(exact[1:4], rel=0.01, abs=1e-5)


def test_sampling_every_row_joins_the_closed_form() -> None:
    """The bound by the profile, at a rate of almost 1, against the exact answer at 1."""
    almost = best_attack([gaussians(1.5, 1 - 1e-9)], RATES, delta=DELTA, epsilon=1.0)
    exact = best_attack([gaussians(1.5)], RATES, delta=DELTA, epsilon=1.0)
    assert almost == pytest.approx(exact, abs=5e-4)
    assert all(a >= b - 1e-6 for a, b in zip(almost, exact, strict=True))


def test_a_mixed_composition_lies_above_its_sampled_part() -> None:
    parts = mixed(2.0)
    whole = best_attack(parts, RATES, delta=DELTA, epsilon=1.0)
    part = best_attack(parts[1:], RATES, delta=DELTA, epsilon=1.0)
    assert all(a >= b for a, b in zip(whole, part, strict=True))
    assert whole[2] > part[2]


def test_the_profile_bounds_no_better_than_the_price_allows() -> None:
    """At the plan's epsilon the (epsilon, delta) bound is one of those that the minimum is of."""
    parts = mixed(2.0)
    epsilon = accountants.epsilon(parts, DELTA, "pld")
    answers = best_attack(parts, RATES, delta=DELTA, epsilon=epsilon)
    for alpha, answer in zip(RATES, answers, strict=True):
        assert answer <= math.exp(epsilon) * alpha + DELTA + UNIT


def test_a_selection_is_bounded_by_its_price_alone() -> None:
    answers = best_attack(
        [gaussians(5.0)], RATES, best_of(10, 1.0), delta=DELTA, epsilon=math.log(3)
    )
    expected = [
        DELTA, 0.003 + DELTA, 0.03 + DELTA, 0.3 + DELTA, 1 - (0.5 - DELTA) / 3, 1.0
    ]  # fmt: skip
    assert all(
        low <= answer <= min(1.0, low + UNIT) + 1e-12
        for low, answer in zip(expected, answers, strict=True)
    )


@settings(max_examples=25)
@given(
    noise=st.floats(0.5, 20),
    more=st.floats(1.01, 3),
    low=st.floats(0, 1),
    high=st.floats(0, 1),
)
def test_more_noise_helps_no_attack_and_more_errors_help_each(
    noise: float, more: float, low: float, high: float
) -> None:
    low, high = sorted((low, high))
    first, second = best_attack([gaussians(noise)], [low, high], delta=DELTA, epsilon=1.0)
    assert low <= first <= second <= 1
    calmer, _ = best_attack([gaussians(noise * more)], [low, high], delta=DELTA, epsilon=1.0)
    assert calmer <= first


def test_sampled_answers_rise_with_the_rate_and_fall_with_noise() -> None:
    rates = list(np.linspace(0, 1, 41))
    loud, quiet = (
        best_attack([gaussians(noise, 0.05, 60)], rates, delta=DELTA, epsilon=1.0)
        for noise in (3.0, 1.0)
    )
    assert loud == sorted(loud)
    assert all(rate <= a <= b for rate, a, b in zip(rates, loud, quiet, strict=True))


def test_without_noise_every_attack_succeeds() -> None:
    assert best_attack([gaussians(0.0)], [0.001], delta=DELTA, epsilon=1.0) == [1.0]


def test_a_rate_beyond_one_is_refused() -> None:
    with pytest.raises(PrivacyError, match=r"false positive rate 1\.5: must lie between 0 and 1"):
        best_attack([gaussians(1.0)], [1.5], delta=DELTA, epsilon=1.0)
