"""Reads the plans of a privacy statement, recomputes their epsilons, and writes them as text.

A statement has the plan of the training units, and one plan per block of numbers from test units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dpprobe.counted_nouns import count_noun
from dpprobe.errors import PrivacyError
from dpprobe.privacy.limits import (
    LARGEST_EPSILON,
    PRICE_TOLERANCE,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    delta_fault,
    delta_warning,
    round_up,
)
from dpprobe.privacy.noise_calibration import price_of_group, price_plan, second_opinions
from dpprobe.privacy.plan import (
    Mechanism,
    Patients,
    Plan,
    Selection,
    check_mechanisms,
    state_together,
)
from dpprobe.privacy.risk import list_risk_faults
from dpprobe.privacy.stated_facts import require_gaussian
from dpprobe.privacy.statement import mechanism_values
from dpprobe.privacy.statement_words import format_epsilon
from dpprobe.privacy.unit_words import UnitWords
from dpprobe.release.stated_values import (
    Values,
    read_block,
    read_real,
    read_whole,
    require_same,
    require_true,
)
from dpprobe.release_part_registry import ALWAYS_STATED, STATED_IF_ASKED

T = TypeVar("T")

MOST_RELEASES = 10**7
# Tolerated relative differences of other libraries' epsilons between versions and processors.
CHECK_TOLERANCE = 1e-4
# Keys of a statement block on its epsilon, by `counted_units.priced_values`.
PRICED_KEYS = {"n", "epsilon", "epsilon_target", "delta", "mechanisms"}


def read_mechanism(values: Values) -> Mechanism:
    require_gaussian(values)
    return Mechanism(
        name=str(values["name"]),
        sensitivity=read_real("sensitivity", values["sensitivity"]),
        noise_multiplier=read_real("noise_multiplier", values["noise_multiplier"]),
        sample_rate=read_real("sample_rate", values["sample_rate"]),
        count=read_whole("count", values["count"], MOST_RELEASES),
    )


def read_plan(values: Values) -> tuple[str, Plan]:
    selection, patients = values["selection"], values["patients"]
    plan = require_bounded(
        Plan(
            mechanisms=tuple(read_mechanism(item) for item in values["mechanisms"]),
            n=read_whole("n", values["n"]),
            unit=str(values["unit"]),
            patients=patients
            and Patients(
                images=patients["images"],
                epsilon=None if patients["epsilon"] is None else float(patients["epsilon"]),
            ),
            epsilon=read_real("epsilon_target", values["epsilon_target"]),
            delta=read_real("delta", values["delta"]),
            accountant=_accountant_name(values["accountant"]),
            selection=Selection.from_dict(selection) if selection else None,
            realised_epsilon=read_real("epsilon_realised", values["epsilon_realised"]),
            priced_by=values["accountant"],
            checks=dict(values["checks"]),
            risk=values.get("risk_target"),
        )
    )
    return f"n = {plan.n}, unit {plan.unit}, {count_noun(plan.steps, 'noisy release')}", plan


def _accountant_name(label: Any) -> str:
    """Returns a study's name for the accountant that computed epsilon."""
    name = str(label).split(" ")[0]
    return "pld" if name == "gaussian" else name


def require_bounded(plan: Plan) -> Plan:
    """Returns the plan; DataError unless its epsilon can be computed in bounded time."""
    require_true(
        SMALLEST_EPSILON <= plan.epsilon <= LARGEST_EPSILON and plan.delta >= SMALLEST_DELTA,
        f"epsilon {plan.epsilon:g}, delta {plan.delta:g}: outside the range that dpprobe "
        "calibrates",
    )
    fault = delta_fault(plan.delta, plan.n, unit=plan.unit)
    require_true(fault is None, fault or "")
    return plan


def check_price(plan: Plan, _matched: bool) -> tuple[str, bool]:
    """Computes a plan's epsilon again by all accountants; raises PrivacyError if results differ."""
    cost = price_plan(plan)
    if not cost <= plan.epsilon * (1 + 1e-9):
        raise _other_price(plan, f"{plan.epsilon:g}", f"{cost:.6g} or more")
    if not math.isclose(plan.realised_epsilon, cost, rel_tol=PRICE_TOLERANCE):
        raise _other_price(plan, f"{plan.realised_epsilon:.6g}", f"{cost:.6g}")
    by, computed = _check_opinions(plan)
    check_patients(plan)
    for fault in list_risk_faults(plan):
        raise PrivacyError(fault)
    others = [f"{value:.6g} by {name}" for name, value in computed.items() if value is not None]
    warning = delta_warning(plan.delta, plan.n, unit=plan.unit)
    said = f"epsilon {cost:.6g} at delta {plan.delta:g} by {by}; {', '.join(others)}"
    return f"{said}. {warning}" if warning else said, True


