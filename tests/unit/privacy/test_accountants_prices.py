"""Prices of the same composition by several libraries, closed forms, and names of accountants."""

from __future__ import annotations

import itertools
import math
import warnings
from importlib.metadata import version
from typing import Any

import pytest
from absl import logging
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import PRVAccountant
from opacus.accountants.analysis.rdp import compute_rdp
from scipy.optimize import brentq

from dpprobe.errors import PrivacyError
from dpprobe.privacy import accountants
from dpprobe.privacy.accountants import ACCOUNTANTS, Fits, compute_epsilon
from dpprobe.privacy.limits import SMALLEST_DELTA
from dpprobe.privacy.plan import Mechanism, Selection
from dpprobe.privacy.trade_off import bound_attacks
from tests.support.mechanisms import best_of, exact_epsilon, gaussians, mixed

DELTA = 1e-5
SILENT = [gaussians(0.0, 0.1, 5), gaussians(3.0, name="a")]
WHOLE = [gaussians(5.0, name="a"), gaussians(12.0, count=3, name="b")]
SAMPLED = [gaussians(1.0, 0.02, 200)]
BESIDE = [gaussians(9.0, name="centre"), gaussians(4.0, count=2)]
WHOLE_MU = math.sqrt(1 / 25 + 3 / 144)


def event_of(mechanisms: list[Mechanism], selection: Selection | None = None) -> Any:
    """Returns the composition as dp-accounting's event, one mechanism after the other."""
    if selection is not None:
        inside = [item for item in mechanisms if item.name in selection.repeated]
        rest = [item for item in mechanisms if item.name not in selection.repeated]
        best = dp_event.RepeatAndSelectDpEvent(event_of(inside), selection.mean, 1)
        return dp_event.ComposedDpEvent([best, event_of(rest)])
    events: list[Any] = []
    for item in mechanisms:
        one: Any = dp_event.GaussianDpEvent(item.noise_multiplier)
        if item.sample_rate < 1:
            one = dp_event.PoissonSampledDpEvent(item.sample_rate, one)
        events.append(dp_event.SelfComposedDpEvent(one, item.count))
    return dp_event.ComposedDpEvent(events)


def renyi(*events: Any) -> float:
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    accountant = RdpAccountant(accountants.RDP_ORDERS)
    for event in events:
        accountant.compose(event)
    logging.set_verbosity(before)
    return float(accountant.get_epsilon(DELTA))


# one composition


def test_epsilon_is_infinite_without_noise_and_zero_without_releases() -> None:
    for name in [*ACCOUNTANTS][:-1]:
        assert compute_epsilon(SILENT, DELTA, name) == math.inf
        assert compute_epsilon([], DELTA, name) == 0.0
    assert accountants.group_epsilon(SILENT, DELTA, 3) == math.inf
    assert accountants.epsilon_below(SILENT, DELTA) == math.inf
    assert accountants.epsilon_below([], DELTA) == 0.0
    assert accountants.gaussian_mu(SILENT) == math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
def test_delta_must_lie_strictly_between_0_and_1(delta: float) -> None:
    with pytest.raises(PrivacyError, match=f"delta {delta!r}: must lie between 0 and 1"):
        compute_epsilon(WHOLE, delta, "pld")
    assert compute_epsilon(WHOLE, 0.999, "pld") == 0.0


def test_an_error_names_an_accountant_that_cannot_compute_the_price() -> None:
    with pytest.raises(PrivacyError, match=f"'gdp': choose one of {', '.join(ACCOUNTANTS)}"):
        compute_epsilon(WHOLE, DELTA, "gdp")
    with pytest.raises(PrivacyError, match="mechanism 'g' samples its rows.* write 'pld'"):
        compute_epsilon([*WHOLE, *SAMPLED], DELTA, "gaussian")
    for name in ("prv", "rdp_2017"):
        with pytest.raises(PrivacyError, match="best of repeated runs"):
            compute_epsilon(BESIDE, DELTA, name, selection=best_of(5))


