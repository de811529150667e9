"""Counts, weights and epsilons of test units, shared by release parts."""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import PrivacyError
from dpprobe.privacy.plan import Mechanism, Plan, Selection, check_mechanisms, state_together
from dpprobe.release import counted_units
from tests.support.refusals import check_tokens, refusal_of, refuses
from tests.support.shown_scores import draw_of, head, of_test_rows
from tests.unit.release.ledger.test_ledger import gaussian

WANTED = (gaussian(1.0, name="a"), gaussian(3.0, 2, name="b"))


def plan_of(*mechanisms: Mechanism, n: int = 100, **more: Any) -> Plan:
    facts = {"unit": "image", "epsilon": 1.0, "delta": 1e-5, "realised_epsilon": 0.98765, **more}
    return Plan(mechanisms=mechanisms, n=n, accountant="pld", **facts)


def refused(plan: Plan, wanted: tuple[Mechanism, ...]) -> bool:
    said = refusal_of(check_mechanisms, plan, wanted)
    if said is not None:
        check_tokens(said, "plan", ", ".join(item.name for item in wanted))
    return said is not None


@given(st.floats(1e-3, 1e3), st.floats(1e-6, 0.5))
def test_a_plan_has_the_wanted_mechanisms_up_to_one_factor_of_all_noise(
    factor: float, off: float
) -> None:
    scaled = [item.scale_noise(factor) for item in WANTED]
    assert not refused(plan_of(*scaled), WANTED)
    for place in (0, 1):  # one mechanism has another share of the budget
        one = list(scaled)
        one[place] = one[place].scale_noise(1 + off)
        assert refused(plan_of(*one), WANTED), f"noise of {one[place].name} is {1 + off} times"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "c"},
        {"sensitivity": 1.0},
        {"count": 3},
        {"sample_rate": 0.5},
    ],
)
def test_a_plan_of_other_mechanisms_is_refused(change: dict[str, Any]) -> None:
    first, second = WANTED
    for changed in ((replace(first, **change), second), (first, replace(second, **change))):
        assert refused(plan_of(*changed), WANTED), changed
    assert refused(plan_of(first), WANTED)
    assert refused(plan_of(*WANTED, gaussian(1.0, name="c")), WANTED)
    assert refused(plan_of(second, first), WANTED)
    told = replace(first, released="the same sum in other words")
    assert not refused(plan_of(told, second), WANTED), "a description is no fact"


def test_a_plan_without_a_promise_or_with_a_search_is_refused() -> None:
    """One head has one draw of noise; noise for the best of several fits has another epsilon."""
    first = WANTED[:1]
    plain = plan_of(*first)
    searched = replace(plain, selection=Selection(mean=4, repeated=("a",)))
    public = plan_of(gaussian(0.0, name="a"), epsilon=math.inf, realised_epsilon=math.inf)
    assert [refused(each, first) for each in (plain, searched, public)] == [False, True, True]


def test_releases_are_opened_for_one_head_and_a_fitting_plan() -> None:
    one = head(2, seed=5)
    two = replace(
        one, weights=np.concatenate([one.weights] * 2), seeds=(1, 2), transforms=one.transforms * 2
    )
    plan, rows = plan_of(*WANTED), of_test_rows(np.zeros((1, 3)), np.zeros(1, np.int64))
    opened = counted_units.open_releases(draw_of(one, rows), plan, WANTED)
    assert opened.seeds == (5,)
    with refuses(PrivacyError, "a", "2 heads"):
        counted_units.open_releases(draw_of(two, rows), plan, WANTED)
    with refuses(PrivacyError, "plan", "a"):
        counted_units.open_releases(draw_of(one, rows), plan, WANTED[:1])


def test_all_that_reads_the_test_units_is_priced_together_as_another_library_does() -> None:
    first = plan_of(gaussian(5.0, name="a"), epsilon=1.0, realised_epsilon=0.9)
    second = plan_of(gaussian(9.0, 2, name="b"), epsilon=0.5, realised_epsilon=0.4)
    assert counted_units.compose_test_price() is None
    assert counted_units.compose_test_price(None, None) is None
    assert counted_units.compose_test_price(None, second) is second
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(GaussianDpEvent(5.0)).compose(GaussianDpEvent(9.0), 2)
    for plans in itertools.permutations((first, None, second)):
        together = counted_units.compose_test_price(*plans)
        assert together is not None
        order = [plan.mechanisms[0].name for plan in plans if plan]
        assert [item.name for item in together.mechanisms] == order
        assert together.epsilon == 1.5, "the sum of what was asked"
        assert together.accountant == "pld"
        expected = accountant.get_epsilon(1e-5)
        assert together.realised_epsilon == pytest.approx(expected, rel=1e-3)


def test_the_joint_price_covers_all_plans() -> None:
    one = plan_of(gaussian(5.0, name="a"), realised_epsilon=0.9)
    assert state_together(one, one) is None
    assert state_together(one, None) is None
    more = (*one.mechanisms, gaussian(9.0))
    both = replace(one, mechanisms=more, epsilon=2.0, realised_epsilon=1.25)
    assert state_together(one, both) == 1.25


def test_a_statement_s_block_has_the_plan_s_numbers() -> None:
    block = counted_units.priced_values(plan_of(*WANTED, epsilon=2.0, delta=1e-6, n=77))
    items = block.pop("mechanisms")
    assert block == {"n": 77, "epsilon": 0.98765, "epsilon_target": 2.0, "delta": 1e-6}
    assert [(one["name"], one["noise_multiplier"], one["count"]) for one in items] == [
        ("a", 1.0, 1),
        ("b", 3.0, 2),
    ]


