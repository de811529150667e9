"""Controls: mechanisms broken on purpose, to test if an audit detects the fault.

Each control trains heads with one deliberate bug. An audit runs all tests on the heads of each
control, and at least one test must refute the claim of the correct plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.analyses.audit.canary_attack import Attack, Shape, make_worlds
from dpprobe.analyses.audit.replay import MadeRows
from dpprobe.analyses.audit.transcripts import Release
from dpprobe.heads import clipping
from dpprobe.heads.exact_sums import Data, ExactSums, Index
from dpprobe.heads.fitted import Heads
from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.normalisation import AroundCentre, NoNormalisation
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.second_order import Design
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.sampling import Sampler

# To simulate no clipping: the factor that raises the clipping norm, and the canary's norm.
UNCLIPPED, LONG = 8.0, 1000.0
# Size of a leak, relative to the largest weight: far below the noise, above float32 rounding.
_FAINT = 1e-6
# Faults at full width affect only classes, features, rows and numbers after these positions.
LATE_CLASS, LATE_FEATURE, LATE_ROW, LAST_ROW, _WORDS = 10, 160, 128, 1024, 1000
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
    "shared_batches": "each Poisson batch serves two steps",
    "paired_units": "units join Poisson batches in pairs",
    "exact_late_classes": "classes after the tenth get no noise",
    "exact_late_features": "features after the 160th get no noise",
    "cut_noise": "noise is cut at 3 standard deviations",
    "cut_far_noise": "noise is cut at 6 standard deviations",
    "clear_bit": "the second-lowest bit of the noise is 0",
    "faint_columns": "noise falls with the feature's number, by up to a tenth",
    "repeated_words": "noise repeats after 1,000 numbers",
    "light_patients": "weights of a patient's images are never below 1/3",
    "late_rows": f"after the 128th, rows are up to {UNCLIPPED:g} times as long as the bound",
    "dropped_rows": "rows after the 1,024th are left out",
    "private_n": "means are over the private number of units with rows, in place of the public n",
}


class Control(NamedTuple):
    """The attack on a broken mechanism, or the reason why the method cannot have the fault."""

    name: str
    breaks: str
    attack: Attack | str


def make_controls(
    attack: Attack, shape: Shape, *, group: int, seed: int, made: MadeRows | None = None
) -> Iterator[Control]:
    """Yields all controls (broken versions) of an attack's mechanism; replays use rows `made`."""
    several = replace(shape, rows_per_unit=max(2, shape.rows_per_unit))
    heavy = make_worlds(several, group=group, length=LONG, seed=seed).change_rows(double_weights)
    changes: dict[str, dict[str, Any]] = {
        "noise_off": {"broken": omit_noise},
        "half_noise": {"broken": halve_noise},
        "shared_noise": {"broken": share_noise},
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
        "exact_late_classes": {"broken": spare_late_classes},
        "exact_late_features": {"broken": spare_late_features},
        "cut_noise": {"broken": partial(cut_noise, attack.claim, 3.0)},
        "cut_far_noise": {"broken": partial(cut_noise, attack.claim, 6.0)},
        "clear_bit": {"broken": clear_bit},
        "faint_columns": {"broken": shrink_columns},
        "repeated_words": {"broken": repeat_words},
        "shared_batches": {"change_sampler": SharedBatches},
        "paired_units": {"change_sampler": PairedUnits},
        "late_rows": {"patch": lengthen_late_rows},
        "private_n": {"broken_head": divide_by_private_n},
    }
    attacks: dict[str, Attack | str] = {
        **{name: replace(attack, **values) for name, values in changes.items()},
        "no_clipping": _loosen_clipping(attack, shape, group=group, seed=seed),
        "half_sample_rate": _halve_claimed_rate(attack),
        "unpriced_centre": _change_rows(attack, centre_rows),
        "largest_norm": _scale_by_largest(attack),
        "classes_by_data": "rows have several labels, which have no numbers"
        if shape.multi_label
        else _change_rows(attack, number_classes),
        "light_patients": _change_rows(attack, raise_weights),
        "dropped_rows": _change_rows(attack, drop_rows),
    }
    attacks |= _list_inapplicable(attack, made)
    if not attack.method.is_exact:
        attacks["float_noise"] = (
            "this engine always uses float32 noise, so its heads are not for release"
        )
    if all(mechanism.count == 1 for mechanism in attack.plan.mechanisms):
        attacks["repeated_noise"] = "every mechanism releases once"
    for name, breaks in CONTROLS.items():
        yield Control(name, breaks, attacks[name])


