"""The price of the best of a random number of runs, by brute force, theorems and libraries."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from dpprobe.privacy import accountants, best_of_runs_price
from dpprobe.privacy.best_of_runs_price import Bound, Profile, Table, best_bound
from tests.support.mechanisms import MEANS, best_of, gaussians, generating

DELTA = 1e-5


def exact_delta(mean: float, run: np.ndarray, other: np.ndarray, epsilon: float) -> float:
    """Returns delta of the best of K runs with finitely many outputs, sorted from the worst."""

    def best(probability: np.ndarray) -> np.ndarray:
        below = np.concatenate([[0.0], np.cumsum(probability)])
        return np.diff(generating(mean, np.minimum(below, 1.0)))

    return float(np.maximum(best(run) - math.exp(epsilon) * best(other), 0).sum())


def finite_profile(run: np.ndarray, other: np.ndarray) -> Profile:
    def deltas(epsilons: np.ndarray) -> np.ndarray:
        factors = np.exp(epsilons)[:, None]
        one = np.maximum(run - factors * other, 0).sum(1)
        return np.maximum(one, np.maximum(other - factors * run, 0).sum(1))

    def epsilon(delta: float) -> float:
        low, high = 0.0, 60.0
        while high - low > 1e-10:
            middle = (low + high) / 2
            low, high = (low, middle) if deltas(np.array([middle]))[0] <= delta else (middle, high)
        return high

    return Profile(deltas=deltas, epsilon=epsilon)


@given(
    weights=st.lists(st.tuples(st.floats(0.02, 1), st.floats(0.02, 1)), min_size=3, max_size=5),
    mean=st.sampled_from(MEANS),
    delta=st.sampled_from([1e-5, 1e-3, 0.05]),
)
@settings(max_examples=25)
def test_the_price_bounds_every_order_of_a_finite_set(
    weights: list[tuple[float, float]], mean: float, delta: float
) -> None:
    """The scores may order the outputs in any way, and either dataset may be the larger one."""
    run, other = (np.array(side) / sum(side) for side in zip(*weights, strict=True))
    profile = finite_profile(run, other)
    price = best_bound(mean, profile, delta).bound_epsilon(delta)
    for order in permutations(range(len(run))):
        places = list(order)
        assert exact_delta(mean, run[places], other[places], price) <= delta * (1 + 1e-6)
        assert exact_delta(mean, other[places], run[places], price) <= delta * (1 + 1e-6)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("mu", [0.05, 0.5])
def test_the_price_bounds_the_best_of_gaussian_runs(mean: float, mu: float) -> None:
    """Integrates densities of runs N(0, 1) and N(mu, 1); the largest or the smallest is best."""
    kind = best_of(mean)
    price = accountants.compute_epsilon([gaussians(1 / mu)], DELTA, "pld", selection=kind)
    cells = np.linspace(-12, 12 + mu, 400_001)
    one, two = np.diff(ndtr(cells)), np.diff(ndtr(cells - mu))
    for order in (slice(None), slice(None, None, -1)):
        assert exact_delta(mean, one[order], two[order], price) <= DELTA
        assert exact_delta(mean, two[order], one[order], price) <= DELTA


def theorem_two(orders: np.ndarray, rho: float, mean: float) -> np.ndarray:
    """Returns the RDP of the best of K rho-zCDP runs: Papernot and Steinke 2022, theorem 2."""
    others = np.linspace(1, 2000, 400_000)
    least = (rho * (others - 1) + math.log(mean) / others).min()
    return orders * rho + 2 * least + math.log(mean) / (orders - 1)


def converted(orders: np.ndarray, rdp: np.ndarray, delta: float) -> float:
    """Converts RDP by proposition 12 of Canonne, Kamath and Steinke 2020."""
    values = rdp + np.log1p(-1 / orders) - math.log(delta) / (orders - 1)
    return float((values - np.log(orders) / (orders - 1)).min())


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("mu", [0.02, 0.3, 1.5])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_renyi_prices_agree_with_the_theorems(mean: float, mu: float, delta: float) -> None:
    """Compares dp-accounting at its own orders with the theorem computed here at many orders."""
    kind = best_of(mean)
    rdp = accountants.compute_epsilon([gaussians(1 / mu)], delta, "rdp", selection=kind)
    orders = 1 + np.geomspace(1e-2, 2e3, 4000)
    reference = converted(orders, theorem_two(orders, mu**2 / 2, mean), delta)
    assert rdp == pytest.approx(reference, rel=0.04)
    # The price that dpprobe uses is tighter.
    pld = accountants.compute_epsilon([gaussians(1 / mu)], delta, "pld", selection=kind)
    assert pld < 0.92 * reference
    single = accountants.compute_epsilon([gaussians(1 / mu)], delta / mean, "pld")
    assert pld > single


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("mu", [0.02, 0.4])
def test_the_bound_gives_delta_at_its_epsilon(mean: float, mu: float) -> None:
    bound = best_bound(mean, gaussian_profile(mu), DELTA)
    price = bound.bound_epsilon(DELTA)
    deltas = [accountants.gaussian_log_delta(mu, abs(price - c)) for c in bound.offsets]
    exact = np.exp(deltas)
    before = bound.offsets > price
    exact[before] = 1 - np.exp(-(bound.offsets - price)[before]) * (1 - exact[before])
    assert bound.weights @ exact == pytest.approx(DELTA, rel=2e-3)
    assert bound.bound_delta(price) <= DELTA


def weight(mean: float, z: np.ndarray) -> np.ndarray:
    """Returns f'(1 - z), by differences of the generating function."""
    step = 1e-6
    return (generating(mean, 1 - z + step) - generating(mean, 1 - z - step)) / (2 * step)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("mu", [0.02, 0.4, 2.0])
