"""DP-SGD with momentum (Polyak 1964, as in `torch.optim.SGD`) on a linear head."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.gradient_options import PublicHeadFile, UnitRowOptions
from dpprobe.heads.optimiser import MakeOptimiser, Optimiser
from dpprobe.heads.student_options import StudentOptions, StudentShare

if TYPE_CHECKING:
    import torch

    from dpprobe.heads.public_head import PublicHead
    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases


# The learning rate, as a share of the largest rate at which heavy-ball descent converges.
_PART = 0.9
# The largest standard deviation of noise in a unit row's logits after all steps: absolute for few
# classes, and per ln(classes) for many, because many classes need larger logits.
_LOGIT_NOISE, _MANY_LOGIT_NOISE = 1.0, 0.5


class Options(StudentOptions):
    """DP-SGD with momentum: v = beta v + g, w = w - learning_rate v.

    By default the head takes 40 steps on the full batch from zero weights, with the usual beta of
    0.9. Unless noise forbids, the learning rate is 0.9 times the largest that converges on unit
    rows: 2 (1 + beta) / h with the loss's curvature h, as the rows' second moment is at most 1.
    """

    paths: ClassVar[tuple[str, ...]] = (*UnitRowOptions.paths, "public_head")

    head: Literal["momentum"] = "momentum"
    beta: float = Field(0.9, ge=0, lt=1, description="Share of the velocity that each step keeps.")
    public_head: PublicHeadFile = None
    student_share: StudentShare = None

    @model_validator(mode="after")
    def _check_public_head(self) -> Self:
        if self.public_head is None:
            return self
        if self.init_file is not None:
            raise ValueError(
                f"public_head {self.public_head} and init_file {self.init_file}: set only one"
            )
        if not self.has_unit_rows:
            raise ValueError(
                f"public_head: it needs rows of norm 1, but normalize is {self.normalize.kind}; "
                "write normalize: l2, centred or whitened"
            )
        return self

    def choose_rate(self, steps: int, *, noise: float, classes: int, **_: float) -> float:
        largest = 1 + self.intercept**2
        # The curvature of the loss at equal logits, per unit of a row's second moment.
        curvature = 1 / classes if self.loss == "softmax" else 0.25
        longest = _PART * 2 * (1 + self.beta) / (largest * curvature)
        if noise == 0:
            return longest
        # Velocity multiplies the noise of a step in the weights, and in a unit row's logits, by 1 /
        # (1 - beta). The noise of T steps grows with sqrt(T).
        spread = noise * math.sqrt(steps) / (1 - self.beta)
        bound = max(_LOGIT_NOISE, _MANY_LOGIT_NOISE * math.log(classes))
        return min(longest, bound / spread)


class Momentum(Optimiser):
    """Heavy-ball steps, as in `torch.optim.SGD`: v = beta v + g, w = w - rate v."""

    def __init__(self, *, beta: float) -> None:
        super().__init__()
        self._beta = beta

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        if "velocity" not in self._state:
            self._state["velocity"] = gradient.new_zeros(gradient.shape)
        velocity = self._state["velocity"].mul_(self._beta).add_(gradient)
        weights.add_(velocity, alpha=-rate)


class StretchedMomentum(Momentum):
    """Heavy-ball steps on gradients scaled along a public head; see `PublicHead.stretch`."""

    def __init__(self, *, beta: float, head: PublicHead) -> None:
        super().__init__(beta=beta)
        self._head = head

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        super().step(weights, self._head.stretch(gradient), rate)


def fit(options: Options, rows: Rows, releases: Releases, *, record: Record | None) -> Fitted:
    # late imports: planning imports this module without torch
    from dpprobe.heads import gradient_steps
    from dpprobe.heads.public_head import read_public_head

    start = None
    optimiser: MakeOptimiser = partial(Momentum, beta=options.beta)
    if options.public_head is not None:
        head = read_public_head(options.public_head, options, rows, releases, beta=options.beta)
        start = head.start_weights(options.constant)
        if head.along > 1:
            optimiser = partial(StretchedMomentum, beta=options.beta, head=head)
    return gradient_steps.take_gradient_steps(
        options, rows, releases, optimiser, start=start, record=record
    )
