"""Trains any head: checks its plan, normalises the rows, calls the head's module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from dpprobe.devices import use_full_float32
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.heads.balance import fit_balanced
from dpprobe.heads.dimension_limits import dimension_fault
from dpprobe.heads.fitted import Fitted, Heads, Observe, Record
from dpprobe.heads.joint_fits import cohort_fault, sites_fault
from dpprobe.heads.normalised_rows import normalise_rows
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.plan_check import check_plan
from dpprobe.heads.rows import Rows
from dpprobe.heads.student import compare_student
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy.entropy import SEEDED, Entropy
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.releases import Observer, Releases, Shared
from dpprobe.privacy.running_sums import RunningSums


def fit_heads(
    method: MethodOptions,
    data: TrainingSet,
    plan: Plan,
    seeds: Sequence[int],
    *,
    record: Observe | None = None,
    entropy: Entropy = SEEDED,
    observer: Observer | None = None,
    running: RunningSums | None = None,
    shared: Shared | None = None,
    kept: dict[str, torch.Tensor] | None = None,
) -> Heads:
    """Trains one head per seed, several seeds together where that saves time.

    Args:
      data: the private training examples, on the device that is to train.
      plan: the plan of this method for the number of units in `data`.
      seeds: different seeds from `privacy.randomness.cell_seed`, one per head.
      record: called at the start, about twenty times during training, and at the end. Without
        `record`, no training loss is computed and the history is empty.
      entropy: source of random numbers; `SystemEntropy` for a release.
      observer: for an audit; sees every release before and after its noise.
      running: the earlier cohorts, whose released sums the head also uses; allows one seed only.
      shared: adds up the sums of several sites, if `data` belong to one site; allows one seed only.
      kept: a dictionary that receives noisy second moments by name, except during a search.

    Raises:
      ConfigError: if there are more features than the method supports, or units have several rows
        that its engine cannot clip together.
      PrivacyError: if the plan is for another method or data, if releases are not in the plan, or
        if a public file was not compared with the data.

    Example:
      >>> from dpprobe.heads.registry import method_options
      >>> from dpprobe.privacy.plan import full_batch
      >>> method = method_options({"head": "prototypes", "normalize": "l2"})
      >>> data = TrainingSet(torch.eye(3).repeat(40, 1), torch.arange(3).repeat(40), num_classes=3)
      >>> noisy = [m.scale_noise(4) for m in method.list_mechanisms(data.n)]
      >>> plan = Plan(
      ...     mechanisms=tuple(noisy), n=data.n, epsilon=1.0, delta=1e-5, accountant="pld",
      ...     realised_epsilon=0.94,
      ... )
      >>> heads = fit_heads(method, data, plan, seeds=[11, 12])
      >>> heads.weights.shape  # [seeds, classes, features + 1]
      (2, 3, 4)
      >>> fit_heads(method_options({"head": "least_squares"}), data, plan, seeds=[11])
      Traceback (most recent call last):
          ...
      dpprobe.errors.PrivacyError: plan: it was made for another method, ... it has 'class_sums'
    """
    check_inputs(method, data, plan, seeds)
    if running is not None and (fault := cohort_fault(method)):
        raise ConfigError(fault)
    if shared is not None and (fault := sites_fault(method, plan.n)):
        raise ConfigError(fault)
    if entropy.secret and not method.is_exact:
        raise PrivacyError(
            f"head {method.head}: a release needs exact sums, but this head does not compute "
            "them; write `engine: exact`, or another head"
        )
    # Each seed releases statistics for its normalisation, so it trains on its own normalised rows.
    groups = [(seed,) for seed in seeds] if method.normalize.priced else [tuple(seeds)]
    once = observer is None and not _is_random(method, plan)
    fits: list[Fitted] = []
    transforms: list[Transform] = []
    for group in groups[:1] if once else groups:
        releases = Releases(
            plan,
            group,
            data.device,
            entropy=entropy,
            observer=observer,
            running=running,
            shared=shared,
        )
        releases.kept = kept
        fit, transform = _fit_group(method, data, releases, record)
        fits.append(fit)
        transforms += [transform] * len(group)
    if once and len(groups) > 1:
        # one transform per head, as in heads read from a file, so that scores agree
        fits, transforms = fits * len(groups), [replace(transforms[0]) for _ in groups]
    return _join_fits(fits, seeds, transforms)


def _is_random(method: MethodOptions, plan: Plan) -> bool:
    """Returns False if all seeds give the same fit: no noise, sampling, random start or search."""
    return (
        plan.private
        or any(each.sample_rate < 1 for each in plan.mechanisms)
        or getattr(method.trained_head, "init", "zero") not in ("zero", "file")
        or method.priced_selection(plan.n) is not None
    )


def _fit_group(
    method: MethodOptions, data: TrainingSet, releases: Releases, record: Observe | None
) -> tuple[Fitted, Transform]:
    """Fits heads on one normalisation; returns heads and the normalisation for scoring rows."""
    with use_full_float32():
        rows = normalise_rows(data, method.normalize, releases)
        fit = fit_balanced(method, rows, releases, record=_make_recorder(record, rows))
        weights = rows.scored_weights(torch.from_numpy(fit.weights).to(data.device))
        fit = replace(fit, weights=weights.cpu().numpy())
        if method.has_student:
            scored = rows if rows.transform is rows.scoring else Rows(data, rows.scoring)
            fit = compare_student(method.trained_head, fit, scored, releases)
    releases.check_counts()
    return fit, rows.scoring


def _join_fits(fits: list[Fitted], seeds: Sequence[int], transforms: list[Transform]) -> Heads:
    """Joins the fits of several groups of seeds."""
    size = len(seeds) // len(fits)
    history = [
        row | {"seed_index": row["seed_index"] + index * size}
        for index, part in enumerate(fits)
        for row in part.history
    ]
    priors = [part.priors for part in fits if part.priors is not None]
    gains = [part.gains for part in fits if part.gains is not None]
    return Heads(
        weights=np.concatenate([part.weights for part in fits]),
        seeds=tuple(seeds),
        transforms=tuple(transforms),
        steps=fits[0].steps,
        history=history,
        chosen=tuple(choice for part in fits for choice in part.chosen),
        priors=np.concatenate(priors) if priors else None,
        gains=np.concatenate(gains) if gains else None,
    )


def _make_recorder(record: Observe | None, rows: Rows) -> Record | None:
    if record is None:
        return None
    return lambda step, weights: record(step, rows.scored_weights(weights), rows.scoring)


def check_inputs(
    method: MethodOptions, data: TrainingSet, plan: Plan, seeds: Sequence[int]
) -> None:
    """Checks a fit's inputs before any noise is drawn; raises the errors of `fit_heads`."""
    if plan.n != data.n:
        rows = "rows" if data.units is None else "units of privacy"
        raise PrivacyError(
            f"head {method.head}: the plan is for n = {plan.n} {rows}, but the data has {data.n}; "
            "calibrate for this dataset"
        )
    if method.private:
        check_plan(method, plan)
    elif plan.private or plan.mechanisms:
        raise PrivacyError(
            f"head {method.head}: the head is not private, but its plan has epsilon "
            f"{plan.epsilon:g} and {len(plan.mechanisms)} mechanisms; calibrate for this method"
        )
    if len(set(seeds)) < len(seeds) or not seeds:
        raise PrivacyError(
            f"head {method.head}: pass one or more seeds that differ from each other"
        )
    if fault := dimension_fault(method.trained_head, data.dimension):
        raise ConfigError(fault)
    if data.units is not None and (fault := method.units_fault):
        raise ConfigError(f"head {method.head}: {fault}")
    if data.multi_label and not method.multi_label:
        raise PrivacyError(
            f"head {method.head}: it takes one label per row, but these rows have several"
        )
    data.public.require_files(method)
