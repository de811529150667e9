"""Budgets: bounds of epsilon and delta, permitted risks, their spellings, words and refusals."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.privacy import limits, risk
from dpprobe.privacy.limits import epsilon_token, epsilon_value
from dpprobe.privacy.plan import Mechanism, Patients, Plan, Selection
from dpprobe.privacy.risk import Risk, RiskEpsilon
from tests.support.stored_records import answer_of, check_values

SPELLINGS: list[Any] = [
    0.5,
    2,
    "2.0",
    1e-7,
    123456.7890123456,
    "inf",
    math.inf,
    math.nan,
    0,
    -1,
    True,
    None,
    "much",
    10**400,
    {"advantage": 0.1},
    {"advantage": 1e-5},
    {"true_positives": 0.01, "at": 0.001},
    {"true_positives": 2e-5, "at": 1e-5},
    "advantage-0.1",
    "advantage-1e-1",
    "tpr-0.2-at-0.1",
    {},
    {"advantage": 0.1, "at": 0.1},
    {"advantage": 0.1, "true_positives": 0.1, "at": 0.01},
    {"true_positives": 0.1},
    {"at": 0.1},
    {"advantage": 0},
    {"advantage": 1},
    "advantage-2",
    {"advantage": math.nan},
    {"advantage": "much"},
    {"advantage": None},
    "advantage-x",
    "tpr-0.1",
    {"true_positives": 0.01, "at": 0.01},
    {"true_positives": 0.01, "at": 0.1},
    {"true_positives": 1.0, "at": 0.1},
    {"true_positives": 1.5, "at": 0.1},
    {"advantage": -0.1},
    {"true_positives": 0.5, "at": -0.1},
    {"true_positives": 0.5, "at": 0},
    {"advantages": 0.1},
    "advantage-0.9999999",
    "advantage-1e-07",
    "advantage-0.0001",
    "tpr-0.5-at-0.4999999",
]
BUDGETS = [
    0.5,
    math.inf,
    RiskEpsilon(0.9318, "advantage-0.1", 1e-5),
    RiskEpsilon(0.9, "advantage-0.1"),
    RiskEpsilon(1.4, "advantage-0.1", 1e-5),
    RiskEpsilon(3.2132, "tpr-0.01-at-0.001", 1e-5),
    RiskEpsilon(9.0, "advantage-0.9995"),
    RiskEpsilon(6.0, "advantage-0.1", 1e-5),
]


def words_of(value: Any) -> Any:
    """The spelling of a budget, what it is read as, and the epsilon, order and words it has."""
    token = answer_of(risk.budget_token, value)
    if isinstance(token, Exception):
        return token
    assert risk.budget_token(token) == token
    read: Any = risk.read_budget(token)
    if isinstance(read, Risk):
        read = {**read.to_dict(), "words": str(read), "short": read.short, "rates": read.rates}
    ask = (partial(risk.nominal_epsilon, token, each) for each in (1e-3, 1e-8, 1e-10))
    order = answer_of(risk.budget_order, token)
    return [token, read, *map(answer_of, ask), order, risk.budget_title(token)]


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_an_epsilon_token_is_stable_and_stands_for_its_number(value: float) -> None:
    token = epsilon_token(value)
    assert epsilon_token(token) == token
    assert epsilon_value(token) == pytest.approx(value, rel=1e-11)


def test_budgets_and_their_bounds_over_many_values() -> None:
    deltas = {
        f"{place!r} {n} {unit} {allowed}": [
            limits.delta_above(delta, n),
            limits.delta_fault(delta, n, unit=unit, allowed=allowed),
            limits.delta_warning(delta, n, unit=unit),
            limits.above_in_words(delta, n, unit=unit),
        ]
        for n, unit, allowed in [
            (3, "image", None),
            (49, "patient", False),
            (7, "row", True),
            (1_281_167, "group", None),
        ]
        for place in (0.99, 1.0, 1 + 1e-10, 1 + 1e-8, 20.0)
        for delta in [place / n]
    }
    numbers = (0.1, 1.0000001, 123456.75, 1e-9, 7.0)
    found = {
        "spellings": {repr(value): words_of(value) for value in SPELLINGS},
        "tokens": [risk.to_tokens([1, "inf"]), risk.to_tokens(("2", 0.5)), risk.to_tokens("1")],
        "words": [
            [risk.budget_words(each), risk.row_words(each, "ε = "), risk.budget_in_full(each)]
            for each in BUDGETS
        ],
        "explained": [
            risk.explain_risks(each)
            for length in (0, 1, 2, 7)
            for each in itertools.combinations(BUDGETS, length)
        ],
        "deltas": deltas,
        "rounded": [[limits.round_up(each), limits.round_down(each)] for each in numbers],
        "json": [limits.to_json(each) for each in (None, 0.5, math.inf)],
    }
    check_values("budgets", found)


USUAL = {
    "name": "gradients",
    "released": "sums",
    "sensitivity": 1.25,
    "noise_multiplier": 0.75,
    "sample_rate": 0.01,
    "count": 100,
}
MECHANISMS: list[tuple[str, list[Any]]] = [
    ("sensitivity", [0.0, 0.9e-9, 1e-9, 1e9, 1.1e9, math.inf, math.nan]),
    ("noise_multiplier", [0.0, 0.7e-20, 0.8e-20, 0.8e20, 0.9e20, -0.1, math.nan, math.inf]),
    ("sample_rate", [-0.1, 0.0, 1e-12, 1.0, 1.0000001, math.nan]),
    ("count", [0, 1, 2.0, True]),
]
PART = Mechanism(**USUAL)  # type: ignore[arg-type]
SILENT = Mechanism(**USUAL | {"noise_multiplier": 0.0})  # type: ignore[arg-type]
PLANS: list[dict[str, Any]] = [
    {},
    {"n": 0},
    {"n": 1},
    {"epsilon": 0.0},
    {"epsilon": math.nan},
    {"delta": -0.1},
    {"delta": 1.1},
    {"delta": 1.0},
    {"delta": 0.0},
    {"mechanisms": ()},
    {"mechanisms": (SILENT,)},
    {"mechanisms": (PART, PART)},
    {"unit": "pixel"},
    {"realised_epsilon": 1.0},
    {"realised_epsilon": 1.0001},
    {"realised_epsilon": math.inf},
    {"realised_epsilon": math.nan},
    {"epsilon": math.inf, "realised_epsilon": math.inf},
    {"epsilon": math.inf, "mechanisms": (SILENT,)},
    {"epsilon": math.inf, "mechanisms": ()},
    {"selection": Selection(mean=7.0, repeated=("hessian",))},
    {"selection": Selection(mean=7.0, repeated=("gradients",)), "risk": {"advantage": 0.2}},
    {"mechanisms": (PART, replace(PART, name="covariance", count=1))},
    {"unit": "group"},
    {"unit": "row", "checks": {"prv": math.inf, "rdp": None}},
    {"unit": "group", "patients": Patients(images=3)},
    {"patients": Patients(images=None)},
    {
        "patients": Patients(images=3, epsilon=math.inf),
        "priced_by": "pld",
        "risk": {"top": 0.25},
        "check_notes": {"prv": "too large"},
        "accountant": "rdp",
        "delta": 1e-6,
    },
]


def test_mechanisms_selections_and_plans_refuse_what_cannot_be_priced() -> None:
    def plan(**changes: Any) -> Any:
        usual: dict[str, Any] = {
            "mechanisms": (PART,),
            "n": 3200,
            "epsilon": 1.0,
            "delta": 1e-5,
            "accountant": "pld",
            "realised_epsilon": 0.9995,
        }
        made = Plan(**usual | changes)
        assert Plan.from_dict(json.loads(json.dumps(made.to_dict(), allow_nan=False))) == made
        for field in fields(Plan):
            seen[field.name].add(repr(getattr(made, field.name)))
        return [made.to_dict(), made.private, made.steps, made.unit_in_words]

    seen: dict[str, set[str]] = defaultdict(set)
    another = Plan.NEIGHBOURING.replace("unit", "row")

    found = {
        "mechanisms": [
            [name, value, answer_of(Mechanism, **USUAL | {name: value})]
            for name, values in MECHANISMS
            for value in values
        ],
        "selections": [
            answer_of(Selection, mean=mean, repeated=repeated)
            for mean in (1.0, 1.01, 1000, 1000.1, math.nan)
            for repeated in (("a",), ())
        ],
        "plans": [answer_of(plan, **changes) for changes in PLANS],
        "relation": answer_of(Plan.from_dict, {"neighbouring": another}),
    }
    assert all(len(values) > 1 for values in seen.values()), "each field was read back"
    check_values("refused_plans", found)