@pytest.mark.parametrize("name", ["pld", "gaussian"])
def test_gaussians_on_all_rows_have_the_closed_form_s_price(name: str) -> None:
    assert accountants.gaussian_mu(WHOLE) == pytest.approx(WHOLE_MU)
    for delta in (1e-5, 1e-8):
        price = compute_epsilon(WHOLE, delta, name)
        assert price == pytest.approx(exact_epsilon(WHOLE_MU, delta), rel=1e-6)
    assert accountants.epsilon_below(WHOLE, DELTA) == pytest.approx(price_of(WHOLE), rel=1e-11)
    assert accountants.epsilon_below(WHOLE, DELTA) < price_of(WHOLE)
    assert accountants.central_limit_epsilon(WHOLE, DELTA) == price_of(WHOLE)


def price_of(parts: list[Mechanism], selection: Selection | None = None) -> float:
    return compute_epsilon(parts, DELTA, "pld", selection=selection)


def test_a_central_limit_has_the_mu_of_bu_and_others() -> None:
    """mu^2 is the sum of count rate^2 (exp(1 / noise^2) - 1), and of 1 / noise^2 on all rows."""
    squares = 200 * 0.02**2 * math.expm1(1.0) + 4 / 30**2
    parts = [*SAMPLED, gaussians(30.0, count=4, name="bias")]
    price = accountants.central_limit_epsilon(parts, DELTA)
    assert price == pytest.approx(exact_epsilon(math.sqrt(squares)), rel=1e-6)


@pytest.mark.parametrize("parts", [WHOLE, SAMPLED, [*mixed(2.0), gaussians(30.0, name="bias")]])
def test_renyi_prices_equal_dp_accountings(parts: list[Mechanism]) -> None:
    level = logging.get_verbosity()
    logging.set_verbosity(logging.INFO)
    ours = compute_epsilon(parts, DELTA, "rdp")
    assert logging.get_verbosity() == logging.INFO, "the library is silenced only meanwhile"
    logging.set_verbosity(level)
    assert ours == pytest.approx(renyi(event_of(parts)), rel=1e-3)


@pytest.mark.parametrize("parts", [[gaussians(20.0, count=5)], BESIDE, SAMPLED])
def test_renyi_prices_of_a_selection_equal_dp_accountings(parts: list[Mechanism]) -> None:
    ours = compute_epsilon(parts, DELTA, "rdp", selection=best_of(5))
    assert ours == pytest.approx(renyi(event_of(parts, best_of(5))), rel=1e-3)