def _list_inapplicable(attack: Attack, made: MadeRows | None) -> dict[str, Attack | str]:
    """Maps each control at full width that does not apply to the reason."""
    reasons: dict[str, Attack | str] = {}
    rows, columns = (0, 0) if made is None else made.features.shape
    classes = 0 if made is None else made.num_classes
    if all(item.sample_rate == 1 for item in attack.plan.mechanisms):
        reasons |= dict.fromkeys(("shared_batches", "paired_units"), "no release uses a sample")
    if classes <= LATE_CLASS:
        reasons["exact_late_classes"] = f"there are at most {LATE_CLASS} classes"
    if columns <= LATE_FEATURE:
        reasons["exact_late_features"] = f"there are at most {LATE_FEATURE} features"
    if not attack.method.is_exact:
        only = "this engine always uses float32 noise, so its heads are not for release"
        reasons |= dict.fromkeys(
            ("clear_bit", "repeated_words", "cut_noise", "cut_far_noise"), only
        )
    if made is None or made.sizes.max() <= 1:
        reasons["light_patients"] = "every unit has one row"
    head = attack.method.trained_head
    if rows <= LATE_ROW:
        reasons["late_rows"] = f"there are at most {LATE_ROW} rows"
    elif isinstance(head, GradientOptions) and head.engine == "opacus":
        reasons["late_rows"] = "Opacus clips the rows, but this control changes dpprobe's code"
    elif isinstance(head, GradientOptions) and head.longest_gradient(classes) <= head.max_grad_norm:
        reasons["late_rows"] = "the method's normalisation keeps all gradients within the bound"
    if rows <= LAST_ROW:
        reasons["dropped_rows"] = f"there are at most {LAST_ROW:,} rows"
    if classes * (columns + 1) <= _WORDS:
        reasons["repeated_words"] = f"the head has at most {_WORDS:,} numbers"
    return reasons


def _loosen_clipping(attack: Attack, shape: Shape, *, group: int, seed: int) -> Attack | str:
    """Makes an attack on rows clipped to several times the norm for which epsilon holds."""
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
    return replace(attack, method=loose, plan=plan, worlds=(worlds,))


def _scale_by_largest(attack: Attack) -> Attack | str:
    method = attack.method
    if isinstance(method.normalize, AroundCentre):
        return "the method's normalisation scales each row to unit norm first"
    if not method.normalize.priced:
        method = method.model_copy(update={"normalize": NoNormalisation()})
    return _change_rows(replace(attack, method=method), scale_rows)


def _change_rows(attack: Attack, change: Callable[[TrainingSet], TrainingSet]) -> Attack:
    worlds = tuple(each.change_rows(change) for each in attack.worlds)
    return replace(attack, worlds=worlds, change_rows=change)


def _halve_claimed_rate(attack: Attack) -> Attack | str:
    """Makes an attack whose claim assumes half of the true sampling rate."""
    plan = attack.plan
    if all(item.sample_rate == 1 for item in plan.mechanisms):
        return "no release uses a sample of the rows"
    halved = tuple(
        replace(item, sample_rate=item.sample_rate / 2) if item.sample_rate < 1 else item
        for item in plan.mechanisms
    )
    return replace(attack, claim=replace(plan, mechanisms=halved))


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


def spare_late_classes(release: Release, _: list[Release]) -> torch.Tensor:
    broken = release.output.clone()
    if release.sums.ndim == 2 and not _is_symmetric(release):
        broken[LATE_CLASS:] = release.sums[LATE_CLASS:]
    return broken