def test_the_hinges_are_above_the_largest_line(mean: float, mu: float) -> None:
    """The bound only assumes that no w(z) - m w(T(z)) exceeds the sum of hinges."""
    bound = best_of_runs_price._bound_profile(mean, table_of(mu))
    z = np.concatenate([np.geomspace(1e-12, 1e-3, 2000), np.linspace(1e-3, 1, 20_001)])
    heights, others = weight(mean, z), weight(mean, ndtr(ndtri(z) + mu))
    for offset in (*np.linspace(-1, 1.2 * bound.offsets[-1], 60), *bound.offsets):
        line = (heights - math.exp(offset) * others).max()
        hinges = np.maximum(1 - np.exp(np.minimum(offset - bound.offsets, 0.0)), 0.0)
        assert bound.weights @ hinges >= line * (1 - 1e-6) - 1e-7 * mean
        # the sum of hinges is close to the line, except for the first chord, which begins at m = 0
        if mean < 100 and line > 1e-2 and offset >= 0:
            assert bound.weights @ hinges <= line * 1.02 + 0.01
        if line > 1e-3 * mean and offset in bound.offsets:  # at the ends of chords
            assert bound.weights @ hinges <= line * 1.003
    assert bound.weights.sum() == pytest.approx(mean, rel=1e-8)
    assert bound.weights.min() >= 0


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("answer", [4.0, 7.5, 10.0])
def test_the_hinges_are_above_the_largest_line_where_all_lines_reach_one(
    mean: float, answer: float
) -> None:
    """For randomised response, T rises steeply to nearly 1 and has a corner there."""
    true = 1 / (1 + math.exp(-answer))
    profile = Profile(
        deltas=lambda epsilons: np.maximum(true - np.exp(epsilons) * (1 - true), 0.0),
        epsilon=lambda delta: math.log((true - delta) / (1 - true)),
    )
    bound = best_of_runs_price._bound_profile(mean, Table.tabulate_profile(profile, DELTA))
    z = math.exp(-answer) * np.linspace(0.9, 1.1, 4001)
    worst = np.minimum(math.exp(answer) * z, 1 - math.exp(-answer) * (1 - z))
    heights, others = weight(mean, z), weight(mean, worst)
    for offset in np.linspace(0, bound.offsets[-1], 200):
        line = (heights - math.exp(offset) * others).max()
        hinges = np.maximum(1 - np.exp(np.minimum(offset - bound.offsets, 0.0)), 0.0)
        assert bound.weights @ hinges >= line * (1 - 1e-7) - 1e-7 * mean


def gaussian_profile(mu: float) -> Profile:
    return accountants._make_profile([gaussians(1 / mu)], "gaussian", None)


def table_of(mu: float) -> Table:
    return Table.tabulate_profile(gaussian_profile(mu), DELTA)


@pytest.mark.parametrize("mu", [0.01, 0.3, 3.0])
def test_a_table_is_above_the_profile_and_near_it(mu: float) -> None:
    """Negative epsilons are tested too: delta is exactly Phi(mu/2 - e/mu) - exp(e) Phi(...)."""
    table = table_of(mu)
    epsilons = np.linspace(-1.2, 1.2, 2501) * table.epsilons[-1]
    exact = ndtr(mu / 2 - epsilons / mu) - np.exp(epsilons) * ndtr(-mu / 2 - epsilons / mu)
    assert (table.delta_at(epsilons) >= exact - 1e-13).all()
    inside = np.abs(epsilons) < 0.9 * table.epsilons[-1]
    assert table.delta_at(epsilons)[inside] == pytest.approx(exact[inside], rel=3e-3, abs=1e-12)


