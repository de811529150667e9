"""Prices of compositions: golden values, exactness, agreement between libraries."""

from __future__ import annotations

import math
from typing import Any

import mpmath  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.config import SMALLEST_DELTA
from dpprobe.errors import PrivacyError
from dpprobe.privacy import accountants
from tests.mechanisms import gaussians

DELTA = 1e-5


# Noise multipliers found in an earlier study of peers on another machine with dp-accounting 0.6's
# PLD at its default grid and Opacus 1.6's PRV at its default error, both at delta 1e-5.
GOLDEN = [
    # rate, steps, epsilon, PLD, PRV
    (32 / 50_000, 31_250, 0.5, 1.0400, 1.0515),
    (32 / 50_000, 31_250, 1.0, 0.7524, 0.7549),
    (32 / 50_000, 31_250, 2.0, 0.6251, 0.6259),
    (32 / 50_000, 31_250, 8.0, 0.4560, 0.4562),
    (4096 / 50_000, 244, 0.5, 9.122, 9.291),
    (4096 / 50_000, 244, 1.0, 4.922, 4.966),
    (4096 / 50_000, 244, 2.0, 2.737, 2.749),
    (4096 / 50_000, 244, 8.0, 1.0593, 1.0601),
]


@pytest.mark.parametrize(("rate", "steps", "epsilon", "pld", "prv"), GOLDEN)
def test_golden_sampled(rate: float, steps: int, epsilon: float, pld: float, prv: float) -> None:
    own = accountants.epsilon([gaussians(pld, rate, steps)], DELTA, "pld")
    assert own == pytest.approx(epsilon, rel=2e-3)
    # The other code base's answer at its own multiplier, priced by ours: never above its own.
    other = accountants.epsilon([gaussians(prv, rate, steps)], DELTA, "pld")
    assert 0.97 * epsilon < other <= epsilon * (1 + 1e-3)


# The exact multipliers of one full-batch Gaussian release, from the same study.
@pytest.mark.parametrize(
    ("epsilon", "noise"),
    [(0.5, 7.032), (1, 3.731), (2, 1.994), (4, 1.081), (8, 0.600), (10, 0.4999)],
)
def test_golden_full_batch(epsilon: float, noise: float) -> None:
    assert accountants.epsilon([gaussians(noise)], DELTA, "gaussian") == pytest.approx(
        epsilon, rel=2e-3
    )


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize(("rate", "steps"), [(32 / 1437, 898), (0.25, 40)])
def test_two_libraries_agree_and_rdp_is_looser(epsilon: float, rate: float, steps: int) -> None:
    noise = gaussian_guess(epsilon, rate, steps)
    composition = [gaussians(noise, rate, steps)]
    pld = accountants.epsilon(composition, DELTA, "pld")
    prv = accountants.epsilon(composition, DELTA, "prv")
    rdp = accountants.epsilon(composition, DELTA, "rdp")
    assert prv == pytest.approx(pld, rel=0.015, abs=0.002)
    assert pld < rdp < 1.6 * pld


def gaussian_guess(epsilon: float, rate: float, steps: int) -> float:
    """A multiplier in the neighbourhood of this epsilon."""
    return max(0.6, rate * math.sqrt(steps) * 4 / epsilon)


@given(mu=st.floats(0.003, 12), epsilon=st.floats(0.0, 60.0))
@settings(max_examples=150, deadline=None)
def test_exact_delta_matches_fifty_digits(mu: float, epsilon: float) -> None:
    with mpmath.workdps(80):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        exact = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        wanted = float(mpmath.log(exact))
    if wanted > -400:
        assert accountants.gaussian_log_delta(mu, epsilon) == pytest.approx(
            wanted, rel=1e-9, abs=1e-9
        )


@given(mu=st.floats(0.003, 12), exponent=st.floats(-40, -1))
@settings(max_examples=100, deadline=None)
def test_exact_epsilon_inverts_delta_from_above(mu: float, exponent: float) -> None:
    target = 10.0**exponent
    epsilon = accountants.gaussian_epsilon(mu, target)
    assert math.exp(accountants.gaussian_log_delta(mu, epsilon)) <= target * (1 + 1e-9)
    if epsilon > 0:
        below = accountants.gaussian_log_delta(mu, epsilon * (1 - 1e-6) - 1e-12)
        assert below > math.log(target)


def test_unsampled_steps_are_one_release_of_less_noise() -> None:
    many = accountants.epsilon([gaussians(20.0, count=25)], DELTA, "pld")
    assert many == pytest.approx(accountants.epsilon([gaussians(4.0)], DELTA, "pld"), rel=1e-12)
    parts = [gaussians(5.0, name="a"), gaussians(12.0, count=3, name="b")]
    whole = gaussians((1 / 25 + 3 / 144) ** -0.5)
    assert accountants.epsilon(parts, DELTA, "pld") == pytest.approx(
        accountants.epsilon([whole], DELTA, "pld"), rel=1e-12
    )
    assert accountants.resolve(parts, "pld") == "gaussian"


@pytest.mark.parametrize("noise", [30.0, 3.7, 0.6, 0.25])
def test_pld_and_prv_bound_the_exact_price_closely(noise: float) -> None:
    exact = accountants.epsilon([gaussians(noise)], DELTA, "pld")
    answers, notes = accountants.checks([gaussians(noise)], DELTA, "pld")
    assert len(answers) == 3
    assert not notes
    for name, answer in answers.items():
        assert answer is not None
        assert exact * (1 - 1e-6) <= answer <= exact * 1.15 + 2.1e-3, name
    loose = accountants.epsilon([gaussians(noise)], DELTA, "rdp")
    assert loose > exact


