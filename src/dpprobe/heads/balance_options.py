"""Options of heads that balance classes by public numbers, which costs no privacy."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, model_validator

from dpprobe.heads.options import MethodOptions

Numbers = tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...]


class BalanceOptions(MethodOptions):
    """A head that descends a loss with a weight a class, or whose logits have the classes' priors.

    Absent options are left out of what is written, as before there were these.
    """

    class_weights: Numbers | None = Field(
        None,
        min_length=1,
        exclude_if=lambda value: value is None,
        description="Public, one number a class in the classes' order, from above 0 to 1: each "
        "row's clipped part is multiplied with its class's. The largest is 1, as sensitivities "
        "are for. For rows of one label.",
    )
    class_priors: Numbers | None = Field(
        None,
        min_length=1,
        exclude_if=lambda value: value is None,
        description="Public, one number a class: how frequent classes are among the training "
        "rows. Their logarithms are taken off the trained head's biases, so that it answers as if "
        "classes were equally frequent (logit adjustment). For loss: softmax.",
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
        return self

    @property
    def counted_classes(self) -> int | None:
        numbers = {len(given) for given in (self.class_weights, self.class_priors) if given}
        return max(numbers, default=None)

    def class_fault(self, classes: int, *, multi_label: bool) -> str | None:
        for name in ("class_weights", "class_priors"):
            numbers = getattr(self, name)
            if numbers and len(numbers) != classes:
                return (
                    f"{name} has {len(numbers)} numbers, and there are {classes} classes; write "
                    "one for each, in their order"
                )
        if self.class_weights and multi_label:
            return (
                "class_weights are for rows of one label, and rows here have several; remove them"
            )
        return None

    def bias_shifts(self) -> tuple[float, ...]:
        """Returns what is added to each class's bias, of mean 0."""
        logs = [math.log(prior) for prior in self.class_priors or ()]
        return tuple(math.fsum(logs) / len(logs) - each for each in logs)
