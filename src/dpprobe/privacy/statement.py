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
NO_PUBLIC_DATA = (
    "The backbone's weights, if it has any, are random or fixed: no data went into them."
)
PUBLIC_FACTS = (
    "the number of training rows n (sampling rates and step counts are computed from it)",
    "the list of classes and the dimension of the features",
)
FIXED_OPTIONS = "the hyperparameters, chosen without looking at the private data"
# What heads do with private data beside their mechanisms.
PRIVATE_CHOICES = {
    "nonprivate": "the head itself: it standardises features with the private rows' means and "
    "deviations, and chooses its penalty by cross-validation on them",
}
NOT_COVERED = (
    "the features, their shards, and any plot of them, t-SNE included",
    "training losses and learning curves, and log files",
    "predictions and metrics on the test split, where it is private",
    "the split into training and test rows where it was made here: one more source image can "
    "move another one across the boundary. The promise is for rows of the training split as it is",
    "heads and metrics of other cells: what is published together composes",
    "cells at epsilon inf and the non-private ceiling",
    "a choice of method, epsilon, backbone or hyperparameters made by comparing results on "
    "private data",
    "seeds, fingerprints and hashes stored with the results: they are functions of the private "
    "data, and the seeds give the noise away",
    "whether a run fails, and the errors it raises",
    "what floating-point arithmetic and running time reveal beyond real-valued Gaussian noise",
)
ENGINE_LIMITS = {
    "opacus": "Engine opacus is a reference, not for release: it computes norms in float32, up to "
    "4e-4 above the clipping norm as measured, and on the CPU its noise never exceeds 5.77 "
    "standard deviations. The epsilon stated holds for exact norms and untruncated noise.",
}


def statement(
    plan: Plan,
    *,
    method: str,
    options: Mapping[str, Any],
    mode: str,
    seeds: Sequence[int],
    public_data: Mapping[str, Any],
    epsilon_all_heads: float,
) -> dict[str, Any]:
    """What was promised, to whom, by which mechanisms, and what was not; JSON-compatible.

    Args:
      plan: as calibrated and run.
      method: the method's name in the study.
      options: its options, `head` among them.
      mode: "benchmark".
      seeds: one a head, as trained.
      public_data: what is known of the backbone's pretraining: `trained`, whether there was any;
        its name, its weights' SHA-256, the result of a near-duplicate check where one was run.
      epsilon_all_heads: the price at the same delta of publishing the heads of all seeds.

    Raises:
      PrivacyError: for an unknown mode.
    """
    if mode not in MODES:
        raise PrivacyError(f"privacy statement: mode {mode!r}; write one of {', '.join(MODES)}")
    head = str(options["head"])
    own = PRIVATE_CHOICES.get(head)
    trained = bool(public_data["trained"])
    limits = ENGINE_LIMITS.get(str(options.get("engine")))
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "promise": _promise(plan, own, len(seeds), epsilon_all_heads),
        "private": plan.private,
        "unit_of_privacy": plan.unit,
        "neighbouring_relation": plan.neighbouring,
        "epsilon_target": _number(plan.epsilon),
        "epsilon_realised": _number(plan.realised_epsilon),
        "epsilon_all_heads": _number(epsilon_all_heads),
        "delta": plan.delta if plan.private else None,
        "accountant": plan.priced_by,
        "checks": {name: _number(value) for name, value in plan.checks.items()},
        "check_notes": dict(plan.check_notes),
        "n": plan.n,
        "mechanisms": [_mechanism(mechanism) for mechanism in plan.mechanisms],
        "method": method,
        "options": dict(options),
        "mode": mode,
        "release": MODES[mode],
        "seeds": [f"{seed:032x}" for seed in seeds],
        "engine_limits": limits,
        "public": [*PUBLIC_FACTS] if own else [*PUBLIC_FACTS, FIXED_OPTIONS],
        "public_data": {"assumption": PUBLIC_DATA if trained else NO_PUBLIC_DATA, **public_data},
        "not_covered": [own, *NOT_COVERED] if own else [*NOT_COVERED],
    }


def _promise(plan: Plan, own: str | None, heads: int, together: float) -> str:
    if not plan.private and own:
        return f"No privacy is promised: this method is not private. Not covered is {own}."
    if not plan.private:
        return "No privacy is promised: epsilon is infinite, nothing was clipped, no noise added."
    one = (
        f"The weights of any one of the heads are ({plan.epsilon:g}, {plan.delta:g})-"
        f"differentially private with respect to adding or removing {plan.unit}."
    )
    if heads == 1:
        return one
    return (
        f"{one} Each seed is a fit of its own: publishing several composes, and all {heads} heads "
        f"together, as heads.safetensors holds them, are ({together:.4g}, {plan.delta:g})-"
        "differentially private."
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


def _number(value: float | None) -> float | str | None:
    return "inf" if value is not None and math.isinf(value) else value
