"""A plan: the setting, its alternatives, absolute accuracies."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.planner.accuracy_plan import make_plan, make_scale
from dpprobe.planner.learning_curves import read_curves
from dpprobe.planner.month_plan import months_as_json, months_in_words, plan_months
from dpprobe.planner.plan_text import (
    format_span,
    plan_in_words,
    round_count,
    too_few_warning,
    too_few_words,
    write_notes,
)
from dpprobe.planner.predicted_accuracy import Kept, Setting, predict
from dpprobe.privacy.risk import Risk
from tests.support.stored_records import answer_of, check_values

SETTING = Setting(n=3000, classes=4, epsilon=1.0, dimension=1280)


def test_the_loss_falls_under_5_points_before_it_falls_under_2() -> None:
    plan = make_plan(SETTING, ceiling=0.82)
    five, two = plan.n_within[5], plan.n_within[2]
    assert five is not None
    assert two is None or five < two
    loss = 100 * (
        0.82 - predict(SETTING.with_n(five)).predict_accuracy(chance=0.25, ceiling=0.82)[1]
    )
    assert loss == pytest.approx(5.0, abs=0.05)


BUDGETS = [0.01, 1.0, Risk(advantage=0.1).to_epsilon(1e-5), 30.0, 50.0]
SCALES: list[dict[str, Any]] = [
    {},
    {"ceiling": 0.82},
    {"ceiling": 0.82, "majority": 0.8},
    {"majority": 0.99},
    {"ceiling": 82.0},
    {"ceiling": 0.25},
    {"ceiling": 0.5, "majority": 0.6},
    {"ceiling": 1.0},
    {"ceiling": 0.6, "majority": 0.6},
    {"majority": 0.1},
    {"majority": 1.0},
    {"majority": 0.25},
    {"majority": 0.25 - 5e-10},
    {"majority": 0.25 - 2e-9},
]
WRONG: list[dict[str, Any]] = [
    {"n": 3},
    {"n": 4},
    {"classes": 1, "n": 1},
    {"classes": 0, "n": 0},
    {"classes": 2, "n": 2},
    {"epsilon": 0.0},
    {"epsilon": -1.0},
    {"epsilon": math.nan},
    {"epsilon": 0.01},
    {"epsilon": 0.0099},
    {"epsilon": 100.0},
    {"epsilon": 100.1},
    {"dimension": 0},
    {"dimension": 1},
    {"delta": 0.0},
    {"delta": 1.0},
    {"delta": 0.999},
    {"delta": 1e-10},
    {"delta": 9e-11},
    {"n": 1, "epsilon": 0.0, "delta": 2.0},
]
KEPT = [(-0.1, 0.5, 1.2), (0.551, 0.62, 3.0), (0.0, 0.0, 0.0)]


def test_plans_over_many_settings_and_what_is_refused() -> None:
    plans: dict[str, Any] = {}
    for index, epsilon in enumerate(BUDGETS):
        for n, classes, dimension in [(60, 10, None), (3000, 4, 1280), (20_000, 300, 64)]:
            own = SCALES if (epsilon, n) == (1.0, 3000) else [SCALES[index % 4]]
            setting = Setting(n=n, classes=classes, epsilon=epsilon, dimension=dimension)
            for options in own:
                unit = ("image", "patient")[len(plans) % 2]
                made = answer_of(partial(make_plan, setting, unit=unit, **options))
                said = made if isinstance(made, ConfigError) else plan_in_words(made).splitlines()
                values = made if isinstance(made, ConfigError) else made.as_json()
                plans[f"{n} {classes} {dimension} {epsilon:g} {options} {unit}"] = [said, values]
    most = read_curves().most_classes
    deltas = [1 / 3000, 0.01, 1e-4, 1 / 3001, 1 / 2999]
    found = {
        "plans": plans,
        "notes": [write_notes((), classes=most + more)[6:] for more in (0, 1)],
        "deltas": [make_plan(replace(SETTING, delta=delta)).warnings for delta in deltas],
        "wrong": [[each, answer_of(replace(SETTING, **each).check_ranges)] for each in WRONG],
        "accuracies": [
            [format_span(each), *kept.predict_accuracy(chance=chance, ceiling=ceiling)]
            for each in KEPT
            for chance, ceiling in [(0.25, 0.85), (0.5, 0.5), (0.1, 1.0)]
            for kept in [Kept(low=each[0], expected=each[1], high=each[2], beyond=0)]
        ],
    }
    check_values("accuracy_plans", found)


def test_warnings_of_too_few_units_and_plans_of_months() -> None:
    found: dict[str, Any] = {"warnings": {}, "months": {}}
    for n, classes, epsilons in itertools.product(
        (60, 2000, 50_000), (2, 10, 100, 101, 1000), ([100.0, 0.1], [1.0], [0.01, 10.0, 0.1])
    ):
        unit = ("image", "patient")[classes % 2]
        found["warnings"][f"{n} {classes} {epsilons}"] = too_few_warning(
            n=n, classes=classes, dimension=None, epsilons=epsilons, delta=1e-5, unit=unit
        )
    numbers = (1, 7, 99, 100, 101, 110, 999, 1000, 1001, 2345, 120_001)
    found["rounded"] = [round_count(number) for number in numbers]
    found["would do"] = [
        too_few_words(SETTING, each, unit=unit)
        for each, unit in itertools.product((None, 1234), ("image", "patient"))
    ]
    few = Setting(n=500, classes=2, epsilon=1.0, dimension=1280)
    scales = [make_scale(2, ceiling=ceiling, majority=0.6) for ceiling in (0.9, 0.6, None)]
    for months, scale in zip((2, 3, 11, 1, 121), (*scales, *scales[:2]), strict=True):
        rows = answer_of(partial(plan_months, few, months))
        found["months"][months] = (
            rows
            if isinstance(rows, ConfigError)
            else [
                months_in_words(rows, scale, epsilon=1.0, unit="patient").splitlines(),
                months_as_json(rows)[:3],
                scale,
            ]
        )
    assert len(plan_months(few, 120)) == 120
    check_values("short_plans", found)
