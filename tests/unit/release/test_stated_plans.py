"""Bounds of a stated plan, and its epsilon for a patient."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import DataError, PrivacyError
from dpprobe.files.json_files import read_json
from dpprobe.privacy.accountants import gaussian_epsilon, gaussian_mu
from dpprobe.privacy.plan import Patients, Plan
from dpprobe.release import bundle, stated_plans
from dpprobe.release.stated_plans import agree, price_tested
from dpprobe.release.verification.verify import read_promise
from tests.support.bundles import write_example
from tests.support.mechanisms import gaussians
from tests.support.refusals import check_tokens, refuses


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = write_example(tmp_path_factory.mktemp("bundle") / "whole")
    return stated_plans.read_plan(read_json(folder / bundle.STATEMENT_FILE))[1]


WITHIN = [(0.01, 1e-5), (100.0, 1e-5), (1, 1e-10), (1, 1 / 1501), (1, 1 / 1500)]


@pytest.mark.parametrize(
    ("epsilon", "delta", "fault"),
    [
        *((*each, None) for each in WITHIN),
        (0.00999, 1e-5, ("epsilon 0.00999", "delta 1e-05")),
        (100.1, 1e-5, ("epsilon 100.1", "delta 1e-05")),
        (1, 9.99e-11, ("delta 9.99e-11",)),
        (1, 1 / 1499, ("1/n", "n = 1500")),
    ],
)
def test_a_plan_is_priced_within_the_bounds(
    plan: Plan, epsilon: float, delta: float, fault: tuple[object, ...] | None
) -> None:
    asked = replace(plan, epsilon=epsilon, delta=delta, realised_epsilon=epsilon)
    if fault is None:
        assert stated_plans.require_bounded(asked) is asked
        return
    with refuses(DataError, *fault):
        stated_plans.require_bounded(asked)


def test_a_patient_pays_as_a_group_of_their_images(plan: Plan) -> None:
    """The mu of k images is k times the mu of one image."""
    worth = gaussian_epsilon(3 * gaussian_mu(plan.mechanisms), plan.delta)
    for factor, right in ((1, True), (1 + 5e-5, True), (1 - 5e-5, True), (1.0002, False)):
        of_three = replace(plan, patients=Patients(images=3, epsilon=worth * factor))
        if right:
            stated_plans.check_patients(of_three)
        else:
            with refuses(PrivacyError, "patients", "3 images"):
                stated_plans.check_patients(of_three)
    for free in (None, Patients(images=None, epsilon=None)):
        stated_plans.check_patients(replace(plan, patients=free))
    for images, epsilon in ((3, None), (None, 2.0)):  # an epsilon needs a number of images
        with refuses(PrivacyError, "patients", epsilon, images):
            stated_plans.check_patients(
                replace(plan, patients=Patients(images=images, epsilon=epsilon))
            )


def test_the_first_lines_of_a_statement_equal_those_of_a_private_release(tmp_path: Path) -> None:
    folder = write_example(tmp_path / "whole")
    values = read_json(folder / bundle.STATEMENT_FILE)
    facts = bundle.read_facts(folder)
    said, read = read_promise(folder, facts)
    assert read == values
    check_tokens(said, "epsilon 1", "delta 1e-05")
    for change, fault in (
        ({"mode": "benchmark"}, ("mode", "'benchmark'", "release")),
        ({"private": False}, ("private", "true")),
        ({"private": 1}, ("private", "true")),
    ):
        (folder / bundle.STATEMENT_FILE).write_text(json.dumps(values | change))
        with refuses(DataError, *fault):
            read_promise(folder, facts)


# Recomputed values must agree with the stated values, up to the last digits of numbers.


NUMBERS = st.floats(1e-3, 1e6) | st.integers(1, 10**6)
VALUES = st.recursive(
    NUMBERS | st.none() | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=6,
)


def scaled(values: Any, factor: float) -> Any:
    if isinstance(values, dict):
        return {key: scaled(value, factor) for key, value in values.items()}
    if isinstance(values, list):
        return [scaled(value, factor) for value in values]
    return values if isinstance(values, str | None) else values * factor


def numbers(values: Any) -> int:
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list):
        return sum(map(numbers, values))
    return not isinstance(values, str | None)


@given(VALUES)
def test_values_agree_with_themselves_and_with_other_last_digits(values: Any) -> None:
    assert agree(values, values)
    assert agree(values, scaled(values, 1 + 9e-5))
    assert agree(scaled(values, 1 + 9e-5), values)
    assert agree(values, scaled(values, 1 + 2e-4)) == (numbers(values) == 0)
    assert agree(values, scaled(values, 1.05), tolerance=0.1)


@pytest.mark.parametrize(
    ("value", "stated"),
    [
        ([1, 2], [1]),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": 1}),
        ("a", "b"),
        ("1", 1),
        (1, "1"),
        (1.0, True),
        (None, 0),
        (0.0, None),
        (0.0, 2e-9),
        ([[1.0]], [[1.1]]),
    ],
)
def test_other_forms_and_values_do_not_agree(value: Any, stated: Any) -> None:
    assert not agree(value, stated)


def test_agree_treats_tuples_as_lists_and_tiny_numbers_as_zero() -> None:
    assert agree((1, (2.0,)), [1, [2]])
    assert agree(0.0, 9e-10)


@pytest.mark.parametrize("stated", [math.nan, math.inf, {"a": 1}, [1]])
def test_a_stated_value_that_is_not_a_number_is_refused(stated: Any) -> None:
    with refuses(DataError, repr(stated)):
        agree(1.0, stated)


# The epsilon of parts that used test units, recomputed here and by other libraries.


@pytest.fixture
def tested() -> Plan:
    """Returns a plan of one release with noise 2, whose epsilon is that of mu = 1/2."""
    epsilon = gaussian_epsilon(0.5, 1e-5)
    return Plan(
        mechanisms=(gaussians(2.0),),
        n=1000,
        unit="image",
        epsilon=epsilon * (1 + 1e-7),
        delta=1e-5,
        accountant="pld",
        realised_epsilon=epsilon,
    )


def test_the_price_equals_that_of_a_gaussian(tested: Plan) -> None:
    assert price_tested(tested) == pytest.approx(gaussian_epsilon(0.5, 1e-5), rel=2e-6)


@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_another_epsilon_or_target_is_named(tested: Plan, factor: float) -> None:
    wrong = tested.realised_epsilon * factor
    larger = max(wrong, tested.epsilon)
    with refuses(DataError, f"epsilon {wrong:g}"):
        price_tested(replace(tested, epsilon=larger, realised_epsilon=wrong))
    with refuses(DataError, "epsilon_target"):
        price_tested(replace(tested, epsilon=1.001 * tested.epsilon))


@pytest.mark.parametrize(
    ("shares", "right"),
    [
        ([], True),
        ([None], True),
        ([None, 2.0], True),
        ([0.9901], True),
        ([0.98], False),
        ([2.0, 0.98], False),
    ],
)
def test_no_other_library_computes_clearly_less(
    tested: Plan, shares: list[float | None], right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library without an answer, or with a looser bound, is no contradiction."""

    def compare(plan: Plan) -> Any:
        assert plan.realised_epsilon <= plan.epsilon
        found = {
            str(place): each and each * plan.realised_epsilon for place, each in enumerate(shares)
        }
        return "", found, {}

    monkeypatch.setattr(stated_plans, "second_opinions", compare)
    if right:
        price_tested(tested)
    else:
        with refuses(DataError, f"epsilon {tested.realised_epsilon:.6g}"):
            price_tested(tested)
