"""Preconditioned full-batch steps: options and computations of newton and feature_covariance."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from pydantic import Field

from dpprobe.heads.balance_options import (
    BalanceOptions,
    ClassPriors,
    ClassWeights,
    OffsetShare,
    PriorShare,
)
from dpprobe.heads.clipped_row_options import GRADIENTS, MaxRowNorm, Ridge, RowIntercept, RowOptions
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.options import AtMost

if TYPE_CHECKING:
    import torch

    from dpprobe.heads.rows import Rows
    from dpprobe.heads.second_order import Factors, Spectrum
    from dpprobe.privacy.releases import Releases

# Maps (step index, weights, released gradients, distance from the start) to the step's direction
# and the noise gain of the inverse matrix.
Precondition: TypeAlias = (
    "Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, float]]"
)

MOST_FULL_STEPS = AtMost(
    100_000, "each step is a pass over all rows, and this kind of head needs only a few"
)
# The smallest curvature for scaling steps: a sigmoid's at probability 0.001.
_LEAST_CURVATURE = 1e-3


class PreconditionedDescentOptions(RowOptions, BalanceOptions):
    """Steps W <- W - rate P (g + lambda h (W - W_0)), with P the inverse of the released matrix.

    h is the curvature of the loss at the start, per unit of the second moment. P = (A* + rho I)^-1,
    with rho >= lambda by `second_order.damp_ridge`; rho = lambda if `learning_rate` is given.
    """

    fit_version: ClassVar[int] = 2

    class_weights: ClassWeights = None
    class_priors: ClassPriors = None
    prior_share: PriorShare = None
    offset_share: OffsetShare = None
    max_row_norm: MaxRowNorm = 1.0
    intercept: RowIntercept = 0.2
    ridge: Ridge = None
    loss: Literal["softmax", "sigmoid"] = Field(
        "softmax",
        description="softmax: cross-entropy, for one label per image. sigmoid: the sum over "
        "classes of binary cross-entropies, for one label per image or several.",
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Length of the steps. If absent, `step` times the length of a Newton step at "
        "the start (K for a softmax); shorter if noise would drive probabilities to 0 and 1.",
    )
    step: float = Field(
        0.6,
        gt=0,
        le=2,
        description="Length of a step, as a fraction of a Newton step; shorter in directions that "
        "the noise of the released matrix hides.",
    )
    penalised: bool = Field(
        True,
        description="Keep lambda in the loss, as a penalty on the distance from the start; "
        "without the penalty, the start has no influence after many steps.",
    )
    average: Literal["last", "mean", "linear"] = Field(
        "linear",
        description="Returned weights: those after the last step, the mean over all steps, or the "
        "mean in which step t has weight t.",
    )
    init_bias: float | None = Field(
        None,
        description="Initial value of all biases, and their final value if intercept is 0. If "
        "absent, 0; for a sigmoid, the log-odds of probability 1 / K.",
    )

    @property
    def multi_label(self) -> bool:
        return self.loss == "sigmoid"

    @property
    def link(self) -> Literal["softmax", "sigmoid", "none"]:
        return self.loss

    def start_bias(self, classes: int) -> float:
        """Returns the initial bias, the same for all classes."""
        if self.init_bias is not None:
            return self.init_bias
        return -math.log(max(classes - 1, 1)) if self.loss == "sigmoid" else 0.0

    def loss_curvature(self, classes: int) -> float:
        """Returns h, the curvature of a row's loss at equal logits, per unit of x x^T."""
        if self.loss == "softmax":
            return 1 / classes
        odds = math.exp(-abs(self.start_bias(classes)))
        return max(odds / (1 + odds) ** 2, _LEAST_CURVATURE)


