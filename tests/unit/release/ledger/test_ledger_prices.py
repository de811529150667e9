"""The total cost of bookings to one unit, compared with other libraries and brute force."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, RepeatAndSelectDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from dpprobe.privacy.plan import Selection
from dpprobe.release.ledger.ledger_file import Booking, check_delta
from dpprobe.release.ledger.ledger_prices import Spent, bound_bookings, compose_bookings
from tests.support.mechanisms import exact_epsilon
from tests.support.refusals import check_tokens, refusal_of
from tests.unit.release.ledger.test_ledger import DELTA, booking, gaussian, part

SAMPLED = replace(gaussian(2.0, 20, name="sampled"), sample_rate=0.1)
RATES = (0.001, 0.01, 0.1)


def rounded_up(spent: Spent, epsilon: float) -> bool:
    return epsilon * (1 - 1e-9) <= spent.epsilon <= epsilon * (1 + 2e-5)


SIGMAS = st.sampled_from([3.0, 4.5, 7.0, 20.0])


@st.composite
def releases(draw: Any) -> list[Booking]:
    """Draws bookings of training data, test data or both, each in one of three splits."""
    made = []
    for number in range(draw(st.integers(1, 5))):
        sides = draw(st.sampled_from(["train", "test", "both"]))
        parts = [
            part(side, gaussian(draw(SIGMAS), draw(st.integers(1, 3))))
            for side in ("train", "test")
            if sides in (side, "both")
        ]
        made.append(booking(str(number), *parts, split=draw(st.sampled_from("xyz"))))
    return made


def find_worst(bookings: Sequence[Booking]) -> float:
    """Returns the largest mu of a unit, over all assignments to train or test in each split."""
    splits = sorted({each.split for each in bookings})
    worst = 0.0
    for sides in itertools.product(("train", "test"), repeat=len(splits)):
        on = dict(zip(splits, sides, strict=True))
        squares = [
            item.count / item.noise_multiplier**2
            for each in bookings
            for one in each.parts
            if one.side == on[each.split]
            for item in one.mechanisms
        ]
        worst = max(worst, math.sqrt(sum(squares)))
    return worst


@settings(max_examples=40)
@given(releases(), st.randoms(use_true_random=False))
def test_a_unit_pays_for_the_worst_of_its_possible_sides(
    bookings: list[Booking], chance: Any
) -> None:
    mu = find_worst(bookings)
    spent = compose_bookings(bookings, DELTA)
    assert rounded_up(spent, exact_epsilon(mu)), f"{spent} for mu {mu}"
    assert spent.exact
    assert spent.entries == len(bookings)
    bound = bound_bookings(bookings, RATES, DELTA)
    attacks = [ndtr(mu + ndtri(rate)) for rate in RATES]
    assert bound.true_positives == pytest.approx(attacks, abs=2e-6)
    assert bound.balanced_accuracy == pytest.approx(ndtr(mu / 2), abs=2e-6)
    order = chance.sample(bookings, len(bookings))
    assert compose_bookings(order, DELTA) == spent


def test_without_releases_epsilon_is_zero_and_attacks_only_guess() -> None:
    assert compose_bookings([], DELTA) == Spent(epsilon=0.0, exact=True, entries=0)
    bound = bound_bookings([], RATES, DELTA)
    assert (bound.balanced_accuracy, bound.true_positives, bound.exact) == (0.5, RATES, True)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(SIGMAS, st.sampled_from(["a/v 1", "a/v 2", "a/v 10", "a/w 1", None])),
        min_size=1,
        max_size=4,
    )
)
def test_a_unit_in_cohorts_of_one_chain_pays_for_sums_that_meet(
    made: list[tuple[float, str | None]],
) -> None:
    """By Cauchy, the squared sum of k values 1 / sigma is at most k times the sum of squares."""
    bookings = [
        replace(
            booking(str(n), part("train", gaussian(sigma), gaussian(9.0, 2, name="own"))),
            place=place,
        )
        for n, (sigma, place) in enumerate(made)
    ]
    chains = Counter(place and place.split()[0] for _, place in made)
    squares = [
        (chains[place.split()[0]] if place else 1) / sigma**2 + 2 / 81 for sigma, place in made
    ]
    spent = compose_bookings(bookings, DELTA)
    assert rounded_up(spent, exact_epsilon(math.sqrt(sum(squares)))), made
    assert spent.exact == all(chains[name] == 1 for name in chains if name)
    assert bound_bookings(bookings, RATES, DELTA).exact == spent.exact


def test_test_results_and_sampled_sums_of_a_chain_have_noise_of_their_own() -> None:
    """Later cohorts reread only training sums that are unsampled and released once."""
    parts = part("train", SAMPLED), part("test", gaussian(2.0))
    chain = [replace(booking(str(n), *parts), place=f"a/v {n}") for n in (1, 2)]
    alone = [replace(each, place=None) for each in chain]
    assert compose_bookings(chain, DELTA).epsilon == compose_bookings(alone, DELTA).epsilon


def test_a_split_with_one_side_is_known_exactly_and_the_worse_of_two_is_not() -> None:
    """The bound on attacks is exact only if the same unit is most at risk at every rate."""
    one = booking("a", part("train", gaussian(5.0)))
    two = booking("b", part("train", gaussian(5.0)), part("test", gaussian(7.0)))
    assert bound_bookings([one], RATES, DELTA).exact
    assert not bound_bookings([two], RATES, DELTA).exact


def test_sampled_sums_are_bounded_as_dp_accounting_does() -> None:
    together = [booking("a", part("train", SAMPLED)), booking("b", part("train", gaussian(6.0)))]
    accountant = PLDAccountant(value_discretization_interval=5e-4)
    accountant.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 20)
    accountant.compose(GaussianDpEvent(6.0))
    for delta in (DELTA, 1e-3):
        spent = compose_bookings(together, delta)
        assert spent.epsilon == pytest.approx(accountant.get_epsilon(delta), rel=2e-3)
        assert not spent.exact


@pytest.mark.parametrize("more", [(), (5.0,), (5.0, 8.0)])
def test_a_search_and_other_releases_are_bounded_by_renyi_divergences(
    more: tuple[float, ...],
) -> None:
    """A search without other releases costs its plan's epsilon, at most the Renyi bound."""
    search = part("train", gaussian(9.0), selection=Selection(mean=4, repeated=("gradients",)))
    bookings = [booking("search", search)]
    bookings += [booking(str(sigma), part("train", gaussian(sigma))) for sigma in more]
    accountant = RdpAccountant([*range(2, 65), 80, 100, 128, 256, 512])
    accountant.compose(RepeatAndSelectDpEvent(GaussianDpEvent(9.0), 4, 1))
    for sigma in more:
        accountant.compose(GaussianDpEvent(sigma))
    spent = compose_bookings(bookings, DELTA)
    assert not spent.exact
    limit = accountant.get_epsilon(DELTA)
    if more:
        assert spent.epsilon == pytest.approx(limit, rel=2e-2)
    else:
        assert spent.epsilon == pytest.approx(search.epsilon, rel=1e-5)
        assert spent.epsilon <= limit
    # only the epsilon of a search is known: the bound is for any (epsilon, delta) mechanism
    bound = bound_bookings(bookings, RATES, DELTA)
    assert not bound.exact
    factor = math.exp(spent.epsilon)
    attacks = [min(factor * rate + DELTA, 1 - (1 - DELTA - rate) / factor) for rate in RATES]
    assert bound.true_positives == pytest.approx(attacks, abs=2e-6)


def test_a_total_is_stated_as_a_block() -> None:
    spent = Spent(epsilon=1.5, exact=False, entries=3)
    assert spent.to_block(entry=2, unit="patient", delta=1e-6) == {
        "entry": 2,
        "releases": 3,
        "unit": "patient",
        "delta": 1e-6,
        "epsilon": 1.5,
        "exact": False,
    }


def test_a_delta_has_both_its_limits() -> None:
    for delta in (1e-10, 1e-5, 0.999):
        check_delta(delta)
    for delta in (0.0, 9.9e-11, 1.0, math.nan, -1e-5):
        said = refusal_of(check_delta, delta)
        assert said
        check_tokens(said, f"delta {delta!r}", "1e-10 to 1")
        assert refusal_of(compose_bookings, [booking()], delta) == said
        assert refusal_of(bound_bookings, [booking()], RATES, delta) == said
