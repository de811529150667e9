"""Options of heads that balance classes: by public numbers, or by a release of their frequencies.

Public numbers cost nothing. `class_priors: released` is one more release of the fit:

**class_counts** [K], the sum over the training rows of the one-hot vectors of their labels, each
row times its weight (1 / m for a row of a unit with m rows), plus Gaussian noise. A unit adds
non-negative numbers that sum to at most 1, of L2 norm at most 1, and a null row nothing:
sensitivity 1. It stands in the plan with the share `prior_share`, and what is left is divided among
the other releases as all would be without it. What follows from the noisy counts is
post-processing: `released_priors` makes frequencies of them, which are part of the published head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import Mechanism, full_batch, split_budget

Numbers = tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...]
Released = Literal["released"]

CLASS_COUNTS = "class_counts"
# Both were chosen on public features (bench/results/balanced.md).
DEFAULT_PRIOR_SHARE = 0.02
# A count below so many standard deviations of its noise counts as that many: below it noise decides
# which classes would be boosted, and without bound.
PRIOR_FLOOR = 2.0


def _absent(value: object) -> bool:
    return value is None


class BalanceOptions(MethodOptions):
    """A head that descends a loss with a weight a class, or whose logits have the classes' priors.

    Absent options are left out of what is written, as before there were these.
    """

    class_weights: Numbers | None = Field(
        None,
        min_length=1,
        exclude_if=_absent,
        description="Public, one number a class in the classes' order, from above 0 to 1: each "
        "row's clipped part is multiplied with its class's. The largest is 1, as sensitivities "
        "are for. For rows of one label.",
    )
    class_priors: Annotated[Numbers, Field(min_length=1)] | Released | None = Field(
        None,
        exclude_if=_absent,
        description="How frequent classes are among the training rows: public, one number a "
        "class; or, of a linear head, `released`: counted with noise from a share of its budget. "
        "Their logarithms are taken off the trained head's biases, so that it answers as if "
        "classes were equally frequent (logit adjustment). For loss: softmax.",
    )
    prior_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        exclude_if=_absent,
        description="Of class_priors: released, the counts' part of the budget, as a part of the "
        "sum of count * rate^2 / noise_multiplier^2 over all of the fit's releases "
        f"({DEFAULT_PRIOR_SHARE:g} where absent).",
    )

    @model_validator(mode="after")
    def _check_balance(self) -> BalanceOptions:
        weights = self.class_weights
        if weights and max(weights) != 1:
            raise ValueError(
                f"class_weights: the largest is {max(weights):g}; divide all by it: 1 is what "
                "clipping is for"
            )
        if weights and not self.takes_units:
            raise ValueError("class_weights: engine opacus weighs no rows; write another engine")
        if self.class_priors and self.link != "softmax":
            raise ValueError("class_priors: they are for loss: softmax; remove them")
        if self.prior_share is not None and not self.releases_priors:
            raise ValueError(
                f"prior_share {self.prior_share:g} is of class_priors: released; write that, or "
                "remove it"
            )
        if self.releases_priors and self.prior_share is None:
            self.__dict__["prior_share"] = DEFAULT_PRIOR_SHARE
        return self

    @property
    def releases_priors(self) -> bool:
        return self.class_priors == "released"

    @property
    def public_priors(self) -> tuple[float, ...]:
        """The numbers of a study; none where there are none, or priors are released."""
        return self.class_priors if isinstance(self.class_priors, tuple) else ()

    @property
    def balances(self) -> bool:
        """True if a fit weighs rows by their classes or takes priors off."""
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
                    f"{name} has {len(numbers)} numbers, and there are {classes} classes; write "
                    "one for each, in their order"
                )
        if self.class_weights and multi_label:
            return (
                "class_weights are for rows of one label, and rows here have several; remove them"
            )
        if self.releases_priors and multi_label:
            return (
                "class_priors: released counts rows of one label, and rows here have several; "
                "remove it"
            )
        return None

    def bias_shifts(self) -> tuple[float, ...]:
        """Returns what public priors add to each class's bias; nothing where there are none."""
        return log_shifts(self.public_priors)

    def mechanisms(self, n: int) -> tuple[Mechanism, ...]:
        others = super().mechanisms(n)
        if self.prior_share is None:
            return others
        counts = full_batch(CLASS_COUNTS, "number of rows of each class", 1.0)
        return split_budget([(self.prior_share, (counts,)), (1 - self.prior_share, others)])


def released_priors(
    counts: Sequence[float], deviation: float, *, floor: float = PRIOR_FLOOR
) -> tuple[float, ...]:
    """Returns the classes' frequencies, of sum 1, from their noisy counts.

    Args:
      counts: as released, one a class.
      deviation: the standard deviation of the noise on each; 0 for none.
      floor: the least count, in standard deviations of its noise; it is never below 1.
    """
    least = max(1.0, floor * deviation)
    floored = [max(count, least) for count in counts]
    total = math.fsum(floored)
    return tuple(count / total for count in floored)


def log_shifts(priors: Sequence[float]) -> tuple[float, ...]:
    """Returns what takes priors off the classes' biases, of mean 0; nothing for none."""
    logs = [math.log(prior) for prior in priors]
    return tuple(math.fsum(logs) / len(logs) - each for each in logs)