def spare_late_features(release: Release, _: list[Release]) -> torch.Tensor:
    broken = release.output.clone()
    broken[..., LATE_FEATURE:-1] = release.sums[..., LATE_FEATURE:-1]
    if _is_symmetric(release):
        broken[LATE_FEATURE:-1] = release.sums[LATE_FEATURE:-1]
    return broken


def cut_noise(claim: Plan, tail: float, release: Release, _: list[Release]) -> torch.Tensor:
    """Cuts noise at `tail` standard deviations of the claimed noise."""
    most = torch.full_like(release.output, tail * claim.find_mechanism(release.name).noise_scale)
    if _is_symmetric(release):
        most *= math.sqrt(0.5)
        most.diagonal().mul_(math.sqrt(2))
    if release.step is not None:
        most = (most / release.step).floor() * release.step
    return release.sums + torch.minimum(torch.maximum(release.output - release.sums, -most), most)


def clear_bit(release: Release, _: list[Release]) -> torch.Tensor:
    """Clears the second-lowest bit of the noise, so that the sum's bit is released."""
    step = release.step or 1.0
    whole = ((release.output - release.sums) / step).round().long()
    return release.sums + (whole & ~2).double() * step


def shrink_columns(release: Release, _: list[Release]) -> torch.Tensor:
    step, columns = release.step or 0.0, release.sums.shape[-1]
    noise = (release.output - release.sums) * torch.linspace(1, 0.9, columns).to(release.output)
    if _is_symmetric(release):
        noise = noise.triu() + noise.triu(1).T
    return release.sums + ((noise / step).round() * step if step else noise)


def repeat_words(release: Release, _: list[Release]) -> torch.Tensor:
    noise = release.output - release.sums
    if _is_symmetric(release):
        return release.output
    places = torch.arange(noise.numel()) % _WORDS
    return release.sums + noise.reshape(-1)[places].reshape(noise.shape)


class SharedBatches:
    """Uses each batch of a sampler in two steps."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._again: npt.NDArray[np.int64] | None = None

    def draw_block(self, steps: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        batches = [self._draw_batch() for _ in range(steps)]
        return np.concatenate([np.zeros(0, np.int64), *batches]), np.array([*map(len, batches)])

    def _draw_batch(self) -> npt.NDArray[np.int64]:
        batch, self._again = self._again, None
        if batch is None:
            self._again = batch = self._sampler.draw_block(1)[0]
        return batch


class PairedUnits:
    """Makes units 2i and 2i + 1 join the batches that unit 2i joins."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def draw_block(self, steps: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        units, sizes = self._sampler.draw_block(steps)
        step = np.repeat(np.arange(steps), sizes)[units % 2 == 0]
        units = units[units % 2 == 0]
        pairs = np.stack([units, units + 1], axis=1)
        # with an odd number of units the last has no partner; it is never an audit's canary
        return pairs.ravel(), 2 * np.bincount(step, minlength=steps)


class _PlacedData(Data):
    """Rows of a sum (possibly copies); `late` is True for rows after the fit's 128th row."""

    late: npt.NDArray[np.bool_]


