"""Noise in shares: the theorem by exact convolutions, and the naive price, which is too low."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from scipy.special import ndtr

from dpprobe.errors import PrivacyError
from dpprobe.privacy import accountants
from dpprobe.privacy.entropy import SEEDED
from dpprobe.privacy.noise_shares import SMALLEST_SHARE, Penalty, split_noise
from dpprobe.privacy.rounded_gaussian import LARGEST_DEVIATION, RoundedGaussian
from tests.support.mechanisms import gaussians

Floats = npt.NDArray[np.float64]
Shares = tuple[float, ...]
# Distributions have this many steps on each side; probabilities beyond are below 1e-60.
REACH = 60


@functools.cache
def law_of(share: float) -> Floats:
    """Returns the probabilities of round(share Z) from -REACH to REACH."""
    k = np.arange(REACH + 1)
    side = ndtr((0.5 - k) / share) - ndtr((-0.5 - k) / share)
    return np.concatenate([side[:0:-1], side])


@functools.cache
def law_of_total(shares: Shares) -> Floats:
    """Returns the probabilities of the sum of the rounded shares, by exact convolution."""
    return functools.reduce(np.convolve, map(law_of, shares))


def shifted(law: Floats, steps: int) -> tuple[Floats, Floats]:
    """Returns the distribution of a total without and with a unit that adds `steps`."""
    return np.pad(law, (0, steps)), np.pad(law, (steps, 0))


def profile(one: Floats, other: Floats, epsilon: float) -> float:
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


def gaussian_delta(mu: float, epsilon: float) -> float:
    return math.exp(accountants.gaussian_log_delta(mu, epsilon))


def theta(share: float) -> float:
    return 1 + 2 * math.fsum(math.exp(-((math.pi * share * n) ** 2)) for n in range(1, 20))


def log_factors(coordinates: Sequence[Shares]) -> tuple[float, float]:
    """Returns L+ and L- of the theorem, given the shares of each coordinate."""
    taus = [math.prod(map(theta, each)) - 1 if len(each) > 1 else 0.0 for each in coordinates]
    assert max(taus) < 1
    return math.fsum(map(math.log1p, taus)), -math.fsum(math.log1p(-tau) for tau in taus)


def bound(mu: float, coordinates: Sequence[Shares], epsilon: float) -> float:
    plus, minus = log_factors(coordinates)
    return math.exp(plus) * gaussian_delta(mu, epsilon - plus - minus)


def variance(shares: Shares) -> float:
    return math.fsum(share**2 for share in shares)


# shares of one coordinate; every tau is below 1
PROVEN: list[Shares] = [
    (0.5, 0.5),
    (0.5, 2.0),
    (0.6, 0.45),
    (0.7, 0.7),
    (1.0, 1.0),
    (1.0, 3.0),
    (2.0, 2.0),
    (0.6, 0.6, 0.6),
    (0.7, 1.0, 1.5),
    (0.1,),
    (0.3,),
    (2.0,),
]


@pytest.mark.parametrize("shares", [(0.5, 0.5), (1.0, 1.0), (2.0, 0.5), (2.0, 1.0, 0.5)])
def test_totals_of_drawn_shares_have_the_law_by_convolution(shares: Shares) -> None:
    size = 200_000
    drawn = sum(
        RoundedGaussian(SEEDED.open_keystream(7, f"noise of site {site}")).draw_numbers(size, share)
        for site, share in enumerate(shares)
    )
    law = law_of_total(shares)
    middle = len(law) // 2
    counts = np.bincount(drawn + middle, minlength=len(law)).astype(np.float64)
    kept = law * size > 10
    counts = np.append(counts[kept], counts[~kept].sum())
    wanted = size * np.append(law[kept], law[~kept].sum())
    statistic = np.sum((counts - wanted) ** 2 / np.maximum(wanted, 1e-3))
    assert 1e-4 < stats.chi2.sf(statistic, len(wanted) - 1) < 1 - 1e-4


def cut(law: Floats, reach: int = 20) -> Floats:
    middle = len(law) // 2
    return law[middle - reach : middle + reach + 1]


def check_profile(
    one: Floats, other: Floats, mu: float, coordinates: Sequence[Shares], slack: float = 1e-12
) -> None:
    """Checks that totals without and with a unit satisfy the theorem, in both directions."""
    for epsilon in np.linspace(0, 5 * mu, 16):
        for pair in ((one, other), (other, one)):
            exact = profile(*pair, epsilon)
            assert exact <= bound(mu, coordinates, epsilon) * (1 + 1e-9) + slack


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("shares", PROVEN, ids=str)
def test_one_coordinate_keeps_to_the_theorem(shares: Shares, steps: int) -> None:
    mu = steps / math.sqrt(variance(shares))
    check_profile(*shifted(law_of_total(shares), steps), mu, [shares], 1e-14)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0.5, 0.5), (0.5, 0.5)),
        ((0.6, 0.6, 0.6), (0.7, 0.7, 0.7)),
        # the diagonal and the other entries of a symmetric matrix
        ((1.0, 1.0), (1 / math.sqrt(2), 1 / math.sqrt(2))),
        ((0.3,), (0.5, 1.0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("steps", [(1, 1), (1, 2), (3, 1)])
def test_two_coordinates_keep_to_the_theorem(
    first: Shares, second: Shares, steps: tuple[int, int]
) -> None:
    pairs = [
        shifted(cut(law_of_total(shares)), shift)
        for shares, shift in zip((first, second), steps, strict=True)
    ]
    without, with_unit = (np.multiply.outer(*laws) for laws in zip(*pairs, strict=True))
    mu = math.sqrt(steps[0] ** 2 / variance(first) + steps[1] ** 2 / variance(second))
    check_profile(without, with_unit, mu, [first, second])


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.7, 0.7), (0.6, 0.6, 0.6), (1.0, 2.0)], ids=str)
@pytest.mark.parametrize("rule", ["parity", "sign", "second only near 0"])
def test_a_second_release_that_follows_the_first_keeps_to_the_theorem(
    shares: Shares, rule: str
) -> None:
    """A unit moves the first total by 1 step, and the second by up to 2, depending on the first."""
    reach = 20
    law = cut(law_of_total(shares), reach)
    totals = np.arange(-reach, reach + 2)
    shifts = {
        "parity": np.where(totals % 2 == 0, 2, -1),
        "sign": np.where(totals > 0, 2, -2),
        "second only near 0": np.where(abs(totals) < 2, 2, 0),
    }[rule]
    first, first_with_unit = shifted(law, 1)
    second = np.pad(law, 2)
    moved = np.stack([np.roll(second, shift) for shift in shifts])
    without, with_unit = first[:, None] * second, first_with_unit[:, None] * moved
    mu = math.sqrt((1 + 2**2) / variance(shares))
    check_profile(without, with_unit, mu, [shares, shares])


@pytest.mark.parametrize("shares", [each for each in PROVEN if len(each) > 1], ids=str)
def test_fractional_parts_are_nearly_uniform_given_the_real_sum(shares: Shares) -> None:
    """Checks the proof's central step, with densities in place of Fourier sums."""
    tau = math.prod(map(theta, shares)) - 1
    first, *others = np.square(shares)
    total = first + sum(others)
    wholes = np.array([*itertools.product(range(-12, 13), repeat=len(others))])
    places = np.array([*itertools.product(np.linspace(0, 1, 9), repeat=len(others))])
    law = stats.multivariate_normal(
        cov=np.diag(others) - np.outer(others, others) / total, allow_singular=False
    )
    for real_sum in (0.0, 0.3, -1.7):
        mean = np.array(others) / total * real_sum
        points = places[:, None] + wholes[None] - mean
        density = law.pdf(points).reshape(len(places), -1).sum(axis=1)
        assert np.abs(density - 1).max() <= tau * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize(
    ("shares", "at_least", "largest_epsilon"),
    [((0.3, 0.3), 7.4, 12), ((0.5, 0.5), 3.4, 20), ((0.1, 2.0), 1.087, 5)],
    ids=str,
)
def test_the_naive_price_fails_for_small_shares(
    shares: Shares, at_least: float, largest_epsilon: float
) -> None:
    """A Gaussian of the same variance promises more privacy than these totals have."""
    without, with_unit = shifted(law_of_total(shares), 1)
    mu = 1 / math.sqrt(variance(shares))
    excess = max(
        profile(without, with_unit, epsilon) / gaussian_delta(mu, epsilon)
        for epsilon in np.linspace(0, largest_epsilon, 401)
    )
    assert excess >= at_least


