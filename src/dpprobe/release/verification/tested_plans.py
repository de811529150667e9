"""Reads what a statement released from test units, and recomputes the epsilons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dpprobe.privacy.calibration import price_plan, second_opinions
from dpprobe.privacy.plan import Mechanism, Plan
from dpprobe.privacy.statement import mechanism_values
from dpprobe.release.counted_units import check_mechanisms
from dpprobe.release.release_statement import tested_blocks
from dpprobe.release.stated_values import (
    Values,
    read_block,
    read_real,
    read_whole,
    require_same,
    require_true,
)
from dpprobe.release.verification.stated_plan import (
    CHECK_TOLERANCE,
    read_mechanism,
    require_bounded,
)
from dpprobe.training.plan_file import PRICE_TOLERANCE

# Keys of a statement block on its epsilon, by `counted_units.priced_values`, and `composition`.
PRICED_KEYS = {"n", "epsilon", "epsilon_target", "delta", "mechanisms", "composition"}


def list_tested(values: Values, plan: Plan) -> list[Plan]:
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


def read_tested(
    name: str, stated: Any, keys: set[str], plan: Plan, wanted: Sequence[Mechanism]
) -> tuple[Values, Plan, float]:
    """Reads a statement block of numbers from test units, with `keys` and `PRICED_KEYS`.

    Returns the block, its plan, and its recomputed epsilon. Raises DataError or PrivacyError unless
    the plan has the wanted mechanisms and the stated epsilon.
    """
    block = read_block(name, stated, keys | PRICED_KEYS)
    tested = make_tested_plan(block, plan)
    check_mechanisms(tested, wanted)
    cost = price_tested(tested)
    expected = [mechanism_values(item, tested) for item in tested.mechanisms]
    require_same("mechanisms", expected, block["mechanisms"])
    return block, tested, cost


def price_tested(tested: Plan) -> float:
    """Recomputes a test result's epsilon, exactly, and compares other libraries' epsilons."""
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


def agree(value: object, stated: object, tolerance: float = 1e-4) -> bool:
    """Returns True for JSON values that are equal, except for last digits of numbers."""
    if isinstance(value, dict) and isinstance(stated, dict):
        same = value.keys() == stated.keys()
        return same and all(agree(value[key], stated[key], tolerance) for key in value)
    if isinstance(value, list | tuple) and isinstance(stated, list | tuple):
        pairs = zip(value, stated, strict=False)
        return len(value) == len(stated) and all(agree(*pair, tolerance) for pair in pairs)
    if isinstance(value, str | None) or isinstance(stated, str | None):
        return value == stated
    return math.isclose(
        read_real("", value), read_real("", stated), rel_tol=tolerance, abs_tol=1e-9
    )
