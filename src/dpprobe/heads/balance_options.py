"""Options and mechanisms of heads that balance classes; `heads.balance` fits them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpprobe.heads.normalisation import L2, AroundCentre, Share
from dpprobe.heads.options import CLASS_OFFSETS, MethodOptions
from dpprobe.privacy.plan import Mechanism, full_batch, split_budget

Numbers = tuple[Annotated[float, Field(gt=0)], ...]
Released = Literal["released"]

CLASS_COUNTS = "class_counts"
# Chosen on public features (bench/results/balanced.md).
DEFAULT_PRIOR_SHARE = 0.02


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
        "subtracted from the biases. This release is worth its share if there are few images. If "
        "absent, not released.",
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
            self._derive(prior_share=DEFAULT_PRIOR_SHARE)
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
                f"prior_share {self.prior_share:g} and offset_share {self.offset_share:g} leave "
                "no budget for training; choose smaller shares"
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
                    f"{name} has {len(numbers)} numbers for {classes} classes; give one number "
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
        """Returns each class's bias shift by public priors; empty without public priors."""
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


def log_shifts(priors: Sequence[float]) -> tuple[float, ...]:
    """Returns bias shifts that subtract log priors, with mean 0; empty without priors.

    Example:
      >>> [round(float(shift), 3) for shift in log_shifts([0.9, 0.1])]  # the rare class rises
      [-1.099, 1.099]
    """
    logs = [math.log(prior) for prior in priors]
    return tuple(math.fsum(logs) / len(logs) - each for each in logs)