def features_of(rows: int, units: Any = None, agreed: int | None = None) -> Any:
    names = None if units is None else np.array(units)
    shown = of_test_rows(np.zeros((rows, 2)), np.zeros(rows, np.int64), names)
    return replace(shown, public_test_n=agreed)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_each_unit_s_rows_weigh_one_together(drawn: list[int]) -> None:
    codes = np.unique(drawn, return_inverse=True)[1]
    number = len(set(drawn))
    given_weights = counted_units.weights_of_rows(
        features_of(len(drawn), codes), plan_of(*WANTED, n=number, unit="patient")
    )
    assert np.bincount(codes, given_weights) == pytest.approx(np.ones(number))
    for code in range(number):
        assert np.unique(given_weights[codes == code]).size == 1, "rows of a unit weigh alike"


@pytest.mark.parametrize(
    ("unit", "units", "agreed", "n", "weights"),
    [
        ("image", None, None, 5, [1.0] * 5),
        ("image", [0, 0, 1, 2, 2], None, 5, [1.0] * 5),  # each image is a unit
        ("image", None, 9, 9, [1.0] * 5),  # several sites
        ("patient", [0, 0, 1, 2, 2], None, 3, [0.5, 0.5, 1.0, 0.5, 0.5]),
        ("patient", [0, 0, 1, 2, 2], 9, 9, [0.5, 0.5, 1.0, 0.5, 0.5]),
        ("patient", [3, 1, 0, 2, 4], None, 5, [1.0] * 5),
        ("image", [0, 0, 1, 2, 2], None, 3, "5"),
        ("patient", [0, 0, 1, 2, 2], None, 5, "3"),
        ("patient", None, None, 5, "none"),
        ("image", None, 9, 5, "9"),
    ],
)
def test_the_number_of_units_is_the_plan_s(
    unit: str, units: list[int] | None, agreed: int | None, n: int, weights: list[float] | str
) -> None:
    features, plan = features_of(5, units, agreed), plan_of(*WANTED, n=n, unit=unit)
    if isinstance(weights, str):
        with refuses(PrivacyError, n, unit, weights):
            counted_units.weights_of_rows(features, plan)
    else:
        assert counted_units.weights_of_rows(features, plan).tolist() == weights


def test_scores_come_from_the_first_head() -> None:
    """This kind of head returns a row unchanged."""
    rows = np.array([[0.5, 2.0], [-1.0, 3.0], [0.0, 0.0]])
    one, other = head(2), head(2, seed=2)
    both = replace(
        one,
        weights=np.concatenate([one.weights, 7 + other.weights]),
        seeds=(1, 2),
        transforms=one.transforms * 2,
    )
    shown = of_test_rows(rows, np.zeros(3, np.int64))
    np.testing.assert_array_equal(counted_units.score_test_rows(both, shown), rows)


def test_a_row_is_null_if_any_score_is_not_finite() -> None:
    scores = np.array([[0, 1], [math.nan, 1], [1, math.inf], [-math.inf, 0], [2, 2]])
    assert counted_units.find_usable(scores).tolist() == [True, False, False, False, True]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.integers(1, 10**6))
def test_steps_are_whole_never_above_the_value_and_one_is_whole(drawn: list[float], n: int) -> None:
    values = np.array([*drawn, 0.0, 1.0])
    steps, step = counted_units.count_steps(values, n)
    assert np.array_equal(steps, np.floor(steps))
    assert (steps * step <= values).all(), "rounding lengthens no sum"
    assert (values - steps * step < step).all()
    assert steps[-1] * step == 1.0
    assert n * steps[-1] < 2**53, "a float64 holds the sum over all units exactly"


EDGES = np.array([-9, -0.5, 0.0, 0.3, 9]), np.array([-9, 0.1, 0.2, 1.0, 9])


def count_slowly(
    places: npt.NDArray[Any], present: Any, units: npt.NDArray[Any], edges: Any
) -> list[list[float]]:
    counts = []
    for label, limits in enumerate(edges):
        inner, bins = list(limits[1:-1]), len(limits) - 1
        row = [0.0] * (bins if present is None else 2 * bins)
        for place, unit in enumerate(units):
            found = bisect.bisect_right(inner, places[place, label])
            absent = present is not None and not present[place, label]
            row[found + bins * absent] += unit
        counts.append(row)
    return counts


@given(st.integers(0, 12), st.booleans(), st.randoms(use_true_random=False))
def test_rows_are_counted_by_label_and_bin(count: int, flags: bool, chance: Any) -> None:
    """A value at an edge belongs to the bin above; values beyond all edges, to the outer bins."""
    known = [-20.0, -0.5, 0.0, 0.1, 0.15, 0.2, 0.3, 0.7, 1.0, 9.0, 20.0]
    places = np.array([[chance.choice(known) for _ in EDGES] for _ in range(count)])
    places = places.reshape(count, len(EDGES))
    present = np.array([[chance.random() < 0.5 for _ in EDGES] for _ in range(count)], bool)
    present = present.reshape(count, len(EDGES))
    units = np.array([float(chance.randrange(4)) for _ in range(count)])
    given_flags = present if flags else None
    found = counted_units.label_counts(places, given_flags, units, EDGES)
    assert found.dtype == np.float64
    assert found.tolist() == count_slowly(places, given_flags, units, EDGES)


def test_a_bin_s_middle_is_the_middle_in_asinh_and_outermost_bins_have_their_inner_edge() -> None:
    edges = np.array([-50, -1, -0.01, 0.0, 0.02, 3, 70.0])
    middles = counted_units.bin_middles(edges)
    assert middles[[0, -1]] == pytest.approx([-1, 3])
    expected = [math.asinh(100 * edge) for edge in edges]
    for place in range(1, len(middles) - 1):
        middle = (expected[place] + expected[place + 1]) / 2
        assert middles[place] == pytest.approx(math.sinh(middle) / 100)
