"""The price of bounded range: against brute force over mechanisms, and two libraries."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from opacus.accountants.analysis.prv import (
    Domain,
    TruncatedPrivacyRandomVariable,
    compose_heterogeneous,
    discretize,
)

from dpprobe.errors import PrivacyError
from dpprobe.privacy import accountants, bounded_range
from dpprobe.privacy.calibration import calibrate, price_plan, second_opinions
from dpprobe.privacy.plan import EXPONENTIAL, Mechanism, Plan, split_budget
from dpprobe.privacy.trade_off import bound_attacks

ETAS = (0.05, 0.5, 1.0, 4.0, 20.0)


def draws(eta: float, count: int = 1, name: str = "choices") -> Mechanism:
    return Mechanism(
        name=name, released="", sensitivity=1.0, noise_multiplier=1 / eta, sample_rate=1.0,
        count=count, kind=EXPONENTIAL,
    )  # fmt: skip


def gaussian(noise: float) -> Mechanism:
    return Mechanism(
        name="sum", released="", sensitivity=1.0, noise_multiplier=noise, sample_rate=1.0, count=1
    )


def law(scores: np.ndarray, eta: float) -> np.ndarray:
    weights = np.exp(eta * (scores - scores.max()))
    return weights / weights.sum()


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@pytest.mark.parametrize("eta", [0.5, 2.0])
def test_no_exponential_mechanism_costs_more_and_one_costs_as_much(eta: float) -> None:
    """All changes of 0, 1/2 and 1 of four candidates' scores, and the worst of two candidates."""
    epsilons = np.linspace(-eta, eta, 21)
    bounds = bounded_range.range_deltas(eta, epsilons)
    generator = np.random.default_rng(0)
    for change in itertools.product((0.0, 0.5, 1.0), repeat=4):
        scores = generator.normal(size=4) * 2
        p, q = law(scores + np.asarray(change), eta), law(scores, eta)
        ratios = np.log(p / q)
        assert np.ptp(ratios) <= eta * np.ptp(change) + 1e-9
        assert np.abs(ratios).max() <= eta * np.ptp(change) + 1e-9
        for one, other in ((p, q), (q, p)):
            actual = [hockey_stick(one, other, epsilon) for epsilon in epsilons]
            assert (actual <= bounds + 1e-12).all()
    for epsilon, bound in zip(epsilons[1:-1], bounds[1:-1], strict=True):
        # the log ratio of the candidate that gains is t = (epsilon + eta) / 2
        gained = (math.expm1(eta - (epsilon + eta) / 2)) / math.expm1(eta)
        scores = np.array([math.log(gained) / eta, math.log1p(-gained) / eta])
        p, q = law(scores + np.array([1.0, 0.0]), eta), law(scores, eta)
        assert hockey_stick(p, q, epsilon) == pytest.approx(bound, rel=1e-9, abs=1e-12)


def test_a_factor_of_two_where_scores_move_both_ways() -> None:
    """Range 2 D: what the proof would claim too little for if scores rose and fell."""
    change, eta = np.array([1.0, -1.0, 0.0]), 1.0
    p, q = law(change, eta), law(np.zeros(3), eta)
    assert np.ptp(np.log(p / q)) == pytest.approx(2 * eta)
    assert hockey_stick(p, q, 0.2) > bounded_range.range_deltas(eta, np.array([0.2]))[0]


@pytest.mark.parametrize("eta", ETAS)
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2])
def test_one_release_is_exact_and_its_library_price_is_just_above(eta: float, delta: float) -> None:
    exact = bounded_range.range_epsilon(eta, delta)
    assert exact <= eta
    if exact > 0:
        assert bounded_range.range_deltas(eta, np.array([exact]))[0] == pytest.approx(
            delta, rel=1e-4
        )
    loss = bounded_range.loss_distribution(eta, accountants.pld_interval(eta))
    assert exact <= loss.get_epsilon_for_delta(delta) + 1e-12 <= exact + 1e-3 * eta


