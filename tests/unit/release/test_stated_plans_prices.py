"""The price of what was read from test units, computed again and by other libraries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpprobe.errors import DataError
from dpprobe.privacy.accountants import gaussian_epsilon
from dpprobe.privacy.plan import Plan
from dpprobe.release import stated_plans
from dpprobe.release.stated_plans import price_tested
from tests.support.mechanisms import gaussians


@pytest.fixture
def tested() -> Plan:
    """One release of noise 2, whose price is that of a Gaussian of mu 1/2."""
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


def test_the_price_is_that_of_a_gaussian(tested: Plan) -> None:
    assert price_tested(tested) == pytest.approx(gaussian_epsilon(0.5, 1e-5), rel=2e-6)


@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_another_epsilon_or_target_is_named(tested: Plan, factor: float) -> None:
    wrong = tested.realised_epsilon * factor
    larger = max(wrong, tested.epsilon)
    with pytest.raises(DataError, match=f"^epsilon {wrong:g} is stated, but .* is computed"):
        price_tested(replace(tested, epsilon=larger, realised_epsilon=wrong))
    with pytest.raises(DataError, match="^epsilon_target .* is stated, but epsilon .* is computed"):
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
    """A library that has no answer, or a looser bound, contradicts nothing."""

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
        with pytest.raises(DataError, match="but other libraries compute"):
            price_tested(tested)