def test_a_tiny_share_may_be_neglected() -> None:
    without, with_unit = shifted(law_of_total((0.1, 2.0)), 1)
    for epsilon in np.linspace(0, 5, 51):
        assert profile(without, with_unit, epsilon) <= gaussian_delta(0.5, epsilon) * (1 + 1e-12)


def test_shares_of_the_honest_are_never_short() -> None:
    random = np.random.default_rng(3)
    deviations = np.exp(random.uniform(math.log(100), math.log(LARGEST_DEVIATION), 4_000))
    short = 0
    for deviation in map(float, deviations):
        parties = int(random.integers(1, 40))
        colluders = int(random.integers(0, parties))
        share, honest = split_noise(deviation, parties, colluders), parties - colluders
        assert honest * Fraction(share) ** 2 >= Fraction(deviation) ** 2
        assert share <= deviation / math.sqrt(honest) * (1 + 1e-15)
        # the bound also holds off the diagonal, where `releases` divides by sqrt(2)
        elsewhere = math.nextafter(share * math.sqrt(0.5), math.inf)
        assert 2 * honest * Fraction(elsewhere) ** 2 >= Fraction(deviation) ** 2
        short += honest * Fraction(deviation / math.sqrt(honest)) ** 2 < Fraction(deviation) ** 2
    assert short > 1_000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (partial(split_noise, 100.0, parties, colluders), r"honest; use 0 to -?\d+ ")
            for parties, colluders in ((3, 3), (3, -1), (2, 5), (0, 0))
        ),
        *(
            (partial(split_noise, deviation, 3, 1), "choose an epsilon")
            for deviation in (0.0, -1.0, math.inf, math.nan, 2.0**49)
        ),
        (partial(split_noise, 15.9 * 2, 5, 1), r"share .* is 15\.9 steps .* smaller epsilon"),
        *(
            (partial(Penalty, smallest=smallest, honest=2, coordinates=1), "smaller epsilon")
            for smallest in (15.9, math.nan)
        ),
        *(
            (
                partial(Penalty, smallest=16.0, honest=honest, coordinates=count),
                "one of each; count",
            )
            for honest, count in ((0, 1), (2, 0), (0, 0), (-1, 9))
        ),
    ],
)
def test_shares_and_penalties_without_a_price_are_refused(
    call: Callable[[], Any], message: str
) -> None:
    """Prices need an honest site, noise that the sampler can draw, and shares of a minimum size."""
    with pytest.raises(PrivacyError, match=message):
        call()
    assert split_noise(SMALLEST_SHARE * 2, 5, 1) == SMALLEST_SHARE
    assert split_noise(100.0, 1, 0) == 100.0
    assert split_noise(LARGEST_DEVIATION, 2, 1) == LARGEST_DEVIATION