def test_the_profile_is_that_of_the_densities_that_are_stated() -> None:
    """P[l] = exp(l / 2) / (4 sinh(eta / 2)) integrates to the profile."""
    eta = 1.7
    losses = np.linspace(-eta, eta, 200_001)
    density = np.exp(losses / 2) / (4 * math.sinh(eta / 2))
    for epsilon in (-1.0, 0.0, 0.6):
        inside = density * np.maximum(1 - np.exp(epsilon - losses), 0)
        expected = bounded_range.range_deltas(eta, np.array([epsilon]))[0]
        assert np.trapezoid(inside, losses) == pytest.approx(expected, rel=1e-6)


def test_large_and_small_epsilons_have_the_deltas_of_certainty() -> None:
    values = bounded_range.range_deltas(1.0, np.array([-800.0, -1.0, 1.0, 800.0]))
    np.testing.assert_allclose(values, [1.0, -math.expm1(-1.0), 0.0, 0.0], atol=1e-12)


class _Loss:
    """The dominating pair's privacy loss, as Opacus's numerical composition takes one."""

    def __init__(self, eta: float) -> None:
        self.eta = eta

    def cdf(self, losses: np.ndarray) -> np.ndarray:
        inside = np.clip(losses, -self.eta, self.eta) / 2
        return np.expm1(inside + self.eta / 2) / math.expm1(self.eta)

    def mean(self) -> float:
        half = self.eta / 2
        return self.eta / math.tanh(half) - 2


@pytest.mark.parametrize(("eta", "count"), [(0.3, 10), (0.1, 40), (1.0, 5)])
def test_several_releases_cost_what_a_second_library_composes(eta: float, count: int) -> None:
    delta = 1e-5
    by_us = accountants.compute_epsilon([draws(eta, count)], delta, "pld")
    domain = Domain.create_aligned(-3 * count * eta, 3 * count * eta, 1e-4)
    truncated = TruncatedPrivacyRandomVariable(_Loss(eta), domain.t_min, domain.t_max)
    composed = compose_heterogeneous([discretize(truncated, domain)], [count])
    _, estimate, _ = composed.compute_epsilon(delta, 0.0, 0.0)
    assert by_us == pytest.approx(estimate, rel=2e-3)
    assert by_us <= count * eta + 1e-6


@pytest.mark.parametrize(("eta", "count"), [(0.2, 5), (1.0, 3)])
def test_no_sequence_of_two_point_mechanisms_costs_more(eta: float, count: int) -> None:
    """Independent draws of the worst t each, exactly, by dp-accounting and its own two points."""
    delta = 1e-4
    bound = accountants.compute_epsilon([draws(eta, count)], delta, "pld")
    for t in np.linspace(0.05, 0.95, 7) * eta:
        up = -math.expm1(t - eta) / -math.expm1(-eta)
        loss = privacy_loss_distribution.from_two_probability_mass_functions(
            {0: math.log(up) - t, 1: math.log1p(-up) + eta - t},
            {0: math.log(up), 1: math.log1p(-up)},
            value_discretization_interval=1e-4,
        ).self_compose(count)
        assert loss.get_epsilon_for_delta(delta) <= bound + count * 1e-4


@pytest.mark.parametrize("eta", [0.1, 1.0, 3.0])
def test_concentrated_privacy_holds_for_the_worst_mechanisms(eta: float) -> None:
    for t in np.linspace(0.01, 0.99, 15) * eta:
        up = -math.expm1(t - eta) / -math.expm1(-eta)
        p = np.array([up, 1 - up])
        q = p * np.exp([-t, eta - t])
        for order in (1.5, 2.0, 8.0, 30.0):
            divergence = math.log((p**order * q ** (1 - order)).sum()) / (order - 1)
            assert divergence <= order * bounded_range.range_rho(eta) + 1e-12


def test_a_composition_with_a_gaussian_lies_between_its_parts_and_their_sum() -> None:
    parts = [[draws(0.8)], [gaussian(3.0)]]
    alone = [accountants.compute_epsilon(part, 1e-5, "pld") for part in parts]
    together = accountants.compute_epsilon([*parts[0], *parts[1]], 1e-5, "pld")
    assert max(alone) < together < sum(alone)
    by_rdp = accountants.compute_epsilon([*parts[0], *parts[1]], 1e-5, "rdp")
    assert together <= by_rdp


