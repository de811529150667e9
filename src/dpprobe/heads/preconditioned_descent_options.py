"""Options of newton and feature_covariance: few preconditioned full-batch steps."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from dpprobe.heads.balance_options import BalanceOptions
from dpprobe.heads.second_order_options import SolverOptions
from dpprobe.options import AtMost

MOST_FULL_STEPS = AtMost(
    100_000, "each is a pass over all rows, and a head of this kind needs a few"
)
# The least curvature that steps are scaled by: that of a sigmoid at a probability of 0.001.
_LEAST_CURVATURE = 1e-3


class PreconditionedDescentOptions(SolverOptions, BalanceOptions):
    """Steps W <- W - rate P (g + lambda h (W - W_0)), P the inverse of what was released.

    h is the loss's curvature at the start, per unit of the second moment.
    """

    loss: Literal["softmax", "sigmoid"] = Field(
        "softmax",
        description="Cross-entropy of the softmax, for one label a row; or the sum over classes of "
        "sigmoid cross-entropies, for one label a row or several.",
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="The steps' length. Where absent it is `step` times a Newton step's at the "
        "start (K for a softmax), and shorter where noise would drive probabilities to 0 and 1.",
    )
    step: float = Field(
        0.6, gt=0, le=2, allow_inf_nan=False, description="The part of a Newton step taken."
    )
    penalised: bool = Field(
        True,
        description="Whether lambda stays in the loss, as a penalty on the distance from the "
        "start; without, many steps forget it.",
    )
    average: Literal["last", "mean", "linear"] = Field(
        "linear",
        description="What is returned: the last weights, the mean of all steps' weights, or the "
        "mean in which step t counts t times.",
    )
    init_bias: float | None = Field(
        None,
        allow_inf_nan=False,
        description="What all biases start from, and keep where intercept is 0. Where absent 0; "
        "for a sigmoid the log-odds of a probability of 1 / K.",
    )

    @property
    def multi_label(self) -> bool:
        return self.loss == "sigmoid"

    @property
    def link(self) -> Literal["softmax", "sigmoid", "none"]:
        return self.loss

    def start_bias(self, classes: int) -> float:
        """Returns the bias that all classes start from."""
        if self.init_bias is not None:
            return self.init_bias
        return -math.log(max(classes - 1, 1)) if self.loss == "sigmoid" else 0.0

    def curvature(self, classes: int) -> float:
        """Returns h, the curvature of a row's loss at equal logits, per unit of x x^T."""
        if self.loss == "softmax":
            return 1 / classes
        odds = math.exp(-abs(self.start_bias(classes)))
        return max(odds / (1 + odds) ** 2, _LEAST_CURVATURE)


class FileInitOptions(PreconditionedDescentOptions):
    """Steps that may start from public weights."""

    paths: ClassVar[tuple[str, ...]] = ("init_file",)

    init: Literal["zero", "file"] = Field(
        "zero", description="Weights 0, or public weights from init_file."
    )
    init_scale: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="What the file's weights are multiplied with."
    )
    init_file: str | None = Field(
        None,
        min_length=1,
        description='A safetensors file whose tensor "weights" is [classes, d], or [classes, '
        "d + 1] with the biases last: public, such as a zero-shot classifier's; a head trained "
        "on private rows is refused.",
    )

    @model_validator(mode="after")
    def _check_init(self) -> FileInitOptions:
        if (self.init == "file") != (self.init_file is not None):
            raise ValueError(
                f"init {self.init} and init_file {self.init_file}: write init: file and the file's "
                "path, or neither"
            )
        if self.init_scale is not None and self.init != "file":
            raise ValueError(
                f"init_scale {self.init_scale:g} says nothing to init {self.init}; remove it, or "
                "write init: file"
            )
        return self
