"""Reads the plan from a privacy statement, and recomputes the plan's epsilon."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from dpprobe.counted_nouns import count_noun
from dpprobe.errors import PrivacyError
from dpprobe.privacy.calibration import price_of_group, price_plan, second_opinions
from dpprobe.privacy.limits import (
    LARGEST_EPSILON,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    delta_fault,
    round_up,
)
from dpprobe.privacy.plan import Mechanism, Patients, Plan, Selection
from dpprobe.privacy.risk import list_risk_faults
from dpprobe.privacy.statement import require_gaussian
from dpprobe.release.bundle import STATEMENT_FILE
from dpprobe.release.stated_values import (
    Values,
    read_json,
    read_real,
    read_whole,
    require_same,
    require_true,
)
from dpprobe.training.plan_file import PRICE_TOLERANCE

T = TypeVar("T")

MOST_RELEASES = 10**7
# Relative differences of other libraries' epsilons between versions and processors.
CHECK_TOLERANCE = 1e-4


def read_statement(folder: Path) -> tuple[str, Values]:
    """Reads a bundle's privacy statement; DataError unless a private release wrote it."""
    values = read_json(folder / STATEMENT_FILE)
    require_true(values["mode"] == "release", f"mode {values['mode']!r}, not release")
    require_true(values["private"] is True, "private: not true, so there is no guarantee")
    return str(values["promise"]), values


def read_mechanism(values: Values) -> Mechanism:
    require_gaussian(values)
    return Mechanism(
        name=str(values["name"]),
        released=str(values["released"]),
        sensitivity=read_real("sensitivity", values["sensitivity"]),
        noise_multiplier=read_real("noise_multiplier", values["noise_multiplier"]),
        sample_rate=read_real("sample_rate", values["sample_rate"]),
        count=read_whole("count", values["count"], MOST_RELEASES),
    )


def read_plan(values: Values) -> tuple[str, Plan]:
    unit = {words: key for key, words in Plan.UNITS.items()}[values["unit_of_privacy"]]
    selection, patients = values["selection"], values["patients"]
    plan = require_bounded(
        Plan(
            mechanisms=tuple(read_mechanism(item) for item in values["mechanisms"]),
            n=read_whole("n", values["n"]),
            unit=unit,
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
            check_notes=dict(values["check_notes"]),
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
    _check_patients(plan)
    for fault in list_risk_faults(plan):
        raise PrivacyError(fault)
    others = [f"{value:.6g} by {name}" for name, value in computed.items() if value is not None]
    return f"epsilon {cost:.6g} at delta {plan.delta:g} by {by}; {', '.join(others)}", True


def _other_price(plan: Plan, stated: str, computed: str) -> PrivacyError:
    return PrivacyError(
        f"epsilon {stated} at delta {plan.delta:g} is stated, but {computed} is computed"
    )


def _check_opinions(plan: Plan) -> tuple[str, Mapping[str, float | None]]:
    """Checks other accountants' epsilons; returns the plan's accountant and these epsilons."""
    by, computed, notes = second_opinions(plan)
    stated = _key_by_name(plan.checks)
    same = _drop_versions(by) == _drop_versions(plan.priced_by)
    if not same or set(stated) != {_drop_versions(name) for name in computed}:
        raise PrivacyError(
            f"accountant {plan.priced_by} with checks {list(stated)} is stated, but this plan "
            f"needs {by} with checks {list(computed)}"
        )
    require_same("check_notes", _key_by_name(notes), _key_by_name(plan.check_notes))
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


def _check_patients(plan: Plan) -> None:
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
