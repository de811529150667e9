"""Controls: mechanisms broken on purpose, to test if an audit detects the fault.

Each control trains heads with one deliberate bug. An audit runs all tests on the heads of each
control, and at least one test must refute the claim of the correct plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from dpprobe.analyses.audit.canary_attack import Attack, Shape, alike_worlds, make_worlds
from dpprobe.analyses.audit.transcripts import Release
from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalisation import AroundCentre, NoNormalisation
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.training_set import TrainingSet

# To simulate no clipping: the factor that raises the clipping norm, and the canary's norm.
UNCLIPPED, LONG = 8.0, 1000.0
# Size of a leak, relative to the largest weight: far below the noise, above float32 rounding.
_FAINT = 1e-6
_CLIPS = ("max_grad_norm", "max_row_norm")
# Descriptions of the deliberate faults, by the name of the control.
CONTROLS = {
    "noise_off": "no noise is added",
    "half_noise": "half of the noise is added",
    "no_clipping": f"rows are clipped to {UNCLIPPED:g} times the clipping norm",
    "half_sample_rate": "the accountant is told half of the sampling rate",
    "shared_noise": "all classes, or features, get the same noise",
    "unpriced_centre": "rows are centred by their exact mean, which epsilon does not cover",
    "float_noise": "float32 noise is added to float64 sums instead of a rounded real Gaussian",
    "exact_class": "the last class, or feature, gets no noise",
    "exact_first_step": "the last class, or feature, gets no noise in the first step",
    "exact_bias": "biases get no noise",
    "repeated_noise": "all steps get the same noise",
    "noise_of_another_run": "all runs get the same noise",
    "noise_by_data": "the noise has the same sign as the sum",
    "counts_in_bias": "the exact numbers of rows of each class are added to the biases",
    "faint_counts": (
        "the exact numbers of rows of each class are added to the biases, far below noise"
    ),
    "noise_off_unobserved": "no noise is added if no audit observes",
    "double_weight": "the rows of a unit have twice their weight",
    "largest_norm": "rows are scaled by the largest norm of all rows",
    "classes_by_data": "classes are numbered by the labels that occur in the data",
    "private_n": "means are over the private number of units with rows, in place of the public n",
}


class Control(NamedTuple):
    """The attack on a broken mechanism, or the reason why the method cannot have the fault."""

    name: str
    breaks: str
    attack: Attack | str


def make_controls(attack: Attack, shape: Shape, *, group: int, seed: int) -> Iterator[Control]:
    """Yields all controls (broken versions) of an attack's mechanism."""
    alike = alike_worlds(shape, group=group, seed=seed).change_rows(centre_rows)
    several = replace(shape, rows_per_unit=max(2, shape.rows_per_unit))
    heavy = make_worlds(several, group=group, length=LONG, seed=seed).change_rows(double_weights)
    changes: dict[str, dict[str, Any]] = {
        "noise_off": {"broken": omit_noise},
        "half_noise": {"broken": halve_noise},
        "shared_noise": {"broken": share_noise},
        "unpriced_centre": {"worlds": (alike,)},
        "float_noise": {"broken": add_float_noise},
        "exact_class": {"broken": spare_class},
        "exact_first_step": {"broken": spare_class_once},
        "exact_bias": {"broken": spare_bias},
        "repeated_noise": {"broken": repeat_noise},
        "noise_of_another_run": {"broken": _OneNoise()},
        "noise_by_data": {"broken": follow_sums},
        "counts_in_bias": {"broken_head": add_counts},
        "faint_counts": {"broken_head": partial(add_counts, share=_FAINT)},
        "noise_off_unobserved": {"broken_unobserved": omit_noise},
        "double_weight": {"worlds": (heavy,)},
        "private_n": {"broken_head": divide_by_private_n},
    }
    attacks: dict[str, Attack | str] = {
        **{name: replace(attack, unusual=(), **values) for name, values in changes.items()},
        "no_clipping": _loosen_clipping(attack, shape, group=group, seed=seed),
        "half_sample_rate": _halve_claimed_rate(attack),
        "largest_norm": _scale_by_largest(attack),
        "classes_by_data": "rows have several labels, which have no numbers"
        if shape.multi_label
        else _change_rows(attack, number_classes),
    }
    if not attack.method.is_exact:
        attacks["float_noise"] = (
            "this engine always uses float32 noise, so its heads are not for release"
        )
    if all(mechanism.count == 1 for mechanism in attack.plan.mechanisms):
        attacks["repeated_noise"] = "every mechanism releases once"
    for name, breaks in CONTROLS.items():
        yield Control(name, breaks, attacks[name])


def _loosen_clipping(attack: Attack, shape: Shape, *, group: int, seed: int) -> Attack | str:
    """Makes the attack on rows clipped to several times the norm for which epsilon holds."""
    method = attack.method
    changes = {clip: UNCLIPPED * getattr(method, clip) for clip in _CLIPS if hasattr(method, clip)}
    if not changes:
        return "the method has no clipping norm to raise"
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
    return replace(attack, method=loose, plan=plan, worlds=(worlds,), unusual=())


def _scale_by_largest(attack: Attack) -> Attack | str:
    method = attack.method
    if isinstance(method.normalize, AroundCentre):
        return "the method's normalisation scales each row to unit norm first"
    if not method.normalize.priced:
        method = method.model_copy(update={"normalize": NoNormalisation()})
    return _change_rows(replace(attack, method=method), scale_rows)


def _change_rows(attack: Attack, change: Callable[[TrainingSet], TrainingSet]) -> Attack:
    worlds, unusual = (
        tuple(each.change_rows(change) for each in pairs)
        for pairs in (attack.worlds, attack.unusual)
    )
    return replace(attack, worlds=worlds, unusual=unusual)


