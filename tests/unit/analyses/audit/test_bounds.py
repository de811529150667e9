"""Lower bounds on epsilon: naive references, simulated coverage, power, and impossible scores."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import beta, binom

from dpprobe.analyses.audit import bounds, epsilon_lower_bound
from dpprobe.analyses.audit.bounds import accuracy_lower_bound
from dpprobe.errors import ConfigError, DataError
from dpprobe.privacy.accountants import gaussian_epsilon

Scores = npt.NDArray[np.float64]

DELTA = 1e-5


def coin_flips(mu: float, runs: int, seed: int) -> tuple[Scores, Scores]:
    """Draws scores of the best attack on a Gaussian mechanism; a coin puts each run in or out."""
    generator = np.random.default_rng(seed)
    member = generator.random(runs) < 0.5
    scores = generator.normal(size=runs) + mu * member
    return scores[member], scores[~member]


def share_below(count: int, trials: int, error: float) -> float:
    return float(beta.ppf(error, count, trials - count + 1)) if count else 0.0


def share_above(count: int, trials: int, error: float) -> float:
    return float(beta.ppf(1 - error, count + 1, trials - count)) if count < trials else 1.0


def naive_rates(inside: Scores, outside: Scores, error: float) -> list[tuple[float, float]]:
    """Bounds true and false positive rates at the 1st, 2nd, 4th, ... largest out score."""
    places = [2**power for power in range(20) if 2**power <= len(outside)]
    rates, each = [], error / len(places) / 2
    for place in places:
        true = int((inside > sorted(outside, reverse=True)[place - 1]).sum())
        low = share_below(true, len(inside), each)
        rates.append((low, share_above(place - 1, len(outside), each)))
    return rates


def slow_bound(scores: tuple[Scores, Scores], delta: float, group: int) -> float:
    """Returns the smallest epsilon at which no rate contradicts the bound for a group."""
    rates = naive_rates(*scores, 0.1)

    def excess(epsilon: float) -> float:
        links = sum(math.exp(epsilon * place) for place in range(group))
        return max(
            likely - math.exp(group * epsilon) * unlikely - delta * links
            for true, false in rates
            for likely, unlikely in ((true, false), (1 - false, 1 - true))
        )

    return float(brentq(excess, 0, 100)) if excess(0.0) > 0 else 0.0


SCORES = {
    "weak": coin_flips(0.3, 300, 0),
    "strong": coin_flips(1.5, 300, 1),
    "another": coin_flips(1.5, 301, 2),
    "constant": (np.ones(900), np.ones(100)),
    "a pair": (np.ones(1), np.ones(1)),
    "one in": (np.ones(1), np.ones(500)),
    "perfect": (np.full(1000, math.inf), np.full(1000, -math.inf)),
    "reversed": (np.zeros(1000), np.ones(1000)),
    "unequal": coin_flips(0.0, 2000, 3),
}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize(("group", "delta"), [(1, DELTA), (4, 1e-3)])
def test_bounds_of_rates_equal_slow_loops(name: str, group: int, delta: float) -> None:
    bound = epsilon_lower_bound(*SCORES[name], delta, 0.9, group=group)
    assert bound == pytest.approx(slow_bound(SCORES[name], delta, group), abs=1e-5)
    assert (bound > 0) == (name in ("weak", "strong", "another", "perfect"))


@pytest.mark.parametrize("mu", [0.0, 0.25, 1.0])
def test_bounds_exceed_the_truth_no_more_often_than_stated(mu: float) -> None:
    """Runs 200 draws at confidence 0.8, at which a wrong split of the error would show."""
    truth = gaussian_epsilon(mu, DELTA) if mu else 0.0
    draws = [coin_flips(mu, 400, seed) for seed in range(200)]
    above = sum(epsilon_lower_bound(*draw, DELTA, 0.8) > truth for draw in draws)
    assert above <= binom.ppf(0.999, len(draws), 0.2)


def test_pure_randomised_response_is_not_exceeded() -> None:
    """Randomised response attains (epsilon, 0)-DP at its corner."""
    epsilon, generator = 1.0, np.random.default_rng(0)
    truthful = math.exp(epsilon) / (1 + math.exp(epsilon))
    above = 0
    for _ in range(200):
        member = generator.random(400) < 0.5
        answer = np.where(generator.random(400) < truthful, member, ~member).astype(float)
        above += epsilon_lower_bound(answer[member], answer[~member], 0, 0.8) > epsilon
    assert above <= binom.ppf(0.999, 200, 0.2)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([], "scores_in: shape \\(0,\\); pass one score per run"),
        ([[1.0, 2.0]], "scores_in: shape \\(1, 2\\)"),
        ([1.0, math.nan, math.nan], "scores_in: 2 of 3 are NaN"),
        (["high", "low"], "scores_in: not numbers"),
        ([{}, {}], "scores_in: not numbers"),
        (None, "scores_in: shape"),
    ],
)
def test_scores_that_cannot_be_are_refused(scores: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        epsilon_lower_bound(scores, [1.0, 2.0], DELTA)  # type: ignore[arg-type]


def test_options_that_cannot_be_are_refused() -> None:
    scores = [1.0, 2.0], [0.0, 1.0]
    for delta in (-0.1, 1.0, 1.5, math.nan):
        with pytest.raises(ConfigError, match="delta"):
            epsilon_lower_bound(*scores, delta)
    for confidence in (-0.5, 0.0, 1.0, 1.5, math.nan):
        with pytest.raises(ConfigError, match="confidence"):
            epsilon_lower_bound(*scores, DELTA, confidence)
        with pytest.raises(ConfigError, match="confidence"):
            accuracy_lower_bound(1, 2, confidence)
    with pytest.raises(ConfigError, match="group 0 of an audit: use 1 or more"):
        epsilon_lower_bound(*scores, DELTA, group=0)
    for counts in ((3, 2), (-1, 2), (0, 0)):
        with pytest.raises(DataError, match="runs were right: .* at least one run"):
            accuracy_lower_bound(*counts, 0.95)


@given(runs=st.integers(1, 3000), share=st.floats(0, 1), confidence=st.floats(0.5, 0.999))
def test_an_accuracy_is_bounded_exactly(runs: int, share: float, confidence: float) -> None:
    """At the bound, at least this many correct runs have exactly the probability 1 - confidence."""
    correct = round(share * runs)
    bound = accuracy_lower_bound(correct, runs, confidence)
    if correct == 0:
        assert bound == 0
    else:
        assert binom.sf(correct - 1, runs, bound) == pytest.approx(1 - confidence, rel=1e-6)


def test_a_group_s_bound_is_one_on_each_canary() -> None:
    """Of 400 audits of a group of five, at most the stated share exceeds one canary's epsilon."""
    group, mu, delta = 5, 0.3, 1e-5
    truth, generator = gaussian_epsilon(mu, delta), np.random.default_rng(8)
    bounds = []
    for _ in range(400):
        inside = generator.normal(group * mu, 1, 300)
        outside = generator.normal(0, 1, 300)
        bounds.append(epsilon_lower_bound(inside, outside, delta, 0.9, group=group))
    above = np.mean(np.array(bounds) > truth)
    assert above <= 0.1 + 3 * math.sqrt(0.09 / 400)
    assert np.median(bounds) > 0.25 * truth
    alone = epsilon_lower_bound(inside, outside, delta, 0.9)
    assert 0 < bounds[-1] < alone


def test_a_bound_is_a_value_that_was_rejected() -> None:
    for truth in (0.3, 7.5, 1e-4):
        bound = bounds.find_largest_rejected(truth.__gt__)
        assert truth - 1e-6 * max(truth, 1e-3) < bound < truth
    assert bounds.find_largest_rejected(lambda _: False) == 0.0
