"""The ledger's total in a bundle is at least the cost of the release itself."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.errors import DataError
from dpprobe.privacy.accountants import gaussian_epsilon
from dpprobe.privacy.plan import Plan
from dpprobe.release.parts.spent.measure import check_ledger
from tests.support.mechanisms import best_of, gaussians, made_plan
from tests.support.refusals import check_tokens, refuses
from tests.support.releases import watched

PLAN = made_plan([gaussians(8.0)], n=1000)
SAMPLED = made_plan([gaussians(8.0, rate=0.1, count=9)], n=1000)
SEARCHED = made_plan([gaussians(8.0)], n=1000, selection=best_of(3.0))
BLOCK: dict[str, Any] = {
    "entry": 2,
    "releases": 1,
    "unit": "image",
    "delta": 1e-5,
    "epsilon": 1.0,
    "exact": True,
}
TESTED = {"delta": 1e-5, "epsilon": 2.0}


def state(plan: Plan = PLAN, evaluation: Any = None, **changes: Any) -> str:
    """Returns the words of the ledger check of a statement with a given test result."""
    said, passed = check_ledger({"ledger": BLOCK | changes, "evaluation": evaluation}, plan)
    assert passed
    return said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ("entry 2", "1 release", "exactly epsilon 1")),
        ({"exact": False}, ("entry 2", "1 release", "at most epsilon 1")),
        ({"exact": False, "epsilon": 7.5}, ("1 release", "at most epsilon 7.5")),
        ({"releases": 3, "epsilon": 7.5}, ("3 releases", "exactly epsilon 7.5")),
        ({"entry": 9, "releases": 12}, ("entry 9", "12 releases", "exactly epsilon 1")),
    ],
)
def test_a_possible_total_is_stated(changes: dict[str, Any], said: tuple[object, ...]) -> None:
    check_tokens(state(**changes), *said)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"unit": "patient"}, ("unit", "patient", "image")),
        ({"delta": 1e-6}, ("delta", "1e-06", "1e-05")),
        ({"entry": 0}, ("entry", 0, 1)),
        ({"releases": True}, ("releases", True, 1)),
        ({"exact": 1}, ("exact", "true", "false")),
        ({"epsilon": "1"}, ("epsilon", "'1'")),
        ({"more": 1}, ("ledger",)),
    ],
)
def test_an_impossible_block_is_named(changes: dict[str, Any], fault: tuple[object, ...]) -> None:
    with refuses(DataError, *fault):
        state(**changes)


@pytest.mark.parametrize("releases", [1, 3])
def test_a_total_is_not_below_the_release(releases: int) -> None:
    """A tolerance of 0.01% allows for differences between processors."""
    state(releases=releases, epsilon=0.99991)
    with refuses(DataError, "epsilon 0.9998", 1):
        state(releases=releases, epsilon=0.9998)


def test_the_exact_total_of_one_release_is_its_price() -> None:
    state(epsilon=1.00009)
    state(epsilon=1.0002, releases=2)
    state(epsilon=1.0002, exact=False)
    with refuses(DataError, "epsilon 1.0002", 1):
        state(epsilon=1.0002)


@pytest.mark.parametrize("plan", [SAMPLED, SEARCHED], ids=["samples", "a search"])
def test_sampled_and_searched_releases_have_only_a_bound(plan: Plan) -> None:
    state(plan, exact=False)
    with refuses(DataError, "exact"):
        state(plan)


def test_test_units_pay_at_the_same_delta() -> None:
    """A test result of epsilon 2 makes a total of 1 impossible, unless it has another delta."""
    assert "epsilon 2" in state(evaluation=TESTED, epsilon=2.0)
    with refuses(DataError, "epsilon 1", 2):
        state(evaluation=TESTED)
    assert "epsilon 1" in state(evaluation=TESTED | {"delta": 1e-6})
    assert "exactly" in state(SAMPLED, evaluation=TESTED, epsilon=2.0), "test sums are exact"


def test_all_that_test_units_pay_counts_together() -> None:
    """Here only a monitor uses test units, with its Gaussian epsilon."""
    monitor = watched() | {"epsilon": 2.0, "epsilon_target": 2.0, "delta": 1e-5}
    noise = monitor["mechanisms"][0]["noise_multiplier"]
    price = gaussian_epsilon(1 / noise, 1e-5)
    values = {"evaluation": None, "monitor": monitor}
    ledger = BLOCK | {"releases": 2, "epsilon": max(price, 2.0)}
    assert check_ledger({**values, "ledger": ledger}, PLAN)[1]
    ledger["epsilon"] *= 0.99
    with refuses(DataError, "2"):
        check_ledger({**values, "ledger": ledger}, PLAN)