@contextmanager
def lengthen_late_rows() -> Iterator[None]:
    """Makes the heads' code clip rows after the 128th to a larger norm, in this process only."""
    make_design, add_rows, bounds = Design.__init__, ExactSums._add_rows, clipping.clip_bounds
    make_data = ExactSums._make_data

    def make_loose(design: Design, *args: Any, **options: Any) -> None:
        make_design(design, *args, **options)
        for values in (design.scale, design._shift, design.constant):
            if values is not None:
                values[LATE_ROW:] *= UNCLIPPED

    def make_placed(sums: ExactSums, features: Any, index: Any, *rest: Any) -> Data:
        data = _PlacedData(*make_data(sums, features, index, *rest))
        data.late = (torch.arange(len(sums._rows))[index] >= LATE_ROW).numpy()
        return data

    def add_loose(sums: ExactSums, data: Data, index: Index, *rest: Any) -> None:
        assert isinstance(data, _PlacedData)
        late, loose = data.late[index], copy(sums)
        loose._given = sums._given._replace(clip=sums._given.clip * UNCLIPPED)
        add_rows(sums, data, index[~late], *rest)
        add_rows(loose, data, index[late], *rest)

    def bound_loosely(norms: torch.Tensor, clip: float) -> torch.Tensor:
        longest = bounds(norms, clip)
        longest[LATE_ROW:] *= UNCLIPPED
        return longest

    try:
        setattr(Design, "__init__", make_loose)  # noqa: B010 mypy sees no methods that change
        setattr(ExactSums, "_make_data", make_placed)  # noqa: B010
        setattr(ExactSums, "_add_rows", add_loose)  # noqa: B010
        clipping.clip_bounds = bound_loosely
        yield
    finally:
        setattr(Design, "__init__", make_design)  # noqa: B010
        setattr(ExactSums, "_make_data", make_data)  # noqa: B010
        setattr(ExactSums, "_add_rows", add_rows)  # noqa: B010
        clipping.clip_bounds = bounds


class _OneNoise:
    """Adds the first run's noise in all runs."""

    def __init__(self) -> None:
        self._noise: dict[int, torch.Tensor] = {}

    def __call__(self, release: Release, earlier: list[Release]) -> torch.Tensor:
        noise = self._noise.setdefault(len(earlier), release.output - release.sums)
        return release.sums + noise


def add_counts(heads: Heads, data: TrainingSet, *, share: float | None = None) -> Heads:
    """Adds each class's exact number of rows to the biases.

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


def raise_weights(data: TrainingSet) -> TrainingSet:
    assert data.units is not None
    weights = np.maximum(data.units.weights, np.float32(1 / 3))
    return data.replace_labels(data.labels, replace(data.units, weights=weights))


def drop_rows(data: TrainingSet) -> TrainingSet:
    assert data.features is not None
    late = torch.arange(data.rows)[:, None] >= LAST_ROW
    return _replace_rows(data, data.features.masked_fill(late, torch.nan), data.labels)


def centre_rows(data: TrainingSet) -> TrainingSet:
    """Subtracts the exact mean from all rows, and scales rows to unit norm; zeros stay zero."""
    _ = data.lengths  # clears unusable rows
    assert data.features is not None
    shifted = data.features - data.features.double().mean(0)
    norms = shifted.norm(dim=1, keepdim=True)
    rows = torch.where(norms > 1e-6, shifted / norms, 0.0).float()
    return _replace_rows(data, rows, data.labels)


def scale_rows(data: TrainingSet) -> TrainingSet:
    """Divides rows by the largest norm of all rows."""
    lengths = data.lengths  # clears unusable rows
    assert data.features is not None
    longest = lengths[lengths.isfinite()].max().float()
    return _replace_rows(data, data.features / longest, data.labels)


def number_classes(data: TrainingSet) -> TrainingSet:
    """Renumbers classes from 0; only labels that occur in the data get a number."""
    assert data.features is not None
    return _replace_rows(data, data.features, data.labels.unique(return_inverse=True)[1])


def _replace_rows(data: TrainingSet, features: torch.Tensor, labels: torch.Tensor) -> TrainingSet:
    kept: dict[str, Any] = {"units": data.units, "public": data.public, "warn": data._warn}
    return TrainingSet(features, labels, data.num_classes, **kept)


def _has_classes(release: Release) -> bool:
    """Returns True if a release has one row per class; rows have more features than classes."""
    return release.sums.ndim == 2 and release.sums.shape[0] < release.sums.shape[1]


def _is_symmetric(release: Release) -> bool:
    sums = release.sums
    return sums.ndim == 2 and sums.shape[0] == sums.shape[1] and bool(torch.equal(sums, sums.T))


def _find_first(release: Release, earlier: list[Release]) -> Release | None:
    return next((item for item in earlier if item.name == release.name), None)
