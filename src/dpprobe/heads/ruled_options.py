"""Options of the gradient heads whose defaults follow rules: momentum, adam, lamb.

Defaults were chosen on public features (bench/results/first_order_defaults.md). Rows are centred
unit rows, from a share of the budget. A small constant is appended to them, for biases: the usual 1
is as long as a unit row, so that biases take half of the squared length of a clipped gradient.
Rules are functions of public quantities alone: n, d, the number of classes, and the noise, which
the plan knows.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from dpprobe.heads.first_order_options import FirstOrderOptions
from dpprobe.heads.normalisation import L2, AroundCentre, Centred, Normalize
from dpprobe.privacy.plan import LARGEST_SENSITIVITY, SMALLEST_SENSITIVITY, Mechanism


class RuledOptions(FirstOrderOptions):
    """Options of a head of noisy gradient steps on centred rows, at a rate by rule."""

    DEFAULT_EPOCHS: ClassVar[float] = 40
    # False where the rule holds for rows of any length.
    UNIT_ROWS: ClassVar[bool] = True

    normalize: Normalize = Field(
        default_factory=Centred,
        description="As everywhere; centred by default, from a share of the head's budget.",
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="The length of a step. Where absent it is set from the dimension, the number "
        "of classes, the steps and the noise, all public, for rows of norm 1.",
    )
    max_grad_norm: float = Field(
        0.7,
        ge=SMALLEST_SENSITIVITY,
        le=LARGEST_SENSITIVITY,
        allow_inf_nan=False,
        description="Each row's gradient is clipped to this L2 norm. On unit rows it is 0.97 at "
        "the start with 10 classes.",
    )
    intercept: float = Field(
        0.2,
        ge=0.01,
        le=10,
        allow_inf_nan=False,
        description="The constant appended to each row: what biases are learned from. A row's "
        "gradient is as long as its residuals times sqrt(norm^2 + intercept^2). 1 is the usual "
        "layer's.",
    )

    @model_validator(mode="after")
    def _check_rule(self) -> RuledOptions:
        unit = isinstance(self.normalize, L2 | AroundCentre)
        if self.UNIT_ROWS and self.learning_rate is None and not unit:
            raise ValueError(
                f"normalize: {self.normalize.kind} without a learning_rate, whose rule is for rows "
                "of norm 1; write a learning_rate, or normalize: l2, centred or whitened"
            )
        return self

    @model_validator(mode="after")
    def _check_reference(self) -> RuledOptions:
        if self.engine == "opacus" and self.intercept != 1:
            raise ValueError(
                f"intercept {self.intercept:g} with engine opacus, whose layers have biases as "
                "they are; write intercept: 1, or engine: closed_form"
            )
        return self

    @property
    def constant(self) -> float:
        return self.intercept

    def curvature(self, classes: int) -> float:
        """Returns the loss's curvature at equal logits, per unit of a row's second moment."""
        return 1 / classes if self.loss == "softmax" else 0.25

    def rate_on(self, gradients: Mechanism, *, noise: float, classes: int, dimension: int) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        return self.rule(gradients.count, noise=noise, classes=classes, dimension=dimension)

    def rule(self, steps: int, *, noise: float, classes: int, dimension: int) -> float:
        """Returns the learning rate where none is given."""
        raise NotImplementedError(f"head {self.head} has no rule for its learning rate")
