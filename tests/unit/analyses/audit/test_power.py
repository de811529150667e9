"""The power of an audit, compared with closed forms and by bounds on the safe side."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from dpprobe.analyses.audit.bounds import accuracy_lower_bound
from dpprobe.analyses.audit.power import PlanFamily, caught_factor, compute_separation
from dpprobe.privacy import accountants
from dpprobe.privacy.plan import Mechanism, Plan, Selection
from tests.support.mechanisms import best_of, gaussians, made_plan

DELTA = 1e-5
RATE, STEPS, NOISE = 0.05, 60, 1.6


def family(*mechanisms: Mechanism, selection: Selection | None = None) -> PlanFamily:
    price = accountants.compute_epsilon(mechanisms, DELTA, "pld", selection=selection)
    return PlanFamily(
        Plan(
            mechanisms=mechanisms,
            n=1000,
            epsilon=price,
            delta=DELTA,
            accountant="pld",
            selection=selection,
            realised_epsilon=price,
        )
    )


@pytest.fixture(scope="module")
def sampled() -> PlanFamily:
    return family(gaussians(NOISE, RATE, STEPS))


@given(mu=st.floats(0.05, 5), factor=st.floats(0.5, 20))
def test_without_sampling_all_is_the_closed_form(mu: float, factor: float) -> None:
    whole = family(gaussians(2 / mu, count=2, name="a"), gaussians(math.sqrt(2) / mu, name="b"))
    separation = mu / factor
    variation = whole.total_variation(factor)
    assert variation == pytest.approx(2 * norm.cdf(separation / 2) - 1, rel=1e-9)
    assert factor <= whole.factor_of(variation) <= factor * (1 + 1e-6)
    exact = accountants.gaussian_epsilon(separation, DELTA)
    assert exact * (1 - 1e-9) <= whole.compute_epsilon(factor) <= exact
    accuracy = (1 + variation) / 2
    assert whole.epsilon_of_accuracy(accuracy) <= exact * (1 + 1e-9)
    assert whole.epsilon_of_accuracy(accuracy) == pytest.approx(exact, rel=1e-5, abs=1e-9)


def test_a_sampled_release_has_its_total_variation() -> None:
    """A single sampled release has the rate times the total variation of two Gaussians."""
    one = family(gaussians(0.8, 0.3))
    exact = 0.3 * (2 * norm.cdf(1 / 0.8 / 2) - 1)
    assert exact <= one.total_variation() <= exact * 1.001


def test_a_sampled_plan_errs_on_the_safe_side(sampled: PlanFamily) -> None:
    price = sampled.plan.realised_epsilon
    assert 0.99 * price < sampled.compute_epsilon() < price
    variation = sampled.total_variation()
    factor = sampled.factor_of(variation)
    assert 1 <= factor < 1.002
    assert sampled.total_variation(factor) <= variation
    assert 0.98 * price < sampled.epsilon_of_accuracy((1 + variation) / 2) < price


def test_simulated_likelihood_ratios_are_allowed_and_nearly_as_right(sampled: PlanFamily) -> None:
    """The best test of all steps, by simulation, is compared with the total variation."""
    generator, runs = np.random.default_rng(2), 40_000
    member = generator.random(runs) < 0.5
    joined = (generator.random((runs, STEPS)) < RATE) & member[:, None]
    steps = generator.normal(scale=NOISE, size=(runs, STEPS)) + joined
    ratio = np.log1p(RATE * np.expm1((2 * steps - 1) / (2 * NOISE**2))).sum(axis=1)
    right = int(((ratio > 0) == member).sum())
    allowed = (1 + sampled.total_variation()) / 2
    assert right / runs == pytest.approx(allowed, abs=4 * 0.5 / math.sqrt(runs))
    assert accuracy_lower_bound(right, runs, 0.999) <= allowed


def test_more_than_sampling_allows_gives_the_least_factor() -> None:
    """The canary is in no sample with probability 0.24, and then no noise reveals it."""
    few = family(gaussians(1.0, 0.3, 4))
    factor = few.factor_of(0.9)
    assert 0 < factor < 0.5
    assert 30 < few.epsilon_of_accuracy(0.95) < math.inf


@pytest.mark.parametrize("strength", [1.0, 0.7])
@pytest.mark.parametrize("mu", [0.27, 1.67])
def test_noise_too_small_by_the_caught_factor_is_caught(mu: float, strength: float) -> None:
    """Simulated tests on normal scores catch the fault as often as stated; smaller faults less."""
    whole, runs, repeats = family(gaussians(1 / mu)), 1000, 2000
    caught = caught_factor(whole, runs, strength=strength)
    assert caught > 1
    allowed = (1 + whole.total_variation()) / 2
    generator = np.random.default_rng(3)
    rejected = {}
    for factor in (1.0, (1 + caught) / 2, caught):
        right = generator.binomial(runs, norm.cdf(strength * factor * mu / 2), size=repeats)
        bounds = [accuracy_lower_bound(int(count), runs, 0.95) for count in right]
        rejected[factor] = sum(bound > allowed for bound in bounds)
    low, high = binom.ppf([0.001, 0.999], repeats, 0.95)
    assert low <= rejected[caught] <= high
    assert rejected[(1 + caught) / 2] < 0.8 * repeats
    assert rejected[1.0] <= binom.ppf(0.999, repeats, 0.05)


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.01, 1), (0.4, 0.04, 600)])
def test_the_caught_factor_is_nan_or_above_one_for_rarely_sampled_canaries(
    noise: float, rate: float, steps: int
) -> None:
    """A canary in no batch is never recognised, and some are recognised too rarely at any noise."""
    caught = caught_factor(family(gaussians(noise, rate, steps)), 200)
    assert math.isnan(caught) or caught > 1
    if steps == 1:
        assert math.isnan(caught)


def test_a_sampled_plan_has_a_caught_factor(sampled: PlanFamily) -> None:
    caught = caught_factor(sampled, 2000)
    assert 1.2 < caught < 2
    accuracy = (1 + sampled.total_variation(1 / caught)) / 2
    allowed = (1 + sampled.total_variation()) / 2
    needed = next(k for k in range(2001) if accuracy_lower_bound(k, 2000, 0.95) > allowed)
    assert binom.sf(needed - 1, 2000, accuracy) == pytest.approx(0.95, abs=0.003)


@pytest.mark.parametrize("accuracy", [0.5, 0.6, 0.9, 0.99999])
def test_a_selection_is_bounded_by_its_one_price(accuracy: float) -> None:
    tuned = family(gaussians(4.0), selection=best_of(5))
    epsilon = tuned.epsilon_of_accuracy(accuracy)
    assert epsilon >= 0
    if epsilon > 0:  # the corner of the trade-off curve at this epsilon
        assert (math.exp(epsilon) + DELTA) / (1 + math.exp(epsilon)) == pytest.approx(accuracy)
    price = tuned.plan.realised_epsilon
    variation = (math.exp(price) - 1 + 2 * DELTA) / (math.exp(price) + 1)
    assert tuned.total_variation() == pytest.approx(variation)
    assert tuned.epsilon_of_accuracy((1 + variation) / 2) == pytest.approx(price)
    assert math.isnan(tuned.factor_of(0.5))
    assert math.isnan(caught_factor(tuned, 1000))


PLANS = {
    "gaussian": family(gaussians(2.0, count=4)),
    "selected": family(gaussians(4.0), selection=best_of(5)),
    "silent": PlanFamily(made_plan([gaussians(0.0)], 1000)),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_family_ranges_from_no_noise_to_no_signal(name: str) -> None:
    plan = PLANS[name]
    priced = name == "gaussian"
    assert (plan.has_price, plan.exact) == (priced, priced)
    assert plan.total_variation(0.0) == 1.0
    for none in (0.0, -1.0):
        assert plan.factor_of(none) == (
            math.inf if priced else pytest.approx(math.nan, nan_ok=True)
        )
    assert plan.epsilon_of_accuracy(0.5) == plan.epsilon_of_accuracy(0.3) == 0.0
    assert plan.epsilon_of_accuracy(1.0) == math.inf
    assert plan.separation == pytest.approx(compute_separation(plan.total_variation()))
    if priced:
        assert plan.compute_epsilon(0.0) == math.inf
        assert plan.separation == pytest.approx(1.0, rel=1e-9)  # mu = sqrt(4) / 2


def test_total_variation_of_a_selection_does_not_depend_on_its_target_epsilon() -> None:
    plan = PLANS["selected"].plan
    looser = PlanFamily(replace(plan, epsilon=2 * plan.epsilon))
    assert looser.total_variation() == PLANS["selected"].total_variation()


@pytest.mark.parametrize("group", [1, 3])
def test_group_size_scales_total_variation_but_epsilon_is_for_one_unit(
    group: int,
) -> None:
    alone = PLANS["gaussian"]
    together = PlanFamily(alone.plan, group=group)
    for factor in (0.8, 3.0):
        wanted = 2 * norm.cdf(group / factor / 2) - 1
        assert together.total_variation(factor) == pytest.approx(wanted, rel=1e-9)
        assert together.factor_of(wanted) == pytest.approx(factor, rel=1e-6)
        assert together.compute_epsilon(factor) == alone.compute_epsilon(factor)


def test_the_total_variation_of_a_sampled_group_exceeds_that_of_one_unit(
    sampled: PlanFamily,
) -> None:
    assert not sampled.exact
    assert sampled.has_price
    group = PlanFamily(sampled.plan, group=3)
    assert sampled.total_variation() < group.total_variation() < 3 * sampled.total_variation()


@given(st.floats(0.0, 0.9999))
def test_a_separation_is_the_distance_of_two_normals_of_a_total_variation(share: float) -> None:
    assert 2 * norm.cdf(compute_separation(share) / 2) - 1 == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize("bound", [1.0, 1 + 1e-12])
def test_what_a_test_always_tells_apart_is_endlessly_far(bound: float) -> None:
    """Rounding may raise an upper bound on the total variation above 1."""
    assert compute_separation(bound) == math.inf


@pytest.mark.parametrize(("runs", "strength"), [(5, 1.0), (400, 0.0), (400, -1.0)])
def test_the_caught_factor_is_nan_with_too_few_runs_or_no_strength(
    runs: int, strength: float
) -> None:
    whole = PLANS["gaussian"]
    assert math.isnan(caught_factor(whole, runs, strength=strength))
    assert caught_factor(whole, 400) > 1


def test_more_runs_less_confidence_and_more_strength_catch_smaller_faults() -> None:
    whole = PLANS["gaussian"]
    usual = caught_factor(whole, 400, 0.95, 0.95, strength=0.8)
    for easier in (
        caught_factor(whole, 800, 0.95, 0.95, strength=0.8),
        caught_factor(whole, 400, 0.5, 0.95, strength=0.8),
        caught_factor(whole, 400, 0.95, 0.5, strength=0.8),
        caught_factor(whole, 400, 0.95, 0.95, strength=0.9),
    ):
        assert 1 < easier < usual