def test_early_renyi_prices_are_opacus_s_divergences_converted_as_in_2017() -> None:
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    spent = compute_rdp(q=0.02, noise_multiplier=1.0, steps=200, orders=orders)
    # 4 releases with noise 30 on all rows add a / (2 * 30^2) each
    spent = [r + 4 * a / 1800 for r, a in zip(spent, orders, strict=True)]
    theirs = min(r + math.log(1 / DELTA) / (a - 1) for r, a in zip(spent, orders, strict=True))
    ours = compute_epsilon([*SAMPLED, gaussians(30.0, count=4, name="b")], DELTA, "rdp_2017")
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_prv_prices_are_opacus_s() -> None:
    accountant = PRVAccountant()
    accountant.history = [(30.0, 1.0, 4), (1.0, 0.02, 200)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = accountant.get_epsilon(DELTA, eps_error=0.01)
    ours = compute_epsilon([*SAMPLED, gaussians(30.0, count=4, name="b")], DELTA, "prv")
    assert ours == pytest.approx(theirs, abs=0.03)


@pytest.mark.parametrize(
    "parts",
    [
        [gaussians(0.02, 0.3), gaussians(0.5, 0.2, name="b")],  # at first too expensive for `prv`
        [gaussians(30.0, 0.001, 3), gaussians(0.3, name="whole")],  # unsampled releases dominate
        [gaussians(1.0, 0.02, 200)],
    ],
)
def test_a_lower_bound_of_a_price_is_below_it_and_above_that_of_the_whole_releases(
    parts: list[Mechanism],
) -> None:
    below = accountants.epsilon_below(parts, DELTA)
    assert 0 < below <= compute_epsilon(parts, DELTA, "rdp")
    whole = [item for item in parts if item.sample_rate == 1]
    if whole:
        assert below >= accountants.epsilon_below(whole, DELTA)
    if parts[0].noise_multiplier == 1.0:
        assert 0.97 * price_of(parts) < below < price_of(parts)


def test_a_coarser_grid_overestimates() -> None:
    coarse = compute_epsilon(SAMPLED, DELTA, "pld", interval=0.05)
    assert price_of(SAMPLED) < coarse < 1.5 * price_of(SAMPLED)


@pytest.mark.parametrize(
    ("epsilon", "interval"),
    [
        (1e-9, 1e-7), (0.001, 1e-7), (0.01, 1e-6), (0.0199, 1e-6), (0.02, 2e-6), (0.05, 5e-6),
        (0.07, 5e-6), (0.5, 5e-5), (1.0, 1e-4), (4.99, 2e-4), (5.0, 5e-4), (8.0, 5e-4),
        (10.0, 1e-3), (30.0, 1e-3),
    ],
)  # fmt: skip
def test_a_grid_is_a_round_ten_thousandth_of_epsilon(epsilon: float, interval: float) -> None:
    assert accountants.pld_interval(epsilon) == interval


def test_a_mu_at_the_ends_of_what_floats_hold_has_a_price() -> None:
    assert accountants.gaussian_epsilon(0.0, DELTA) == 0.0
    assert accountants.gaussian_log_delta(0.0, 0.5) == -math.inf
    assert accountants.gaussian_epsilon(math.inf, DELTA) == math.inf
    assert accountants.gaussian_log_delta(math.inf, 0.5) == 0.0
    huge = accountants.gaussian_epsilon(1e160, DELTA)
    assert huge == math.inf or huge > 1e300


def test_the_price_of_a_selection_lies_between_one_run_and_the_theorem() -> None:
    """Both bounds of the price also hold if grids overflow, and for the smallest delta."""
    dear = [gaussians(0.03)]
    one, best = price_of(dear), price_of(dear, best_of(5))
    # Papernot and Steinke 2022: three times the epsilon, plus a term for the mean number of runs
    assert one < best < 3 * one + 3 * math.log(5)
    for parts in (SAMPLED, [*SAMPLED, gaussians(9.0, name="centre")]):
        prices = [
            compute_epsilon(parts, delta, "pld", selection=best_of(5))
            for delta in (SMALLEST_DELTA, 1e-5)
        ]
        assert compute_epsilon(parts, SMALLEST_DELTA, "pld") < prices[0] < math.inf
        assert prices[1] < prices[0]


def test_prv_of_a_hundred_thousand_steps_fits_in_memory_and_agrees() -> None:
    many = [gaussians(10.0, 0.002, 125_000)]
    prv = compute_epsilon(many, DELTA, "prv")
    assert price_of(many) * 0.99 < prv < price_of(many) * 1.2


# names of accountants


@pytest.mark.parametrize(
    ("parts", "accountant", "selection", "label"),
    [
        (WHOLE, "pld", None, "gaussian (exact mu-GDP)"),
        (WHOLE, "gaussian", None, "gaussian (exact mu-GDP)"),
        (SAMPLED, "pld", None, f"pld (dp-accounting {version('dp-accounting')})"),
        (WHOLE, "rdp", None, f"rdp (dp-accounting {version('dp-accounting')})"),
        (WHOLE, "rdp_2017", None, f"rdp_2017 (opacus {version('opacus')})"),
        (SAMPLED, "prv", None, f"prv (opacus {version('opacus')})"),
        (
            BESIDE,
            "pld",
            best_of(5),
            "gaussian (exact mu-GDP), selection by the privacy profile of one run",
        ),
        (
            BESIDE,
            "rdp",
            best_of(5),
            f"rdp (dp-accounting {version('dp-accounting')}), selection by Renyi divergences",
        ),
    ],
)
def test_a_price_names_accountant_library_and_version(
    parts: list[Mechanism], accountant: str, selection: Selection | None, label: str
) -> None:
    assert accountants.describe_accountant(parts, accountant, selection) == label


def test_only_gaussians_on_all_rows_without_a_selection_are_priced_exactly() -> None:
    assert accountants.exactly_priced(WHOLE)
    assert not accountants.exactly_priced(BESIDE, best_of(5))
    assert accountants.is_gaussian(BESIDE)
    assert not accountants.exactly_priced([*WHOLE, gaussians(8.0, 1 - 1e-9)])


@pytest.mark.parametrize(
    ("parts", "used", "selection", "others"),
    [
        (WHOLE, "pld", None, ["pld", "rdp", "prv"]),
        (SAMPLED, "pld", None, ["rdp", "prv"]),
        (SAMPLED, "rdp", None, ["pld", "prv"]),
        (BESIDE, "rdp", best_of(5), ["pld", "prv"]),
    ],
)
def test_every_other_accountant_checks_a_price(
    parts: list[Mechanism], used: str, selection: Selection | None, others: list[str]
) -> None:
    values, notes = accountants.check_epsilons(parts, DELTA, used, selection)
    assert [name.split()[0] for name in values] == others
    price = price_of(parts, selection)
    for name, value in values.items():
        if selection and name.startswith("prv"):
            assert value is None
            assert "selection by" not in name
            assert "best of repeated runs" in notes.pop(name)
        else:
            assert value is not None
            assert 0.98 * price < value < 1.4 * price
            assert ("selection by" in name) == (selection is not None)
    assert notes == {}


# several fits


@pytest.mark.parametrize("times", [1, 3])
def test_fits_on_all_rows_together_have_root_times_the_mu(times: int) -> None:
    together = accountants.price_together(WHOLE, DELTA, times)
    assert together == pytest.approx(exact_epsilon(math.sqrt(times) * WHOLE_MU), rel=1e-6)


@pytest.mark.parametrize(
    ("parts", "selection"), [(SAMPLED, None), (mixed(2.0), None), (SAMPLED, best_of(5))]
)
def test_sampled_fits_together_compose_by_renyi_divergences(
    parts: list[Mechanism], selection: Selection | None
) -> None:
    event = event_of(parts, selection)
    for times in (1, 3):
        together = accountants.price_together(parts, DELTA, times, selection)
        assert together == pytest.approx(renyi(*[event] * times), rel=1e-3)


@pytest.mark.parametrize(
    "parts", [[gaussians(20.0, count=5)], BESIDE, [gaussians(40.0), gaussians(3.0, name="c")]]
)
def test_selections_together_cost_less_than_their_sum_and_more_than_one(
    parts: list[Mechanism],
) -> None:
    kind, times = best_of(5), 3
    alone = price_of(parts, kind)
    once, together = (accountants.price_together(parts, DELTA, k, kind) for k in (1, times))
    assert once == pytest.approx(alone, rel=5e-3)
    apart = compute_epsilon(parts, DELTA / times, "pld", selection=kind)
    assert alone < together < times * apart
    # a score that does not read the data selects a run just as well
    assert together > accountants.price_together(parts, DELTA, times)
    assert together < renyi(*[event_of(parts, kind)] * times)


KINDS = [
    Fits(mechanisms=tuple(WHOLE), times=2),
    Fits(mechanisms=tuple(SAMPLED), times=3),
    Fits(mechanisms=(gaussians(20.0, count=5),), times=2, selection=best_of(10)),
]


def test_kinds_of_fits_together_are_one_composition() -> None:
    whole, sampled, searched = KINDS
    events = [event_of(list(fits.mechanisms), fits.selection) for fits in KINDS]
    price, exact = accountants.all_together([whole, whole], DELTA)
    assert exact
    assert price == pytest.approx(exact_epsilon(2 * WHOLE_MU), rel=1e-6)
    twice, _ = accountants.all_together([sampled, sampled], DELTA)
    assert twice == pytest.approx(renyi(*[events[1]] * 2 * sampled.times), rel=2e-3)
    for kinds in ([sampled], [whole, sampled], [searched], KINDS):
        price, exact = accountants.all_together(kinds, DELTA)
        assert not exact
        composed = [events[KINDS.index(fits)] for fits in kinds for _ in range(fits.times)]
        assert price == pytest.approx(renyi(*composed), rel=2e-3)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_price_of_kinds_depends_on_no_order_and_no_names(order: tuple[int, ...]) -> None:
    usual, _ = accountants.all_together(KINDS, DELTA)
    shuffled, _ = accountants.all_together([KINDS[place] for place in order], DELTA)
    assert shuffled == pytest.approx(usual, rel=1e-9)


def test_a_kind_may_be_listed_in_parts_and_under_other_names() -> None:
    (part,) = SAMPLED
    whole, _ = accountants.all_together([KINDS[1], KINDS[0]], DELTA)
    parts = [
        Fits(mechanisms=(part,), times=1),
        Fits(mechanisms=(gaussians(1.0, 0.02, 400, "other"),), times=1),
        KINDS[0],
    ]
    split, _ = accountants.all_together(parts, DELTA)
    assert split == pytest.approx(whole, rel=1e-9)


# groups and attacks


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_epsilon_of_a_group_follows_from_mu_times_its_size(epsilon: float) -> None:
    mu = float(brentq(lambda m: exact_epsilon(m) - epsilon, 0.01, 5.0, xtol=1e-12))
    assert accountants.worth_to_group(epsilon, DELTA, 1) == pytest.approx(epsilon, rel=1e-6)
    assert accountants.worth_to_group(epsilon, DELTA, 2) == pytest.approx(
        exact_epsilon(2 * mu), rel=1e-6
    )


def test_sampled_groups_above_a_hundred_have_no_price_and_whole_ones_have() -> None:
    few = [gaussians(20.0, 0.02, 2)]
    assert accountants.group_epsilon(few, DELTA, 100) < math.inf
    assert accountants.group_epsilon(few, DELTA, 101) == math.inf
    assert accountants.group_epsilon([gaussians(400.0)], DELTA, 101) == pytest.approx(
        exact_epsilon(101 / 400), rel=1e-6
    )
    allowed = bound_attacks(few, [0.01], delta=DELTA, epsilon=1.0, size=100)
    assert 0.5 < allowed.balanced_accuracy < 1.0


@pytest.mark.parametrize("rate", [1.5, -0.1, math.nan])
def test_a_false_positive_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(PrivacyError, match=f"rate {rate!r}: must lie between 0 and 1"):
        bound_attacks(WHOLE, [0.1, rate], delta=DELTA, epsilon=1.0)


def test_a_selection_of_an_epsilon_beyond_floats_allows_everything() -> None:
    """exp(600) is a float and its bound is still below 1; with more epsilon nothing is computed."""
    allowed = [
        bound_attacks(BESIDE, [0.0, 0.01], best_of(5), delta=DELTA, epsilon=epsilon)
        for epsilon in (0.5, 600.0, 600.1)
    ]
    assert allowed[0].true_positives[0] == pytest.approx(DELTA, abs=1.1e-6)
    assert allowed[1].true_positives[0] == pytest.approx(DELTA, abs=1.1e-6)
    assert allowed[2].true_positives == (1.0, 1.0)