@pytest.mark.parametrize(
    ("noise", "steps"), [(20.0, 25), (500.0, 31_250), (2000.0, 31_250), (1.0, 1), (3.0, 50)]
)
@pytest.mark.parametrize("delta", [1e-5, SMALLEST_DELTA])
def test_sampling_all_but_all_is_the_exact_price(noise: float, steps: int, delta: float) -> None:
    """As the rate goes to 1, the sampled accountants must not fall below exact mu-GDP."""
    exact = accountants.epsilon([gaussians(noise, 1.0, steps)], delta, "gaussian")
    sampled = [gaussians(noise, 1 - 1e-12, steps)]
    pld = accountants.epsilon(sampled, delta, "pld")
    assert exact <= pld < exact * (1 + 2e-3)
    assert pld < accountants.epsilon(sampled, delta, "rdp") < 1.15 * exact


def test_heads_together_cost_their_composition() -> None:
    one = [gaussians(3.73, 1.0, 5)]
    exact = accountants.epsilon([gaussians(3.73, 1.0, 15)], DELTA, "gaussian")
    assert accountants.together(one, DELTA, 3) == exact
    mixed = [gaussians(8.0, name="a"), gaussians(1.0, 0.02, 500, name="b")]
    tripled = [gaussians(8.0, count=3, name="a"), gaussians(1.0, 0.02, 1500, name="b")]
    tight = accountants.epsilon(tripled, DELTA, "pld")
    assert tight < accountants.together(mixed, DELTA, 3) < 1.3 * tight


def test_a_check_that_fails_is_noted_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> float:
        raise ValueError("no such luck")

    monkeypatch.setattr(accountants, "_prv_epsilon", broken)
    answers, notes = accountants.checks([gaussians(1.0, 0.1, 5)], DELTA, "pld")
    (name,) = (name for name in answers if name.startswith("prv"))
    assert answers[name] is None
    assert "no such luck" in notes[name]
    monkeypatch.setattr(accountants, "_prv_epsilon", lambda *_: 3.037)
    answers, notes = accountants.checks([gaussians(30.0)], DELTA, "pld")
    assert answers[name] is None
    assert "exceeds the upper bound" in notes[name]


def test_prv_is_left_out_where_its_error_would_be_the_answer() -> None:
    answers, notes = accountants.checks([gaussians(1724.0)], DELTA, "pld")
    (name,) = notes
    assert answers[name] is None
    assert "too large for an epsilon of 0.0012" in notes[name]


def test_mixed_composition_is_priced_as_a_whole() -> None:
    parts = [gaussians(8.0, name="covariance"), gaussians(1.5, 0.02, 500, name="gradients")]
    pld = accountants.epsilon(parts, DELTA, "pld")
    assert accountants.epsilon(parts, DELTA, "prv") == pytest.approx(pld, rel=0.02)
    alone = [accountants.epsilon([part], DELTA, "pld") for part in parts]
    assert max(alone) < pld < sum(accountants.epsilon([part], DELTA / 2, "pld") for part in parts)


def test_a_finer_grid_only_tightens() -> None:
    composition = [gaussians(1.0, 0.02, 500)]
    coarse, fine = (
        accountants.epsilon(composition, DELTA, "pld", interval=interval)
        for interval in (1e-3, 1e-4)
    )
    assert 0.98 * coarse < fine <= coarse


@pytest.mark.parametrize(
    ("epsilon", "interval"),
    [(0.01, 1e-6), (0.07, 5e-6), (0.5, 5e-5), (1.0, 1e-4), (8.0, 5e-4), (30.0, 1e-3)],
)
def test_grid_follows_epsilon(epsilon: float, interval: float) -> None:
    assert accountants.pld_interval(epsilon) == pytest.approx(interval)


def test_delta_is_the_inverse_of_epsilon() -> None:
    composition = [gaussians(3.0, count=2)]
    epsilon = accountants.epsilon(composition, DELTA, "gaussian")
    assert accountants.delta(composition, epsilon) == pytest.approx(DELTA, rel=1e-8)
    with pytest.raises(PrivacyError, match="samples its rows"):
        accountants.delta([gaussians(1.0, 0.5)], 1.0)


def test_no_noise_costs_everything_and_nothing_costs_nothing() -> None:
    for accountant in ("pld", "rdp", "prv"):
        assert accountants.epsilon([gaussians(0.0, 0.1, 5)], DELTA, accountant) == math.inf
        assert accountants.epsilon([], DELTA, accountant) == 0
    assert accountants.epsilon([gaussians(0.0)], DELTA, "pld") == math.inf


def test_unsafe_or_unknown_accountants_are_refused() -> None:
    with pytest.raises(PrivacyError, match="accountant 'gdp'"):
        accountants.epsilon([gaussians(1.0, 0.1, 5)], DELTA, "gdp")
    with pytest.raises(PrivacyError, match="'g' samples its rows"):
        accountants.epsilon([gaussians(1.0, 0.1, 5)], DELTA, "gaussian")
    with pytest.raises(PrivacyError, match="delta 0"):
        accountants.epsilon([gaussians(1.0)], 0.0, "pld")


def test_the_accountant_is_named_with_its_library() -> None:
    assert accountants.describe([gaussians(1.0)], "pld") == "gaussian (exact mu-GDP)"
    assert accountants.describe([gaussians(1.0, 0.5)], "pld").startswith("pld (dp-accounting 0.")
    assert accountants.describe([gaussians(1.0)], "rdp").startswith("rdp (dp-accounting 0.")