@pytest.mark.parametrize("smallest", [16.0, 17.3, 23.9])
@pytest.mark.parametrize(("honest", "coordinates"), [(2, 1), (3, 300_000), (1_000, 10**12)])
def test_the_penalty_bounds_the_theorems_closely(
    smallest: float, honest: int, coordinates: int
) -> None:
    with mpmath.workdps(2_700):
        q = mpmath.exp(-((mpmath.pi * mpmath.mpf(smallest)) ** 2))
        tau = (1 + 2 * (q + q**4)) ** honest - 1
        exact = coordinates * (mpmath.log(1 + tau) - mpmath.log(1 - tau))
        exact = float(mpmath.log10(exact))
    penalty = Penalty(smallest=smallest, honest=honest, coordinates=coordinates)
    assert exact < penalty.log10_total < exact + 0.04
    assert penalty.log10_total < -1_000


def test_the_constant_holds_wherever_it_is_claimed() -> None:
    """h q <= 1/50 is enough; shares of 16 steps are not needed."""
    for honest in (2, 3, 10, 1_000, 10**6):
        q = mpmath.mpf(1) / (50 * honest)
        tau = (1 + 2 * (q + q**4 / (1 - q))) ** honest - 1
        assert mpmath.log(1 + tau) - mpmath.log(1 - tau) <= 4.1 * honest * q


def test_epsilon_is_rounded_up_and_never_down() -> None:
    plan = [gaussians(3.7, count=2)]

    def epsilon_of(delta: float) -> float:
        return accountants.compute_epsilon(plan, delta, "pld")

    alone = epsilon_of(1e-5)
    penalty = Penalty(smallest=16.0, honest=2, coordinates=10**9)
    assert alone < penalty.price_epsilon(epsilon_of, 1e-5) < alone * (1 + 1e-11)
    free = Penalty(smallest=16.0, honest=1, coordinates=9)
    assert (free.price_epsilon(epsilon_of, 1e-5), free.log10_total) == (alone, -math.inf)
    asked: list[float] = []

    def costs_nothing(delta: float) -> float:
        asked.append(delta)
        return 0.0

    # P and L+ are below 10^-1000, far below the distance to the next float
    least = Fraction(1, 10**1_000)
    assert Fraction(penalty.price_epsilon(costs_nothing, 0.25)) > least
    assert Fraction(asked[0]) * (1 + least) < Fraction(1, 4)
