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
from dpprobe.privacy.target import Target
from dpprobe.training.plan_file import Plans, make_plans

logger = logging.getLogger("dpprobe")


def decide_methods(
    methods: Mapping[str, MethodOptions],
    calibrated: Plans,
    facts: DataFacts,
    target: Target,
    *,
    cache: Path,
    seeds: int,
) -> tuple[dict[str, MethodOptions], Plans]:
    """Resolves `auto` methods from public facts, and adds their plans to the other plans.

    Args:
      methods: by name; only `auto` methods change.
      calibrated: the plans in the calibration file, which has none for `auto` methods.
      target: to which the new plans are calibrated.
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
    made = make_plans(decided, target, cache=cache, seeds=seeds)
    plans = replace(
        calibrated,
        plans={**calibrated.plans, **made.plans},
        failures={**calibrated.failures, **made.failures},
        together={**calibrated.together, **made.together},
    )
    return {name: decided.get(name, options) for name, options in methods.items()}, plans
