"""Reads the stated releases from test units, and computes their epsilons again."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dpprobe.privacy.calibration import price_plan, second_opinions
from dpprobe.privacy.plan import Plan
from dpprobe.release.release_statement import tested_blocks
from dpprobe.release.stated_values import Values, read_real, read_whole, require_true
from dpprobe.release.verification.stated_plan import (
    CHECK_TOLERANCE,
    read_mechanism,
    require_bounded,
)
from dpprobe.training.plan_file import PRICE_TOLERANCE


def list_tested(values: Values, plan: Plan) -> list[Plan]:
    """Returns the plans of all stated releases from the test units."""
    return [make_tested_plan(block, plan) for block in tested_blocks(values)]


def make_tested_plan(block: Values, plan: Plan) -> Plan:
    return require_bounded(
        Plan(
            mechanisms=tuple(read_mechanism(item) for item in block["mechanisms"]),
            n=read_whole("n", block["n"]),
            unit=plan.unit,
            epsilon=read_real("epsilon_target", block["epsilon_target"]),
            delta=read_real("delta", block["delta"]),
            accountant="pld",
            realised_epsilon=read_real("epsilon", block["epsilon"]),
        )
    )


def price_tested(tested: Plan) -> float:
    """Computes a test result's epsilon exactly, since it never samples, and by other libraries."""
    cost = price_plan(tested)
    require_true(
        math.isclose(tested.realised_epsilon, cost, rel_tol=PRICE_TOLERANCE),
        f"epsilon {tested.realised_epsilon:g} is stated, but {cost:.6g} is computed",
    )
    require_true(
        math.isclose(tested.epsilon, cost, rel_tol=CHECK_TOLERANCE),
        f"epsilon_target {tested.epsilon:g} is stated, but epsilon {cost:.6g} is computed",
    )
    _, others, _ = second_opinions(replace(tested, realised_epsilon=min(cost, tested.epsilon)))
    require_true(
        all(value is None or value >= 0.99 * cost for value in others.values()),
        f"epsilon {cost:.6g}, but other libraries compute {others}",
    )
    return cost


def agree(value: object, stated: object) -> bool:
    """Returns True for JSON values that are equal, except for last digits of numbers."""
    if isinstance(value, dict) and isinstance(stated, dict):
        return value.keys() == stated.keys() and all(agree(value[k], stated[k]) for k in value)
    if isinstance(value, list | tuple) and isinstance(stated, list | tuple):
        return len(value) == len(stated) and all(map(agree, value, stated))
    if isinstance(value, str) or isinstance(stated, str):
        return value == stated
    return bool(np.isclose(read_real("", value), read_real("", stated), rtol=1e-4, atol=1e-9))
