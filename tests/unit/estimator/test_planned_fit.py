"""The plan and the booking of a fit, from public facts only."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from dpprobe.errors import PrivacyError
from dpprobe.estimator.budget import Budget
from dpprobe.estimator.planned_fit import PlannedFit, plan_fit
from dpprobe.privacy.accountants import gaussian_epsilon, gaussian_mu
from tests.support.classifiers import DELTA, make_benchmark, make_private, make_rows
from tests.support.refusals import check_tokens

LABELS = np.array([3, 1, 2, 1])


def plan_private(rows: int = 20, groups: Any = None, **changes: Any) -> PlannedFit:
    return plan_fit(make_private(**{"delta": None} | changes), rows, 6, groups)


def plan_benchmark(rows: int = 20, groups: Any = None, **changes: Any) -> PlannedFit:
    return plan_fit(make_benchmark(**{"delta": None} | changes), rows, 6, groups, LABELS)


@pytest.mark.parametrize("unit", ["row", "image"])
@pytest.mark.parametrize(
    ("rows", "delta"),
    [(1, 1e-5), (50, 1e-5), (10_000, 1e-5), (10_001, 1e-6), (100_000, 1e-6), (100_001, 1e-7)],
)
def test_the_usual_delta_is_a_power_of_ten_below_a_tenth_of_one_row(
    rows: int, delta: float, unit: str
) -> None:
    facts = plan_benchmark(rows, unit=unit).facts
    assert facts.delta == pytest.approx(delta, rel=1e-12)
    assert facts.delta * rows <= 0.1 * (1 + 1e-12)
    assert (facts.n, facts.unit, facts.classes, facts.dimension) == (rows, unit, 3, 6)
    assert not facts.multi_label


def test_a_plan_meets_its_epsilon() -> None:
    planned = plan_private()
    plan = planned.plan
    price = gaussian_epsilon(gaussian_mu(plan.mechanisms), DELTA)
    assert price <= 1
    assert price == pytest.approx(1, rel=1e-4)
    assert (plan.n, plan.unit, plan.delta) == (20, "row", DELTA)


def test_classes_come_from_the_caller_or_in_benchmarks_from_labels() -> None:
    assert plan_private(classes=["b", "c", "a"]).classes == ["a", "b", "c"]
    assert plan_benchmark().classes == [1, 2, 3]
    assert plan_benchmark(classes=[1, 0]).classes == [0, 1]


def test_the_delta_is_the_fit_s_or_the_budget_s() -> None:
    tight = Budget(max_epsilon=1, delta=1e-7)
    assert plan_private(budget=tight).plan.delta == 1e-7
    assert plan_private(budget=tight, delta=1e-3).plan.delta == 1e-3
    assert plan_private(10_000).plan.delta == DELTA
    for delta in (None, 1e-5):  # the budget's delta must fit the rows, too
        with pytest.raises(PrivacyError, match=r"delta 0\.0001 is above 1/n = 0\.0001 \(n = 10001"):
            plan_private(10_001, delta=delta)


@pytest.mark.parametrize("n", [20, 1000, 9999, 10_001, 60_000])
def test_the_default_delta_of_a_benchmark_needs_no_warning(n: int) -> None:
    planned = plan_benchmark(n)
    assert planned.plan.delta * n <= 0.1 * (1 + 1e-12)
    assert planned.list_delta_warnings(None) == []


@pytest.mark.parametrize(
    ("fit", "budget", "n", "warned"),
    [
        (None, 1e-5, 1000, []),
        (None, 1e-4, 1000, []),  # exactly 0.1/n
        (None, 9.9e-4, 1000, [0.99]),
        (9.9e-4, 1e-5, 1000, [0.99]),
        (1e-5, 9.9e-4, 1000, [0.99]),  # the limit on all fits
        (2e-4, 9e-4, 1000, [0.2, 0.9]),
        (None, 1e-5, 60_000, [0.6]),
    ],
)
def test_a_delta_above_a_tenth_of_one_over_n_is_warned_of(
    fit: float | None, budget: float, n: int, warned: list[float]
) -> None:
    limit = Budget(max_epsilon=1, delta=budget)
    lines = plan_private(n, budget=limit, delta=fit).list_delta_warnings(limit)
    assert len(lines) == len(warned)
    for line, average in zip(lines, warned, strict=True):
        check_tokens(line, f"n = {n}", "0.1/n", f"on average {average:g} rows of {n}")


def test_a_fit_warns_of_its_delta_before_it_is_booked() -> None:
    """The warning counts units, of which there are fewer than rows."""
    rows = make_rows(rows=200)
    budget = Budget(max_epsilon=1, delta=0.99 / 100)
    head = make_private(budget=budget, unit="patient")
    groups = [f"p{row // 2}" for row in range(200)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "delta")
        with pytest.raises(UserWarning, match="on average 0.99 patients of 100"):
            head.fit(rows.X, rows.y, groups)
    assert budget.compute_spent().entries == 0
    with pytest.warns(UserWarning, match="each patient's rows with probability delta"):
        head.fit(rows.X, rows.y, groups)
    with pytest.warns(UserWarning, match="on average 0.5 rows of 200"):
        make_benchmark(delta=0.5 / 200).fit(rows.X, rows.y)


NAMES = ["b", "a", "b", "a"] * 5


@pytest.mark.parametrize(
    ("unit", "column"), [("group", "patient"), ("patient", "patient"), ("group", "groups")]
)
def test_groups_are_the_units_of_plan_and_booking(unit: str, column: str) -> None:
    budget = Budget(max_epsilon=1, delta=1e-5, column=column)
    planned = plan_private(20, NAMES, unit=unit, budget=budget)
    assert (planned.plan.n, planned.plan.unit) == (2, unit)
    assert planned.units is not None
    assert planned.units.unit_of_rows().tolist() == [1, 0] * 10
    booking = planned.make_booking(budget)
    assert (booking.unit, booking.column, booking.split) == (unit, column, "all rows")
    (part,) = booking.parts
    assert part.side == "train"
    assert part.mechanisms == planned.plan.mechanisms
    assert (booking.study, booking.same_units_as) == ("estimator", None)


def test_a_fit_of_rows_has_no_column() -> None:
    budget = Budget(max_epsilon=1, delta=DELTA, column="patient")
    assert plan_private(budget=budget).make_booking(budget).column is None


def test_every_changed_option_changes_the_fits_identity() -> None:
    budget = Budget(max_epsilon=9, delta=DELTA)

    def identify(rows: int = 20, **changes: Any) -> str:
        return plan_private(rows, budget=budget, **changes).make_booking(budget).identity

    changes: list[dict[str, Any]] = [
        {},
        {"rows": 21},
        {"epsilon": 2.0},
        {"delta": 1e-5},
        {"head": "prototypes"},
    ]
    assert len({identify(**each) for each in changes}) == len(changes)
    assert identify() == identify()


def test_a_private_fit_has_exact_sums_and_a_benchmark_what_is_asked() -> None:
    sampled = {"head": "sgd", "batch_size": 5}
    assert plan_private(head=sampled).method.is_exact
    tuned = {"head": "tuned", "base": sampled, "search": {"learning_rate": [0.1, 1.0]}}
    assert plan_private(head=tuned).method.is_exact
    assert plan_benchmark(head={**sampled, "engine": "closed_form"}).method.engine == "closed_form"  # type: ignore[attr-defined]


def test_a_benchmark_may_be_without_privacy_and_groups() -> None:
    planned = plan_benchmark(head="nonprivate", epsilon=math.inf)
    assert planned.plan.mechanisms == ()
    assert plan_benchmark(groups=NAMES).units is None, "groups are ignored where rows are units"
    grouped = plan_benchmark(groups=NAMES, unit="group")
    assert grouped.units is not None
    assert grouped.units.count == 2
