"""Prices of compositions: golden values, exactness, and agreement between libraries."""

from __future__ import annotations

import math
import warnings
from unittest.mock import Mock

import mpmath  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import GaussianAccountant, PRVAccountant

from dpprobe.privacy import accountants
from dpprobe.privacy.limits import SMALLEST_DELTA
from dpprobe.privacy.noise_calibration import find_factor
from tests.support.mechanisms import (
    RATE,
    STEPS,
    gaussian_delta,
    gaussians,
    mixed,
    mixed_delta,
    sampled_delta,
)

DELTA = 1e-5


GRID = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]


# Noise multipliers, found by our own search, near which 60 steps at rate 0.05 cost the epsilons of
# GRID. They only set where libraries are compared with each other.
NOISE = {
    (1e-5, "sampled"): [94.95, 35.82, 12.17, 4.623, 1.799, 0.9807, 0.5886],
    (1e-5, "mixed"): [99.74, 37.61, 12.75, 4.795, 1.839, 0.9868, 0.5899],
    (1e-8, "sampled"): [160.7, 56.7, 18.17, 6.578, 2.383, 1.21, 0.7024],
    (1e-8, "mixed"): [168.8, 59.53, 19.04, 6.854, 2.451, 1.221, 0.7039],
}


def full_batch_noise(epsilon: float, delta: float = DELTA) -> float:
    """Returns the noise multiplier at which one unsampled release costs `epsilon`."""

    def price(noise: float) -> float:
        return accountants.compute_epsilon([gaussians(noise)], delta, "gaussian")

    return find_factor(price, epsilon, what="test", tolerance=1e-3)[0]


@pytest.mark.parametrize("epsilon", GRID)
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_unsampled_prices_agree_with_a_second_library_and_with_quadrature(
    epsilon: float, delta: float
) -> None:
    """Compares exact prices with the integrated definition, dp-accounting's PLD, Opacus's PRV."""
    noise = math.sqrt(3) * full_batch_noise(epsilon, delta)
    composition = [gaussians(noise, count=3)]
    exact = accountants.compute_epsilon(composition, delta, "gaussian")
    assert gaussian_delta(math.sqrt(3) / noise, exact) == pytest.approx(delta, rel=1e-6)
    answers, _ = accountants.check_epsilons(composition, delta, "pld")
    pld, rdp, prv = answers.values()
    assert pld is not None and rdp is not None  # noqa: PT018
    assert exact * (1 - 1e-9) <= pld <= exact * (1 + 1e-4)
    assert exact < rdp < 1.5 * exact
    if epsilon >= 0.1:
        assert prv is not None
        assert exact < prv < exact * 1.03 + 2.1e-3


@pytest.mark.parametrize(
    ("delta", "composed", "epsilon", "noise"),
    [
        (delta, composed, epsilon, noise)
        for (delta, composed), row in NOISE.items()
        for epsilon, noise in zip(GRID, row, strict=True)
        if epsilon
        in ((0.3,) if delta < DELTA else GRID[::2] if composed == "mixed" else (0.01, 10.0))
    ],
)
def test_sampled_and_mixed_prices_agree_with_a_second_library(
    delta: float, composed: str, epsilon: float, noise: float
) -> None:
    """Compares with dp-accounting's PLD and, within its error, Opacus's PRV; RDP is above both."""
    composition = mixed(noise) if composed == "mixed" else [gaussians(noise, RATE, STEPS)]
    pld = accountants.compute_epsilon(composition, delta, "pld")
    assert pld == pytest.approx(epsilon, rel=0.01)
    answers, notes = accountants.check_epsilons(composition, delta, "pld")
    rdp, prv = answers.values()
    assert rdp is not None
    assert pld < rdp < 1.7 * pld
    if epsilon >= 0.1:
        assert not notes
        assert prv is not None
        assert pld * (1 - 1e-3) < prv < pld * 1.03 + 2.1e-3
    else:
        assert [name[:3] for name in notes] == ["prv"]


@pytest.mark.parametrize("noise", [9.649, 0.6671])  # epsilon 0.05 and 4
def test_a_sampled_and_an_unsampled_release_follow_the_definition(
    noise: float,
) -> None:
    pld = accountants.compute_epsilon(mixed(noise, 0.1, 1), DELTA, "pld")
    exact = mixed_delta(1 / (8 * noise), noise, 0.1, pld)
    assert exact <= DELTA * (1 + 1e-4)
    assert mixed_delta(1 / (8 * noise), noise, 0.1, pld * 0.998) > DELTA
    alone = accountants.compute_epsilon([gaussians(noise, 0.1)], DELTA, "pld")
    assert sampled_delta(noise, 0.1, alone) == pytest.approx(DELTA, rel=2e-3)