def _other_price(plan: Plan, stated: str, computed: str) -> PrivacyError:
    return PrivacyError(
        f"epsilon {stated} at delta {plan.delta:g} is stated, but {computed} is computed"
    )


def _check_opinions(plan: Plan) -> tuple[str, Mapping[str, float | None]]:
    """Checks other accountants' stated epsilons; returns them with the plan's accountant."""
    by, computed, _ = second_opinions(plan)
    stated = _key_by_name(plan.checks)
    same = _drop_versions(by) == _drop_versions(plan.priced_by)
    if not same or set(stated) != {_drop_versions(name) for name in computed}:
        raise PrivacyError(
            f"accountant {plan.priced_by} with checks {list(stated)} is stated, but this plan "
            f"needs {by} with checks {list(computed)}"
        )
    for name, value in computed.items():
        other = stated[_drop_versions(name)]
        if (value is None) != (other is None) or (
            value is not None
            and not math.isclose(read_real(name, other), value, rel_tol=CHECK_TOLERANCE)
        ):
            raise _other_price(plan, f"{other} by {name}", str(value))
    return by, computed


def _drop_versions(label: str) -> str:
    return re.sub(r"\(([\w-]+) [\w.+-]+\)", r"(\1)", str(label))


def _key_by_name(values: Mapping[str, T]) -> dict[str, T]:
    return {_drop_versions(name): value for name, value in values.items()}


def check_patients(plan: Plan) -> None:
    """Raises PrivacyError unless the epsilon for patients equals the group epsilon of images."""
    if plan.patients is None:
        return
    images, stated = plan.patients.images, plan.patients.epsilon
    worth = None if images is None else round_up(price_of_group(plan, read_whole("images", images)))
    agree = stated == worth or (
        stated is not None
        and worth is not None
        and math.isclose(stated, worth, rel_tol=CHECK_TOLERANCE)
    )
    if not agree:
        raise PrivacyError(
            f"patients: epsilon {stated} is stated for {images} images, but {worth} is computed"
        )


# plans of test units


def tested_blocks(statement: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the statement blocks with mechanisms that read the private test units."""
    blocks = (statement.get(name) for name in (*ALWAYS_STATED, *STATED_IF_ASKED))
    return [block for block in blocks if isinstance(block, Mapping) and "mechanisms" in block]


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
    """Reads a statement block about test units, with the keys in `keys` and `PRICED_KEYS`.

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
    """Recomputes a test result's epsilon exactly, and checks other libraries' epsilons."""
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


def check_together(tested: Plan, together: Plan | None, stated: object) -> None:
    """Checks the epsilon of a part together with the release's other parts, per test unit."""
    computed = state_together(tested, together)
    require_true(
        agree(computed, stated, CHECK_TOLERANCE),
        f"together: {stated!r} is stated, but {computed!r} is computed",
    )


def explain_price(block: Values, unit: UnitWords, part: str, all_parts: str) -> str:
    """States the cost of a release part to test units, alone and together with other parts."""
    words = (
        f"{part} costs test {unit.many} epsilon {format_epsilon(block['epsilon'])} and training "
        f"{unit.many} nothing."
    )
    if (together := block["together"]) is None:
        return words
    return f"{words} {all_parts} costs a test {unit.one} epsilon {format_epsilon(together)}."


def agree(value: object, stated: object, tolerance: float = 1e-4) -> bool:
    """Returns True for JSON values that are equal up to the last digits of numbers."""
    if isinstance(value, dict) and isinstance(stated, dict):
        same = value.keys() == stated.keys()
        return same and all(agree(value[key], stated[key], tolerance) for key in value)
    if isinstance(value, list | tuple) and isinstance(stated, list | tuple):
        pairs = zip(value, stated, strict=False)
        return len(value) == len(stated) and all(agree(*pair, tolerance) for pair in pairs)
    if isinstance(value, str | bool | None) or isinstance(stated, str | bool | None):
        return type(value) is type(stated) and value == stated
    return math.isclose(
        read_real("", value), read_real("", stated), rel_tol=tolerance, abs_tol=1e-9
    )
