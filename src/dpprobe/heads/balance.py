"""Heads that balance classes: by public numbers, or by a release of their frequencies.

A row's clipped contribution is multiplied by its class's weight, at most 1, as a patient's m rows
are by 1 / m. Weights of at most 1 increase no unit's contribution, so sensitivities and privacy
costs do not change. Weights are public numbers of the study; weights from private counts would be a
release. Normalisations ignore class weights.

**Priors.** A head trained on classes of frequencies p estimates p(y | x) in proportion to p(x | y)
p(y). With log p subtracted from its biases, the head predicts as if classes were equally frequent
(Menon et al. 2021, "Long-tail learning via logit adjustment"). Subtracting log p is post-processing
of the released head. Priors are public numbers, at no cost, or follow from noisy counts.
`class_priors: released` is one more release of the fit:

**class_counts** [K], the sum over the training examples of their labels' one-hot vectors, each
times its row's weight (1 / m for a row of a unit with m rows), plus Gaussian noise. A unit adds
non-negative numbers of sum at most 1, hence of L2 norm at most 1, and a null row nothing:
sensitivity 1. `prior_share` is the counts' share of the budget; the other releases divide the rest
in unchanged proportions. `released_priors` turns noisy counts into frequencies, which are part of
the published head: post-processing.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from dpprobe.errors import ConfigError
from dpprobe.heads.normalisation import L2, AroundCentre, Share
from dpprobe.heads.options import CLASS_OFFSETS, MethodOptions
from dpprobe.heads.registry import HEADS
from dpprobe.privacy.plan import Mechanism, full_batch, split_budget

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from dpprobe.heads.fitted import Fitted, Record, Values
    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases

Priors: TypeAlias = "npt.NDArray[np.float32]"

Numbers = tuple[Annotated[float, Field(gt=0)], ...]
Released = Literal["released"]

CLASS_COUNTS = "class_counts"
# The share and PRIOR_FLOOR were chosen on public features (bench/results/balanced.md).
DEFAULT_PRIOR_SHARE = 0.02
# Counts are raised to at least PRIOR_FLOOR standard deviations of their noise. Without PRIOR_FLOOR
# noise would decide, without bound, which classes are favoured.
PRIOR_FLOOR = 2.0


def _is_absent(value: object) -> bool:
    return value is None


ClassWeights = Annotated[
    Numbers | None,
    Field(
        min_length=1,
        exclude_if=_is_absent,
        description="Public class weights, one number per class in the classes' order, above 0 "
        "and at most 1. Each example's clipped contribution is multiplied by the weight of its "
        "class. The largest weight must be 1, the value that sensitivities assume. Only for one "
        "label per image.",
    ),
]
ClassPriors = Annotated[
    Annotated[Numbers, Field(min_length=1)] | Released | None,
    Field(
        exclude_if=_is_absent,
        description="Class frequencies among the training images: public numbers, one per class; "
        "or, for a linear head, `released`: counted with noise from a share of the head's budget. "
        "The frequencies' logarithms are subtracted from the trained head's biases (logit "
        "adjustment): the head answers as if classes were equally frequent. For loss: softmax.",
    ),
]
PriorShare = Annotated[
    Share | None,
    Field(
        exclude_if=_is_absent,
        description="For class_priors: released. The counts' share of the budget: their part of "
        "the sum of count * rate^2 / noise_multiplier^2 over all releases of the fit "
        f"({DEFAULT_PRIOR_SHARE:g} if absent).",
    ),
]

OffsetShare = Annotated[
    Share | None,
    Field(
        exclude_if=_is_absent,
        description="For class_priors: released, on rows of norm 1. Share of the budget of one "
        "more release, after training: the classes' mean scores on the training images, which are "
        "subtracted from the biases. Worth its share with few images. If absent, not released.",
    ),
]


class BalanceOptions(MethodOptions):
    """A head with class weights in its loss, or with class priors subtracted from its logits."""

    class_weights: ClassWeights = None
    class_priors: ClassPriors = None
    prior_share: PriorShare = None
    offset_share: OffsetShare = None

    @model_validator(mode="after")
    def _check_balance(self) -> BalanceOptions:
        weights = self.class_weights
        if weights and max(weights) != 1:
            raise ValueError(
                f"class_weights: the largest is {max(weights):g}, but must be 1; divide all "
                "weights by the largest"
            )
        if self.class_priors and self.link != "softmax":
            raise ValueError("class_priors: they work only with `loss: softmax`; remove them")
        if self.prior_share is not None and not self.releases_priors:
            raise ValueError(
                f"prior_share {self.prior_share:g} has an effect only with class_priors: "
                "released; write `class_priors: released`, or remove prior_share"
            )
        if self.releases_priors and self.prior_share is None:
            self.__dict__["prior_share"] = DEFAULT_PRIOR_SHARE
        self._check_offsets()
        return self

    def _check_offsets(self) -> None:
        if self.offset_share is None:
            return
        if self.prior_share is None:
            raise ValueError(
                f"offset_share {self.offset_share:g} has an effect only with class_priors: "
                "released; write `class_priors: released`, or remove offset_share"
            )
        if not isinstance(self.normalize, L2 | AroundCentre):
            raise ValueError(
                f"offset_share: it needs rows of norm 1, but normalize is {self.normalize.kind}; "
                "write `normalize: centred`, or remove offset_share"
            )
        if self.prior_share + self.offset_share >= 1:
            raise ValueError(
                f"prior_share {self.prior_share:g} and offset_share {self.offset_share:g} leave no "
                "budget for training; write smaller shares"
            )

    @property
    def releases_priors(self) -> bool:
        return self.class_priors == "released"

    @property
    def public_priors(self) -> tuple[float, ...]:
        """The study's public class priors; empty without priors, or if priors are released."""
        return self.class_priors if isinstance(self.class_priors, tuple) else ()

    @property
    def is_balanced(self) -> bool:
        """True if a fit weighs classes or subtracts priors."""
        return bool(self.class_weights or self.class_priors)

    @property
    def counted_classes(self) -> int | None:
        numbers = {len(given) for given in (self.class_weights, self.public_priors) if given}
        return max(numbers, default=None)

    def class_fault(self, classes: int, *, multi_label: bool) -> str | None:
        given = {"class_weights": self.class_weights, "class_priors": self.public_priors}
        for name, numbers in given.items():
            if numbers and len(numbers) != classes:
                return (
                    f"{name} has {len(numbers)} numbers for {classes} classes; write one number "
                    "per class, in the order of the classes"
                )
        if self.class_weights and multi_label:
            return "class_weights need one label per row, but these rows have several; remove them"
        if self.releases_priors and multi_label:
            return (
                "class_priors: released needs one label per row, but these rows have several; "
                "remove it"
            )
        return None

    def bias_shifts(self) -> tuple[float, ...]:
        """Returns the shift of each class's bias by public priors; empty without public priors."""
        return log_shifts(self.public_priors)

    def list_mechanisms(self, n: int) -> tuple[Mechanism, ...]:
        others = super().list_mechanisms(n)
        if self.prior_share is None:
            return others
        counts = full_batch(CLASS_COUNTS, "number of rows of each class", 1.0)
        released = [(self.prior_share, (counts,))]
        if self.offset_share is not None:
            offsets = full_batch(CLASS_OFFSETS, "sum of the rows' clipped scores", 1.0)
            released.append((self.offset_share, (offsets,)))
        left = 1 - sum(share for share, _ in released)
        return split_budget([*released, (left, others)])


