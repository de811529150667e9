"""Bounds of a stated plan, and its price to a patient."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpprobe.artifacts import read_json
from dpprobe.errors import DataError, PrivacyError
from dpprobe.privacy.accountants import gaussian_epsilon, gaussian_mu
from dpprobe.privacy.plan import Patients, Plan
from dpprobe.release import bundle, stated_plans
from dpprobe.release.verification.verify import read_statement
from tests.support.bundles import write_example


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = write_example(tmp_path_factory.mktemp("bundle") / "whole")
    return stated_plans.read_plan(read_json(folder / bundle.STATEMENT_FILE))[1]


def stating(plan: Plan, epsilon: float, delta: float) -> Plan:
    return replace(plan, epsilon=epsilon, delta=delta, realised_epsilon=epsilon)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.01, 1e-5), (100.0, 1e-5), (1, 1e-10), (1, 1 / 1501), (1, 1 / 1500)]
)
def test_a_plan_within_the_bounds_is_priced(plan: Plan, epsilon: float, delta: float) -> None:
    asked = stating(plan, epsilon, delta)
    assert stated_plans.require_bounded(asked) is asked


@pytest.mark.parametrize(
    ("epsilon", "delta", "fault"),
    [
        (0.00999, 1e-5, "epsilon 0.00999, delta 1e-05: outside the range"),
        (100.1, 1e-5, r"epsilon 100\.1, delta 1e-05: outside the range"),
        (1, 9.99e-11, "delta 9.99e-11: outside the range"),
        (1, 1 / 1499, r"is above 1/n = .* \(n = 1500"),
    ],
)
def test_a_plan_outside_of_the_bounds_is_refused(
    plan: Plan, epsilon: float, delta: float, fault: str
) -> None:
    with pytest.raises(DataError, match=fault):
        stated_plans.require_bounded(stating(plan, epsilon, delta))


def test_a_patient_pays_as_a_group_of_their_images(plan: Plan) -> None:
    """The mu of k images is k times that of one."""
    worth = gaussian_epsilon(3 * gaussian_mu(plan.mechanisms), plan.delta)
    for factor, right in ((1, True), (1 + 5e-5, True), (1 - 5e-5, True), (1.0002, False)):
        of_three = replace(plan, patients=Patients(images=3, epsilon=worth * factor))
        if right:
            stated_plans._check_patients(of_three)
        else:
            with pytest.raises(PrivacyError, match="patients: epsilon .* stated for 3 images"):
                stated_plans._check_patients(of_three)
    stated_plans._check_patients(replace(plan, patients=None))


@pytest.mark.parametrize(("images", "epsilon"), [(3, None), (None, 2.0)])
def test_a_price_to_a_patient_needs_a_number_of_images(
    plan: Plan, images: int | None, epsilon: float | None
) -> None:
    stated_plans._check_patients(replace(plan, patients=Patients(images=None, epsilon=None)))
    with pytest.raises(PrivacyError, match=f"epsilon {epsilon} is stated for {images} images"):
        stated_plans._check_patients(
            replace(plan, patients=Patients(images=images, epsilon=epsilon))
        )


def test_the_first_lines_of_a_statement_are_those_of_a_private_release(tmp_path: Path) -> None:
    folder = write_example(tmp_path / "whole")
    values = read_json(folder / bundle.STATEMENT_FILE)
    said, read = read_statement(folder)
    assert (said, read) == (values["promise"], values)
    for change, fault in (
        ({"mode": "benchmark"}, "mode 'benchmark', not release"),
        ({"private": False}, "private: not true"),
        ({"private": 1}, "private: not true"),
    ):
        (folder / bundle.STATEMENT_FILE).write_text(json.dumps(values | change))
        with pytest.raises(DataError, match=fault):
            read_statement(folder)
