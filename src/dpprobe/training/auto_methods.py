"""`auto` methods: resolved from public facts of features, then calibrated, in jobs that read them.

Calibrating a study's other methods needs only n, and is a separate job before feature extraction.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dpprobe.heads.auto import is_undecided, trained_head
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import Patients, Plan
from dpprobe.privacy.risk import Risk, plan_budget
from dpprobe.training.plan_file import Plans, make_plans

logger = logging.getLogger("dpprobe")


def facts_of_plan(plan: Plan, *, dimension: int, classes: int, multi_label: bool) -> DataFacts:
    """Returns the public facts of the data from which a plan's method was chosen."""
    budget = plan_budget(plan)  # for a permitted risk, the plan's epsilon depends on the choice
    return DataFacts(
        n=plan.n,
        dimension=dimension,
        classes=classes,
        multi_label=multi_label,
        epsilon=budget.to_epsilon(plan.delta) if isinstance(budget, Risk) else budget,
        delta=plan.delta,
        unit=plan.unit,
    )


def decide_methods(
    methods: Mapping[str, MethodOptions],
    calibrated: Plans,
    facts: DataFacts,
    *,
    epsilon: float | Risk,
    accountant: str,
    cache: Path,
    seeds: int,
    patients: Patients | None,
) -> tuple[dict[str, MethodOptions], Plans]:
    """Resolves `auto` methods from public facts, and adds their plans to the other plans.

    Args:
      methods: by name; only `auto` methods change.
      calibrated: the plans in the calibration file, which has none for `auto` methods.
      epsilon: the budget, to which the new plans are calibrated.
      patients: given if the dataset names patients and the unit of privacy is one image.
    """
    decided = {
        name: options.resolve_choice(facts)
        for name, options in methods.items()
        if is_undecided(options)
    }
    if not decided:
        return dict(methods), calibrated
    for name, options in decided.items():
        logger.info("%s: head %s, chosen from public facts", name, trained_head(options).head)
    made = make_plans(
        decided,
        n=facts.n,
        epsilon=epsilon,
        delta=facts.delta,
        accountant=accountant,
        cache=cache,
        seeds=seeds,
        unit=facts.unit,
        patients=patients,
    )
    plans = replace(
        calibrated,
        plans={**calibrated.plans, **made.plans},
        failures={**calibrated.failures, **made.failures},
        together={**calibrated.together, **made.together},
    )
    return {name: decided.get(name, options) for name, options in methods.items()}, plans