def test_a_group_pays_for_as_many_ranges() -> None:
    for size in (2, 7):
        expected = bounded_range.range_epsilon(size * 0.3, 1e-5)
        assert accountants.group_epsilon([draws(0.3)], 1e-5, size) == pytest.approx(expected)


def test_ranges_beyond_any_grid_are_added_up() -> None:
    assert accountants.compute_epsilon([draws(500.0, 20)], 1e-5, "pld") == 10_000
    together = accountants.compute_epsilon([draws(500.0, 2), gaussian(2.0)], 1e-5, "pld")
    assert together == 1000 + accountants.compute_epsilon([gaussian(2.0)], 1e-5, "pld")
    assert accountants.group_epsilon([draws(4.0, 5)], 1e-5, 100) == pytest.approx(2000)


def test_draws_are_no_gaussian_mechanism() -> None:
    for mechanisms in ([draws(1.0)], [draws(1.0), gaussian(1.0)]):
        with pytest.raises(PrivacyError, match="'choices'"):
            accountants.gaussian_mu(mechanisms)
        with pytest.raises(PrivacyError, match="write 'pld'"):
            accountants.compute_epsilon(mechanisms, 1e-5, "gaussian")
        assert not accountants.is_gaussian(mechanisms)
    assert accountants.resolve_accountant([draws(1.0)], "pld") == "exponential"
    assert accountants.resolve_accountant([draws(1.0, 2)], "pld") == "pld"
    assert accountants.exactly_priced([draws(1.0)])
    assert not accountants.exactly_priced([draws(1.0, 2)])
    with pytest.raises(PrivacyError, match="uses all rows"):
        Mechanism(
            name="choices", released="", sensitivity=1.0, noise_multiplier=1.0, sample_rate=0.5,
            count=1, kind=EXPONENTIAL,
        )  # fmt: skip


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("mechanisms", [(draws(1.0),), (draws(1.0, 5),), (draws(1.0), gaussian(2))])
def test_calibration_meets_the_target_and_is_read_again(
    mechanisms: tuple[Mechanism, ...], accountant: str, tmp_path: Path
) -> None:
    plans = [
        calibrate(mechanisms, n=500, epsilon=0.7, delta=1e-4, accountant=accountant, cache=tmp_path)
        for _ in range(2)
    ]
    assert plans[0] == plans[1]
    assert 0.99 * 0.7 <= plans[0].realised_epsilon <= 0.7
    assert price_plan(plans[0]) == pytest.approx(plans[0].realised_epsilon, rel=1e-5)
    assert Plan.from_dict(plans[0].to_dict()) == plans[0]
    _, checks, notes = second_opinions(plans[0])
    priced = [value for value in checks.values() if value is not None]
    assert len(priced) == (2 if plans[0].priced_by.startswith("exponential") else 1)
    assert all(0 < value < 3 for value in priced)
    assert any("Opacus has no accounting for" in note for note in notes.values())


def test_a_gaussian_mechanism_is_written_as_before_there_were_others() -> None:
    assert list(gaussian(1.0).to_dict()) == [
        "name", "released", "sensitivity", "noise_multiplier", "sample_rate", "count",
    ]  # fmt: skip
    assert draws(1.0).to_dict()["kind"] == "exponential"
    for item in (gaussian(1.0), draws(2.0, 3)):
        assert Mechanism.from_dict(item.to_dict()) == item


def test_a_budget_is_split_by_concentrated_privacy() -> None:
    first, second = split_budget([(0.3, [gaussian(1.0)]), (0.7, [draws(1.0, 4)])])
    rho = [first.noise_multiplier**-2 / 2, 4 * bounded_range.range_rho(second.bounded_range)]
    assert rho[0] / sum(rho) == pytest.approx(0.3)


def test_the_best_attack_on_one_draw() -> None:
    """The total variation of range eta is tanh(eta / 4)."""
    for eta in (0.2, 1.0, 5.0):
        bounds = bound_attacks([draws(eta)], [0.0, 0.01], delta=1e-5, epsilon=eta)
        assert bounds.balanced_accuracy == pytest.approx((1 + math.tanh(eta / 4)) / 2, abs=2e-6)
        assert bounds.true_positives[0] <= 1e-6
        assert bounds.true_positives[1] <= 0.01 * math.exp(eta) + 1e-6
        assert not bounds.exact
