"""The privacy statement of a cell: enough for a reviewer to redo the accounting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpprobe.errors import PrivacyError
from dpprobe.privacy.plan import Mechanism, Plan

FORMAT = "dpprobe-privacy"
FORMAT_VERSION = 1

MODES = {
    "benchmark": "Not for release. Noise and batches come from seeds stored with the results, so "
    "anyone who has them can recompute the noise and subtract it.",
}
PUBLIC_DATA = (
    "The backbone was pretrained on public data, assumed to hold none of the private images nor "
    "near-duplicates of them. Its weights and preprocessing do not depend on the private data."
)
PUBLIC_FACTS = (
    "the number of training rows n (sampling rates and step counts are computed from it)",
    "the list of classes and the dimension of the features",
    "the hyperparameters, chosen without looking at the private data",
)
NOT_COVERED = (
    "the features, their shards, and any plot of them, t-SNE included",
    "training losses and learning curves, and log files",
    "predictions and metrics on the test split, where it is private",
    "heads and metrics of other cells: what is published together composes",
    "cells at epsilon inf and the non-private ceiling",
    "a choice of method, epsilon, backbone or hyperparameters made by comparing results on "
    "private data",
    "what floating-point arithmetic and running time reveal beyond real-valued Gaussian noise",
)


def statement(
    plan: Plan,
    *,
    method: str,
    options: Mapping[str, Any],
    mode: str,
    seeds: Sequence[int],
    public_data: Mapping[str, Any],
) -> dict[str, Any]:
    """What was promised, to whom, by which mechanisms, and what was not; JSON-compatible.

    Args:
      plan: as calibrated and run.
      method: the method's name in the study.
      options: its options.
      mode: "benchmark".
      seeds: one a head, as trained.
      public_data: what is known of the backbone's pretraining: its name, its weights' SHA-256, the
        result of a near-duplicate check where one was run.

    Raises:
      PrivacyError: for an unknown mode.
    """
    if mode not in MODES:
        raise PrivacyError(f"privacy statement: mode {mode!r}; write one of {', '.join(MODES)}")
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "promise": _promise(plan),
        "private": plan.private,
        "unit_of_privacy": plan.unit,
        "neighbouring_relation": plan.neighbouring,
        "epsilon_target": _number(plan.epsilon),
        "epsilon_realised": _number(plan.realised_epsilon),
        "delta": plan.delta if plan.private else None,
        "accountant": plan.priced_by,
        "checks": {name: _number(value) for name, value in plan.checks.items()},
        "n": plan.n,
        "mechanisms": [_mechanism(mechanism) for mechanism in plan.mechanisms],
        "method": method,
        "options": dict(options),
        "mode": mode,
        "release": MODES[mode],
        "seeds": [f"{seed:032x}" for seed in seeds],
        "public": list(PUBLIC_FACTS),
        "public_data": {"assumption": PUBLIC_DATA, **public_data},
        "not_covered": list(NOT_COVERED),
    }


def _promise(plan: Plan) -> str:
    if not plan.private:
        return "No privacy is promised: epsilon is infinite, nothing was clipped, no noise added."
    return (
        f"The weights of any one of the heads are ({plan.epsilon:g}, {plan.delta:g})-"
        f"differentially private with respect to adding or removing {plan.unit}. Each seed is a "
        "fit of its own: publishing several composes."
    )


def _mechanism(mechanism: Mechanism) -> dict[str, Any]:
    silent = mechanism.noise_multiplier == 0
    deviation = mechanism.noise_multiplier * mechanism.sensitivity
    return {
        "name": mechanism.name,
        "released": mechanism.released,
        "noise": "none" if silent else "Gaussian",
        "sensitivity": None if silent else mechanism.sensitivity,
        "noise_multiplier": mechanism.noise_multiplier,
        "noise_standard_deviation": deviation,
        "sampling": "all rows" if mechanism.sample_rate == 1 else "Poisson",
        "sample_rate": mechanism.sample_rate,
        "count": mechanism.count,
    }


def _number(value: float) -> float | str:
    return "inf" if math.isinf(value) else value