def test_the_gdp_accountant_underestimates() -> None:
    """Opacus's central limit promises 1 and 8 if the price is 1.11 and 10.3."""
    rate, steps = 32 / 50_000, 31_250
    for promised, noise, real in ((1, 0.72759, 1.11), (8, 0.43098, 10.3)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it "can underestimate"
            unsafe = GaussianAccountant()
            unsafe.history = [(noise, rate, steps)]
            assert unsafe.get_epsilon(DELTA) == pytest.approx(promised, rel=1e-3)
        steps_of_it = [gaussians(noise, rate, steps)]
        assert accountants.compute_epsilon(steps_of_it, DELTA, "pld") == pytest.approx(
            real, rel=5e-3
        )
        # Our central limit is too low as well; a search only starts from it and never promises it.
        assert accountants.central_limit_epsilon(steps_of_it, DELTA) < 0.97 * real


@given(mu=st.floats(0.003, 12), epsilon=st.floats(0.0, 60.0))
@settings(max_examples=150)
def test_exact_delta_matches_fifty_digits(mu: float, epsilon: float) -> None:
    with mpmath.workdps(80):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        exact = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        wanted = float(mpmath.log(exact))
    if wanted > -400:
        assert accountants.gaussian_log_delta(mu, epsilon) == pytest.approx(
            wanted, rel=1e-9, abs=1e-9
        )


@pytest.mark.parametrize("mu", [1e-300, 1e-100, 1e-17, 1e-12, 1e-7, 0.9e-6, 1.1e-6, 1e-5])
@pytest.mark.parametrize("ratio", [0.0, 1e-9, 0.5, 1.0, 5.0, 30.0, 999.0, 1001.0, 1e5, 1e200])
def test_a_mu_that_floats_hardly_tell_from_zero_has_its_delta(mu: float, ratio: float) -> None:
    """As floats, both terms of delta are equal, but delta must not become 0."""
    log_delta = accountants.gaussian_log_delta(mu, mu * ratio)
    with mpmath.workdps(700):
        if ratio > 1e6:
            assert log_delta == -math.inf
            return
        m, e = mpmath.mpf(mu), mpmath.mpf(mu) * mpmath.mpf(ratio)
        exact = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        assert log_delta == pytest.approx(float(mpmath.log(exact)), rel=1e-9, abs=1e-9)
    if log_delta > -700:
        epsilon = accountants.gaussian_epsilon(mu, math.exp(log_delta))
        assert epsilon == pytest.approx(mu * ratio, rel=1e-5, abs=mu * 1e-4)


@given(mu=st.floats(0.003, 12), exponent=st.floats(-40, -1))
@settings(max_examples=100)
def test_exact_epsilon_inverts_delta_from_above(mu: float, exponent: float) -> None:
    target = 10.0**exponent
    epsilon = accountants.gaussian_epsilon(mu, target)
    assert accountants.gaussian_log_delta(mu, epsilon) <= math.log(target)
    if epsilon > 0:
        below = accountants.gaussian_log_delta(mu, epsilon * (1 - 1e-6) - 1e-12)
        assert below > math.log(target)


@pytest.mark.parametrize(("noise", "steps"), [(20.0, 25), (2000.0, 31_250), (1.0, 1)])
@pytest.mark.parametrize("delta", [1e-5, SMALLEST_DELTA])
def test_sampling_all_but_all_is_the_exact_price(noise: float, steps: int, delta: float) -> None:
    """As the rate approaches 1, the sampled accountants must not fall below exact mu-GDP."""
    exact = accountants.compute_epsilon([gaussians(noise, 1.0, steps)], delta, "gaussian")
    sampled = [gaussians(noise, 1 - 1e-12, steps)]
    pld = accountants.compute_epsilon(sampled, delta, "pld")
    assert exact <= pld < exact * (1 + 2e-3)
    assert pld < accountants.compute_epsilon(sampled, delta, "rdp") < 1.15 * exact


def test_a_failing_accountant_check_is_noted_and_does_not_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = Mock(side_effect=ValueError("no such luck"))
    monkeypatch.setattr(accountants, "import_accounting", broken)
    answers, notes = accountants.check_epsilons([gaussians(1.0, 0.1, 5)], DELTA, "pld")
    (name,) = (name for name in answers if name.startswith("prv"))
    assert answers[name] is None
    assert "no such luck" in notes[name]
    opacus = Mock(**{"return_value.PRVAccountant.return_value.get_epsilon.return_value": 3.037})
    monkeypatch.setattr(accountants, "import_accounting", opacus)
    answers, notes = accountants.check_epsilons([gaussians(30.0)], DELTA, "pld")
    assert answers[name] is None
    assert "exceeds the upper bound" in notes[name]


def test_the_conversion_of_2017_by_hand() -> None:
    # RDP(a) of one release is a / (2 noise^2); the best order is 1 + noise sqrt(2 log(1 / delta))
    mu, log = 0.5, math.log(1 / DELTA)
    best = mu**2 / 2 + mu * math.sqrt(2 * log)
    ours = accountants.compute_epsilon([gaussians(1 / mu)], DELTA, "rdp_2017")
    assert best <= ours <= 1.0001 * best


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (0.7, 0.5)])
def test_the_price_from_below_is_below(noise: float, rate: float) -> None:
    """At this epsilon, one sampled release has slightly more than delta, by quadrature."""
    below = accountants.epsilon_below([gaussians(noise, rate)], DELTA)
    assert sampled_delta(noise, rate, below) > DELTA
    assert sampled_delta(noise, rate, 1.02 * below) < DELTA


def test_the_price_from_below_is_the_lower_end_that_is_proven() -> None:
    """Gopi et al. 2021: Opacus computes both ends, but returns only the upper one."""
    error, tail = 2e-3, DELTA / 1000  # the smallest error, used for an epsilon below 0.8
    prv = PRVAccountant()
    prv.history = [(4.0, 0.05, 20)]
    found = prv._get_dprv(eps_error=error, delta_error=tail)
    lower, _, upper = found.compute_epsilon(DELTA, tail, error)
    below = accountants.epsilon_below([gaussians(4.0, 0.05, 20)], DELTA)
    assert below == pytest.approx(lower, rel=1e-6), f"below the upper end {upper} by two errors"