def released_priors(counts: Sequence[float], deviation: float) -> tuple[float, ...]:
    """Returns the classes' frequencies, of sum 1, from their noisy counts.

    A count below `PRIOR_FLOOR` standard deviations of its noise, or below 1, is raised to the
    larger of these bounds.
    """
    least = max(1.0, PRIOR_FLOOR * deviation)
    floored = [max(count, least) for count in counts]
    total = math.fsum(floored)
    return tuple(count / total for count in floored)


def log_shifts(priors: Sequence[float]) -> tuple[float, ...]:
    """Returns the bias shifts, of mean 0, that subtract log priors; nothing without priors."""
    logs = [math.log(prior) for prior in priors]
    return tuple(math.fsum(logs) / len(logs) - each for each in logs)


def fit_balanced(
    method: MethodOptions, rows: Rows, releases: Releases, *, record: Record | None = None
) -> Fitted:
    """Fits a method's head on class-weighted rows, and subtracts the log priors from its biases.

    Raises ConfigError if weights, priors or counts do not fit the classes or the labels.
    """
    # late imports: planning imports this module without torch
    import numpy as np

    from dpprobe.heads.class_offsets import release_offsets

    module = importlib.import_module(HEADS[method.head])
    fitted: Fitted
    if not isinstance(method, BalanceOptions) or not method.is_balanced:
        fitted = module.fit(method, rows, releases, record=record)
        return fitted
    if fault := method.class_fault(rows.num_classes, multi_label=rows.multi_label):
        raise ConfigError(f"head {method.head}: {fault}")
    released = count_classes(rows, releases) if method.releases_priors else None
    each = method.bias_shifts() if released is None else [*map(log_shifts, released.tolist())]
    unweighted = rows
    shifts = np.asarray(each, dtype=np.float32)  # [seeds, classes], or [classes] for all seeds
    if method.class_weights:
        rows = rows.make_once(
            ("class weights", method.class_weights), lambda: weigh_classes(method, rows)
        )
    fitted = module.fit(method, rows, releases, record=_shift_record(record, shifts))
    if not shifts.size:
        return fitted
    weights = fitted.weights.copy()
    weights[..., -1] += shifts
    if method.offset_share is not None and released is not None:
        weights[..., -1] -= release_offsets(weights, released, unweighted, releases)
    return replace(fitted, weights=weights, priors=released)


