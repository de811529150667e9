"""Prices for groups of units: closed forms, numerical integration, and group-privacy algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from dpprobe.privacy import accountants
from dpprobe.privacy.plan import Selection
from tests.support.mechanisms import best_of, gaussians

DELTA = 1e-5


def mixture_delta(noise: float, rate: float, size: int, epsilon: float) -> float:
    """Integrates delta for one release with and without the group; returns the larger direction."""
    x, step = np.linspace(-14 * noise, size + 14 * noise, 400_001, retstep=True)
    joined = np.arange(size + 1)
    absent = norm.pdf(x, 0, noise)
    present = sum(
        weight * norm.pdf(x, mean, noise)
        for mean, weight in zip(joined, binom.pmf(joined, size, rate), strict=True)
    )
    return max(
        float(np.maximum(one - math.exp(epsilon) * other, 0).sum() * step)
        for one, other in ((present, absent), (absent, present))
    )


@pytest.mark.parametrize(
    ("noise", "rate", "size"), [(1.0, 0.05, 3), (0.8, 0.01, 10), (9.0, 0.95, 14)]
)
def test_a_sampled_release_is_priced_as_the_mixture_it_is(
    noise: float, rate: float, size: int
) -> None:
    epsilon = accountants.group_epsilon([gaussians(noise, rate, 1)], DELTA, size)
    # The bound is at most 2% above the epsilon at which the integral meets delta.
    assert mixture_delta(noise, rate, size, epsilon) <= DELTA * (1 + 1e-6)
    assert mixture_delta(noise, rate, size, 0.98 * epsilon) > DELTA


@pytest.mark.parametrize(("rate", "size"), [(1.0, 2), (1.0, 4), (0.1, 4)])
def test_no_group_pays_more_than_group_privacy_says(rate: float, size: int) -> None:
    mechanisms = [gaussians(6.0, rate, 20)]
    alone = accountants.compute_epsilon(mechanisms, DELTA, "pld")
    together = DELTA * math.expm1(size * alone) / math.expm1(alone)
    exact = accountants.group_epsilon(mechanisms, together, size)
    assert exact <= size * alone * 1.02
    # With the same delta, a group's epsilon exceeds a single unit's.
    assert accountants.group_epsilon(mechanisms, DELTA, size) > alone


@pytest.mark.parametrize("size", [1, 3])
def test_the_profile_of_a_group_equals_that_of_one_gaussian(size: int) -> None:
    """delta is Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu): Balle and Wang 2018, theorem 8."""
    mu, epsilon = size * 2 / 5, 0.7  # four releases with noise 5
    ends = norm.cdf([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu])
    profile = accountants.privacy_profile([gaussians(5.0, count=4)], DELTA, size=size)
    (delta,) = profile.deltas(np.array([epsilon]))
    assert delta == pytest.approx(ends[0] - math.exp(epsilon) * ends[1], rel=1e-9)


@pytest.mark.parametrize("size", [1, 3])
def test_the_profile_of_samples_is_on_the_grid_of_their_epsilon(size: int) -> None:
    parts = [gaussians(1.0, 0.05, 20)]
    epsilon = accountants.group_epsilon(parts, DELTA, size)
    (delta,) = accountants.privacy_profile(parts, DELTA, size=size).deltas(np.array([epsilon]))
    assert delta == pytest.approx(DELTA, rel=1e-4)


def test_the_profile_depends_on_no_order() -> None:
    parts = [gaussians(5.0, name="whole"), gaussians(1.0, 0.05, 20)]
    one, other = (
        accountants.privacy_profile(each, DELTA).deltas(np.array([0.5]))
        for each in (parts, parts[::-1])
    )
    np.testing.assert_allclose(one, other, rtol=1e-9)
    assert one > accountants.privacy_profile(parts[1:], DELTA).deltas(np.array([0.5]))


@pytest.mark.parametrize("selection", [None, best_of(10)])
def test_the_group_epsilon_near_sampling_rate_one_matches_rate_one(
    selection: Selection | None,
) -> None:
    whole, nearly = (
        accountants.group_epsilon([gaussians(5.0, rate, 3)], DELTA, 4, selection=selection)
        for rate in (1.0, 1 - 1e-9)
    )
    assert nearly == pytest.approx(whole, rel=0.01)


@pytest.mark.parametrize(("rate", "size"), [(1.0, 20), (1.0, 60), (1.0, 300), (0.99, 40)])
def test_a_selection_with_other_releases_is_priced_for_large_groups(rate: float, size: int) -> None:
    chosen, other = gaussians(5.0, rate, 20), gaussians(10.0, name="other")
    alone, both, apart, rest = (
        accountants.group_epsilon(parts, delta, size, selection=selection)
        for parts, delta, selection in [
            ([chosen], DELTA, best_of(4)),
            ([chosen, other], DELTA, best_of(4)),
            ([chosen], DELTA / 2, best_of(4)),
            ([other], DELTA / 2, None),
        ]
    )
    assert alone < both < 1.005 * (apart + rest)