class Descent:
    """The steps of one fit's heads.

    Attributes:
      curvature: h, the loss's curvature at the start per unit of the second moment.

    Args:
      clip: the norm to which each example's gradient is clipped.
      scale: the number by which sums of gradients are divided before their release.
      start: weights, float32 [K, d + 1] on normalised rows; by default `default_start`.
    """

    def __init__(
        self,
        options: PreconditionedDescentOptions,
        rows: Rows,
        releases: Releases,
        clip: float,
        *,
        scale: float = 1.0,
        start: torch.Tensor | None = None,
        record: Record | None,
    ) -> None:
        from dpprobe.heads.second_order import Design, Loss  # imports torch

        self.options, self.rows = options, rows
        self.design = Design(options, rows, private=releases.plan.private)
        self.curvature = options.loss_curvature(rows.num_classes)
        self.loss = Loss(sigmoid=options.loss == "sigmoid", clip=clip)
        self.start = default_start(options, rows) if start is None else start
        self._steps = releases.plan.find_mechanism(GRADIENTS).count
        self._scale = scale
        self._record = record
        self._snapshots: list[list[torch.Tensor]] = []

    def make_weights(self, parameters: torch.Tensor) -> torch.Tensor:
        """Returns start plus `parameters`, as float32 weights [K, d + 1] on normalised rows."""
        return self.start + self.design.make_weights(parameters)

    def compute_curvatures(self, block: torch.Tensor, factors: Factors) -> torch.Tensor:
        """Returns curvatures divided by h, at most 1: [m, K], or means [m, 1] for a softmax."""
        p = self.loss.compute_probabilities(self.design.compute_logits(block, factors))
        if self.loss.sigmoid:
            return (p * (1 - p) / self.curvature).clamp_(0, 1)
        classes = self.rows.num_classes
        spread = 1 - p.square().sum(1, keepdim=True)
        return (spread * (classes / max(classes - 1, 1))).clamp_(0, 1)

    def make_solver(
        self, releases: Releases, matrix: Spectrum, matrix_noise: float
    ) -> Precondition:
        """Returns the map from g and D to (g + lambda h D) (A + rho I)^-1, for a released A."""
        from dpprobe.heads.second_order import damp_ridge, ridge_of  # imports torch

        noise = releases.plan.find_mechanism(GRADIENTS).noise_multiplier / math.sqrt(self._steps)
        longest = self.options.longest
        ridge = ridge_of(self.design, self.options.ridge, longest, matrix_noise, noise, matrix)
        penalty = ridge * self.curvature if self.options.penalised else 0.0
        damped = ridge
        if self.options.learning_rate is None:
            deviation = matrix_noise * longest**2
            damped = damp_ridge(ridge, self.options.step, deviation, self.design.columns)
        gain = matrix.noise_gain(damped)

        def solve_gradients(
            _step: int, _weights: torch.Tensor, gradients: torch.Tensor, distance: torch.Tensor
        ) -> tuple[torch.Tensor, float]:
            return matrix.solve_ridge(gradients + penalty * distance, damped), gain

        return solve_gradients

    def take_steps(self, releases: Releases, precondition: Precondition) -> torch.Tensor:
        """Takes one seed's steps; returns its weights [K, d + 1] on normalised rows."""
        import torch  # heavy: planning imports this module

        from dpprobe.heads.second_order import average_descent, step_rate, sum_gradients

        options, rows = self.options, self.rows
        deviation = releases.noise_deviation(GRADIENTS) * self._scale
        longest = options.step / self.curvature

        def compute_direction(step: int, parameters: torch.Tensor) -> tuple[torch.Tensor, float]:
            weights = self.make_weights(parameters)
            releases.show_values("weights", weights[None])
            total = sum_gradients(self.design, self.loss, weights).divide_by(self._scale)
            noisy = releases.release_gaussian(GRADIENTS, total.one_seed)[0] * self._scale
            towards, gain = precondition(step, weights, noisy, parameters)
            if options.learning_rate is not None:
                return towards, options.learning_rate
            return towards, step_rate(longest, deviation, gain, rows.n)

        zero = torch.zeros_like(self.start, dtype=torch.float64)
        snapshots = None if self._record is None else [zero]
        result = average_descent(zero, self._steps, compute_direction, options.average, snapshots)
        if snapshots is not None:
            self._snapshots.append([self.make_weights(snapshot) for snapshot in snapshots])
        return self.make_weights(result)

    def make_fitted(self, weights: torch.Tensor) -> Fitted:
        """Returns all seeds' heads, and their history."""
        import torch  # heavy: planning imports this module

        from dpprobe.heads.history import History

        history = History(self.rows, 1.0, self._record, self.options.link)
        for step, snapshots in enumerate(zip(*self._snapshots, strict=True)):
            history.add_record(step, torch.stack(snapshots))
        return Fitted(weights=weights.cpu().numpy(), steps=self._steps, history=history.records)


def default_start(options: PreconditionedDescentOptions, rows: Rows) -> torch.Tensor:
    """Returns weights 0 and the options' bias, float32 [K, d + 1] on normalised rows."""
    import torch  # heavy: planning imports this module

    start = torch.zeros((rows.num_classes, rows.dimension + 1), device=rows.device)
    start[:, -1] = options.start_bias(rows.num_classes)
    return start
