"""DP-SGD on a linear softmax head (Abadi et al. 2016, algorithm 1, with Poisson sampling)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from dpprobe.config import MethodOptions
from dpprobe.errors import ConfigError
from dpprobe.privacy.plan import (
    LARGEST_SENSITIVITY,
    SMALLEST_SENSITIVITY,
    Mechanism,
    Plan,
)

if TYPE_CHECKING:
    from dpprobe.heads import Record
    from dpprobe.heads.training_set import Heads, TrainingSet

GRADIENTS = "gradients"


class Options(MethodOptions):
    """DP-SGD; the defaults are the foundation-features paper's (docs/references.md)."""

    head: Literal["sgd"] = "sgd"
    batch_size: int | Literal["full"] = Field(
        32,
        description="Expected rows a step: each row joins each step with probability "
        'batch_size / n. "full" takes every row in every step.',
    )
    epochs: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Passes over the data, in expectation; 20 where neither is given.",
    )
    steps: int | None = Field(None, ge=1, description="Steps, instead of epochs.")
    learning_rate: float = Field(0.1, gt=0, allow_inf_nan=False)
    max_grad_norm: float = Field(
        1.2,
        ge=SMALLEST_SENSITIVITY,
        le=LARGEST_SENSITIVITY,
        allow_inf_nan=False,
        description="Each row's gradient is clipped to this L2 norm.",
    )
    init: Literal["torch", "zero"] = Field(
        "torch", description="PyTorch's default for a linear layer, drawn anew for each seed; or 0."
    )
    engine: Literal["closed_form", "opacus"] = Field(
        "closed_form", description="What computes the clipped sums; opacus is the reference, slow."
    )

    @field_validator("batch_size")
    @classmethod
    def _check_batch_size(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError(f"{value}: must be at least 1")
        return value

    @model_validator(mode="after")
    def _check(self) -> Options:
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"epochs {self.epochs:g} and steps {self.steps}: write one of them")
        return self

    def batch(self, n: int) -> int:
        """The expected batch size on n rows.

        Raises:
          ConfigError: when n rows are too few for it.
        """
        if self.batch_size == "full":
            return n
        if self.batch_size > n:
            raise ConfigError(
                f"batch_size {self.batch_size} is above the {n} training rows; "
                'write a smaller one, or "full"'
            )
        return self.batch_size

    def step_count(self, n: int) -> int:
        """Steps taken on n rows: `steps`, or epochs * n / batch_size to the nearest."""
        if self.steps is not None:
            return self.steps
        epochs = 20.0 if self.epochs is None else self.epochs
        return max(1, round(epochs * n / self.batch(n)))

    def mechanisms(self, n: int) -> tuple[Mechanism, ...]:
        return (
            Mechanism(
                name=GRADIENTS,
                released="sum of the sampled rows' clipped gradients, one a step",
                sensitivity=self.max_grad_norm,
                noise_multiplier=1.0,
                sample_rate=self.batch(n) / n,
                count=self.step_count(n),
            ),
        )


def fit(
    options: Options,
    data: TrainingSet,
    plan: Plan,
    seeds: Sequence[int],
    *,
    record: Record | None = None,
) -> Heads:
    """Trains one head a seed; see `dpprobe.heads.fit`."""
    if options.engine == "opacus":
        from dpprobe.heads.opacus_engine import fit as fit_opacus

        return fit_opacus(options, data, plan, seeds, record=record)
    from dpprobe.heads.first_order import fit as fit_closed_form

    return fit_closed_form(options, data, plan, seeds, record=record)