def test_the_bound_on_epsilon_is_zero_if_delta_is_large_enough() -> None:
    table = table_of(0.01)
    bound = Bound(table, np.array([2.0]), np.array([0.0]))
    assert bound.bound_epsilon(0.5) == 0.0
    assert bound.bound_epsilon(DELTA) == pytest.approx(
        accountants.gaussian_epsilon(0.01, DELTA / 2), rel=1e-3
    )


@pytest.mark.parametrize(("mu", "first"), [(0.25, 0.125), (0.02, 0.02), (0.02, 0.2)])
def test_the_composition_is_the_integral_over_the_first_release(mu: float, first: float) -> None:
    """Integrates delta_A(epsilon - loss(s)) over the first release's s, at the price found.

    As delta_A, takes the bound (for negative epsilons the other direction's, as a convex function
    of exp(epsilon)), and the exact delta for runs N(0, 1) and N(mu, 1).
    """
    mean, kind = 5, best_of(5)
    once = [gaussians(1 / first, name="centre"), gaussians(1 / mu)]
    price = accountants.compute_epsilon(once, DELTA, "pld", selection=kind)
    places = np.linspace(-8, 8, 4001)
    density = np.exp(-(places**2) / 2) / math.sqrt(2 * math.pi) * (places[1] - places[0])
    left = price - first**2 / 2 - first * places
    profile = accountants._make_profile([gaussians(1 / mu)], "gaussian", None)
    bound = best_bound(mean, profile, DELTA)
    at = np.linspace(0.0, np.abs(left).max(), 5_001)
    positive = np.array([bound.bound_delta(each) for each in at])
    positive = np.minimum.accumulate(np.minimum(positive, 1.0))
    x = np.concatenate([np.exp(-at[::-1]), np.exp(at)])
    y = np.concatenate([1 - np.exp(-at[::-1]) * (1 - positive[::-1]), positive])
    total = density @ np.interp(np.exp(left), x, best_of_runs_price._convex_minorant(x, y))
    assert total == pytest.approx(DELTA, rel=5e-3)

    cells = np.linspace(-9, 9 + mu, 4001)
    one, two = np.diff(ndtr(cells)), np.diff(ndtr(cells - mu))
    for a, b in ((one, two), (two, one), (one[::-1], two[::-1]), (two[::-1], one[::-1])):
        deltas = [exact_delta(mean, a, b, epsilon) for epsilon in left[::10]]
        assert 10 * density[::10] @ np.array(deltas) <= DELTA


def test_a_convex_minorant() -> None:
    x = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    y = np.array([1.0, 1.0, 1.0, 0.1, 0.0])
    lower = best_of_runs_price._convex_minorant(x, y)
    assert lower == pytest.approx([1.0, 0.7, 0.4, 0.1, 0.0])
    assert np.diff(lower, 2).min() >= -1e-12


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize(("mu", "near"), [(0.02, 0.96), (0.17, 0.98), (1.0, 0.985)])
def test_the_price_of_gaussian_runs_is_nearly_reached_and_never_exceeded(
    mean: float, mu: float, near: float
) -> None:
    """The best outputs are likelier on the other dataset; the next best are the most revealing.

    As `near` is close to 1, the price cannot be lowered; an order above the price would refute it.
    """
    price = accountants.compute_epsilon([gaussians(1 / mu)], DELTA, "pld", selection=best_of(mean))
    edges = np.linspace(-8, 8 + mu, 2001)
    one, two = np.diff(ndtr(edges)), np.diff(ndtr(edges - mu))
    attained = 0.0
    for first in np.linspace(-1, 3 + mu, 17):
        for second in np.linspace(-4.5, -1.5, 13):
            upper, lower = edges[:-1] >= first, edges[:-1] < second
            best_first = np.concatenate(
                [
                    np.flatnonzero(upper)[::-1],
                    np.flatnonzero(lower & ~upper),
                    np.flatnonzero(~upper & ~lower)[::-1],
                ]
            )
            order = best_first[::-1]
            assert exact_delta(mean, one[order], two[order], price) <= DELTA
            attained = max(attained, exact_delta(mean, one[order], two[order], near * price))
    if mean < 100:
        assert attained > DELTA
