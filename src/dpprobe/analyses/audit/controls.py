"""Mechanisms broken on purpose: an audit that does not catch them is worth nothing.

Each control trains and attacks what a bug would train, and its bound is held against the claim of
the plan that is right. All of them must exceed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dpprobe.analyses.audit.canaries import Shape, alike_worlds, make_worlds
from dpprobe.analyses.audit.canary_attack import Attack
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.plan import Plan

CONTROLS = (
    "noise_off", "half_noise", "no_clipping", "half_sample_rate", "shared_noise",
    "unpriced_centre", "float_noise",
)  # fmt: skip
# How many times the clipping norm a row may add where clipping is as good as off, and the norm of
# such a canary.
UNCLIPPED, LONG = 8.0, 1000.0
_CLIPS = ("max_grad_norm", "max_row_norm")
_SILENT = 1e-3


@dataclass(frozen=True, kw_only=True)
class Control:
    """A broken mechanism.

    Attributes:
      breaks: the fault, in words.
      attack: on it; None where the fault does not exist for the method.
      noise: the plan's multipliers with the fault, where it is in these alone.
      reason: for no attack.
    """

    name: str
    breaks: str
    test: str = "log likelihood ratio of all releases"
    attack: Attack | None = None
    noise: Plan | None = None
    reason: str = ""


def make_controls(
    attack: Attack, shape: Shape, *, group: int, seed: int, cache: Path
) -> Iterator[Control]:
    """Yields the controls of an attack on what is right.

    Args:
      group: canaries.
    """
    yield Control(
        name="noise_off",
        breaks="no noise is added",
        attack=replace(attack, broken=lambda sums, _: sums.clone(), noise=_SILENT),
    )
    yield Control(
        name="half_noise",
        breaks="half of the noise is added",
        attack=replace(attack, broken=lambda sums, noisy: (sums + noisy) / 2, noise=0.5),
        noise=_with_noise(attack.plan, 0.5),
    )
    yield _make_unclipped_control(attack, shape, group=group, seed=seed)
    yield _half_rate(attack, cache)
    yield _make_shared_noise_control(attack, shape)
    yield Control(
        name="unpriced_centre",
        breaks="rows are centred by their exact mean, for which nothing was paid",
        attack=replace(attack, worlds=alike_worlds(shape, group=group, seed=seed)),
    )
    yield Control(
        name="float_noise",
        breaks="float32 noise is added to float64 sums, not the rounding of a real Gaussian",
        test="whether the noise is a float32, if the canary was in and if not",
        attack=replace(attack, broken=_float_noise, low_bits=True),
    )


def _make_unclipped_control(attack: Attack, shape: Shape, *, group: int, seed: int) -> Control:
    """Returns a control whose rows are clipped at several times the norm that is priced."""
    name, breaks = "no_clipping", f"rows may add {UNCLIPPED:g} times the clipping norm"
    method = attack.method
    changes = {clip: UNCLIPPED * getattr(method, clip) for clip in _CLIPS if hasattr(method, clip)}
    if not changes:
        return Control(name=name, breaks=breaks, reason="the method has no clipping norm to lift")
    if not method.normalize.priced:
        changes["normalize"] = NoNormalisation()
    loose: MethodOptions = method.model_copy(update=changes)
    sensitivities = {item.name: item.sensitivity for item in loose.list_mechanisms(shape.n)}
    mechanisms = tuple(
        replace(
            item,
            sensitivity=sensitivities[item.name],
            noise_multiplier=item.noise_multiplier / UNCLIPPED,
        )
        for item in attack.plan.mechanisms
    )
    worlds = make_worlds(shape, group=group, length=LONG, seed=seed)
    plan = replace(attack.plan, mechanisms=mechanisms)
    return Control(
        name=name, breaks=breaks, attack=replace(attack, method=loose, plan=plan, worlds=worlds)
    )


def _half_rate(attack: Attack, cache: Path) -> Control:
    """Returns a control whose noise was priced for batches of half their size."""
    name, breaks = "half_sample_rate", "the accountant is told half of the sampling rate"
    plan = attack.plan
    if all(item.sample_rate == 1 for item in plan.mechanisms):
        return Control(name=name, breaks=breaks, reason="no release is of a sample")
    halved = tuple(
        replace(item, sample_rate=item.sample_rate / 2) if item.sample_rate < 1 else item
        for item in plan.mechanisms
    )
    priced = calibrate(
        halved,
        n=plan.n,
        epsilon=plan.epsilon,
        delta=plan.delta,
        accountant=plan.accountant,
        cache=cache,
        selection=None,
        unit=plan.unit,
    )
    noise = {item.name: item.noise_multiplier for item in priced.mechanisms}
    quiet = tuple(replace(item, noise_multiplier=noise[item.name]) for item in plan.mechanisms)
    less = replace(plan, mechanisms=quiet)
    return Control(name=name, breaks=breaks, attack=replace(attack, plan=less), noise=less)


def _with_noise(plan: Plan, factor: float) -> Plan:
    return replace(plan, mechanisms=tuple(item.scale_noise(factor) for item in plan.mechanisms))


def _make_shared_noise_control(attack: Attack, shape: Shape) -> Control:
    name, breaks = "shared_noise", "all classes get the same noise"
    if shape.num_classes == 1:
        return Control(name=name, breaks=breaks, reason="there is one class")
    return Control(
        name=name,
        breaks=breaks,
        test="log likelihood ratio of the differences between classes",
        attack=replace(attack, broken=share_noise, noise=_SILENT, contrast=True),
    )


def share_noise(sums: torch.Tensor, noisy: torch.Tensor) -> torch.Tensor:
    """Gives every class the noise of the first; a square matrix keeps its noise."""
    if sums.ndim != 2 or sums.shape[0] == sums.shape[1]:
        return noisy
    return sums + (noisy[:1] - sums[:1])


def _float_noise(sums: torch.Tensor, noisy: torch.Tensor) -> torch.Tensor:
    return sums.double() + (noisy - sums).float().double()