def _halve_claimed_rate(attack: Attack) -> Attack | str:
    """Makes an attack whose claim assumes half of the true sampling rate."""
    plan = attack.plan
    if all(item.sample_rate == 1 for item in plan.mechanisms):
        return "no release uses a sample of the rows"
    halved = tuple(
        replace(item, sample_rate=item.sample_rate / 2) if item.sample_rate < 1 else item
        for item in plan.mechanisms
    )
    return replace(attack, claim=replace(plan, mechanisms=halved), unusual=())


def omit_noise(release: Release, _: list[Release]) -> torch.Tensor:
    return release.sums.clone()


def halve_noise(release: Release, _: list[Release]) -> torch.Tensor:
    return (release.sums + release.output) / 2


def share_noise(release: Release, _: list[Release]) -> torch.Tensor:
    """Adds the noise of the first class to all classes, or of the first feature to all features."""
    noise = release.output - release.sums
    if _has_classes(release):
        return release.sums + noise[:1]
    if noise.ndim == 1:
        return release.sums + noise[0]
    shared = noise[0, 0] * (torch.eye(len(noise)) + math.sqrt(0.5) * (1 - torch.eye(len(noise))))
    return release.sums + shared


def add_float_noise(release: Release, _: list[Release]) -> torch.Tensor:
    return release.sums.double() + release.noise.float().double()


def spare_class(release: Release, _: list[Release]) -> torch.Tensor:
    """Adds no noise to the last class, or to the last feature of a vector or symmetric matrix."""
    broken = release.output.clone()
    broken[-1] = release.sums[-1]
    if not _has_classes(release) and broken.ndim == 2:
        broken[:, -1] = release.sums[:, -1]
    return broken


def spare_class_once(release: Release, earlier: list[Release]) -> torch.Tensor:
    return release.output if _find_first(release, earlier) else spare_class(release, earlier)


def spare_bias(release: Release, _: list[Release]) -> torch.Tensor:
    """Adds no noise to biases: the last column, and in a symmetric matrix also the last row."""
    broken = release.output.clone()
    broken[..., -1] = release.sums[..., -1]
    if not _has_classes(release):
        broken[-1] = release.sums[-1]
    return broken


def repeat_noise(release: Release, earlier: list[Release]) -> torch.Tensor:
    """Adds the first step's noise in all steps."""
    first = _find_first(release, earlier) or release
    return release.sums + (first.output - first.sums)


def follow_sums(release: Release, _: list[Release]) -> torch.Tensor:
    """Adds noise that has the sign of the sum it is added to."""
    noise = (release.output - release.sums).abs()
    return release.sums + torch.where(release.sums < 0, -noise, noise)


class _OneNoise:
    """Adds the first run's noise in all runs."""

    def __init__(self) -> None:
        self._noise: dict[int, torch.Tensor] = {}

    def __call__(self, release: Release, earlier: list[Release]) -> torch.Tensor:
        noise = self._noise.setdefault(len(earlier), release.output - release.sums)
        return release.sums + noise


def add_counts(heads: Heads, data: TrainingSet, *, share: float | None = None) -> Heads:
    """Adds the exact numbers of rows of each class to the biases.

    Args:
      share: scales the counts relative to the largest weight; None adds the counts unscaled.
    """
    labels = data.labels
    counts = labels.sum(0) if labels.ndim == 2 else labels.bincount(minlength=data.num_classes)
    weights = heads.weights.copy()
    largest = np.abs(weights).max(axis=(1, 2))[:, None]
    weights[..., -1] += counts.numpy() * (1 if share is None else share * largest)
    return replace(heads, weights=weights)


def divide_by_private_n(heads: Heads, data: TrainingSet) -> Heads:
    """Divides by the number of units with rows where a head divides noisy sums by n."""
    assert data.units is not None
    present = np.count_nonzero(np.diff(data.units.starts))
    return replace(heads, weights=heads.weights * np.float32(data.n / present))


def double_weights(data: TrainingSet) -> TrainingSet:
    """Doubles the weights of all rows of units with several rows."""
    assert data.units is not None
    weights = data.units.weights
    doubled = np.where(weights < 1, 2 * weights, weights)
    return data.replace_labels(data.labels, replace(data.units, weights=doubled))


def centre_rows(data: TrainingSet) -> TrainingSet:
    """Subtracts the exact mean from all rows, and scales rows to unit norm; zeros stay zero."""
    assert data.features is not None
    shifted = data.features - data.features.double().mean(0)
    norms = shifted.norm(dim=1, keepdim=True)
    return _replace_features(data, torch.where(norms > 1e-6, shifted / norms, 0.0).float())


def scale_rows(data: TrainingSet) -> TrainingSet:
    """Divides rows by the largest norm of all rows."""
    assert data.features is not None
    return _replace_features(data, data.features / data.features.norm(dim=1).max())


def _replace_features(data: TrainingSet, features: torch.Tensor) -> TrainingSet:
    return TrainingSet(
        features, data.labels, data.num_classes, units=data.units, public=data.public
    )


def number_classes(data: TrainingSet) -> TrainingSet:
    """Renumbers classes from 0; only labels that occur in the data get a number."""
    assert data.units is not None
    return data.replace_labels(data.labels.unique(return_inverse=True)[1], data.units)


def _has_classes(release: Release) -> bool:
    """Returns True if a release has one row per class; rows have more features than classes."""
    return release.sums.ndim == 2 and release.sums.shape[0] < release.sums.shape[1]


def _find_first(release: Release, earlier: list[Release]) -> Release | None:
    return next((item for item in earlier if item.name == release.name), None)