def count_classes(rows: Rows, releases: Releases) -> Priors:
    """Releases `class_counts`; returns the priors, float32 [seeds, classes]."""
    # late imports: planning imports this module without torch
    import numpy as np
    import torch

    from dpprobe.privacy.grid import GridSum

    grid = releases.make_grid(1.0, rows.n)
    each = rows.lengths.isfinite().to(torch.float64)
    if rows.weights is not None:
        each *= rows.weights
    total = torch.zeros(rows.num_classes, dtype=torch.float64, device=rows.device)
    total.index_add_(0, rows.labels, grid.round_to_steps(each))
    sums = GridSum(total.expand(len(releases.seeds), -1), grid.step)
    counts = releases.release_gaussian(CLASS_COUNTS, sums).tolist()
    deviation = releases.noise_deviation(CLASS_COUNTS)
    return np.asarray([released_priors(seed, deviation) for seed in counts], dtype=np.float32)


def weigh_classes(method: BalanceOptions, rows: Rows) -> Rows:
    """Returns a view of the rows, with weights multiplied by their classes' weights."""
    import torch  # heavy: planning imports this module

    of_class = torch.tensor(method.class_weights, dtype=torch.float32, device=rows.device)
    of_row = of_class[rows.labels]
    if rows.weights is not None:
        of_row = of_row * rows.weights
    other = copy.copy(rows)
    other.weights = of_row
    other.drop_cache()
    return other


def _shift_record(record: Record | None, shifts: Priors) -> Record | None:
    import torch  # heavy: planning imports this module

    if record is None or not shifts.size:
        return record

    def record_shifted(step: int, weights: torch.Tensor) -> Values | None:
        moved = weights.clone()
        moved[..., -1] += torch.from_numpy(shifts).to(moved)
        return record(step, moved)

    return record_shifted
