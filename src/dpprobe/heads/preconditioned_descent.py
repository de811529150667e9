"""Few preconditioned full-batch steps: the mathematics that newton and feature_covariance share."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.history import History
from dpprobe.heads.initial_weights import weights_from_file
from dpprobe.heads.preconditioned_descent_options import (
    FileInitOptions,
    PreconditionedDescentOptions,
)
from dpprobe.heads.rows import Rows
from dpprobe.heads.second_order import (
    Design,
    Factors,
    Loss,
    Spectrum,
    descend,
    gradient,
    ridge_of,
    step_rate,
)
from dpprobe.heads.second_order_options import GRADIENTS
from dpprobe.options import resolve_path
from dpprobe.privacy.releases import Releases

# From a step, the weights before it, the released gradients there and the distance from the start:
# the direction, and the noise gain of what the gradients were multiplied with.
Precondition = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, float]]


class Descent:
    """The steps of one fit's heads.

    Attributes:
      options, rows, design: of the fit.
      curvature: h, of the loss at the start per unit of the second moment.
      start: float32 [K, d + 1] on normalised rows.
    """

    def __init__(
        self,
        options: PreconditionedDescentOptions,
        rows: Rows,
        releases: Releases,
        clip: float,
        *,
        scale: float = 1.0,
        record: Record | None,
    ) -> None:
        self.options, self.rows = options, rows
        self.design = Design(options, rows, private=releases.plan.private)
        self.curvature = options.curvature(rows.num_classes)
        self.loss = Loss(sigmoid=options.loss == "sigmoid", clip=clip)
        self.start = start_weights(options, rows)
        self._steps = releases.plan.mechanism(GRADIENTS).count
        self._scale = scale
        self._record = record
        self._snapshots: list[list[torch.Tensor]] = []

    def weights(self, parameters: torch.Tensor) -> torch.Tensor:
        """Returns float32 [K, d + 1] on normalised rows, of parameters counted from the start."""
        return self.start + self.design.weights(parameters)

    def curvatures(self, block: torch.Tensor, factors: Factors) -> torch.Tensor:
        """Returns the curvatures at a block's rows relative to h, at most 1: [m, K].

        For a softmax [m, 1]: the mean over classes.

        Args:
          factors: `Design.factors` of weights.
        """
        p = self.loss.probabilities(self.design.logits(block, factors))
        if self.loss.sigmoid:
            return (p * (1 - p) / self.curvature).clamp_(0, 1)
        classes = self.rows.num_classes
        spread = 1 - p.square().sum(1, keepdim=True)
        return (spread * (classes / max(classes - 1, 1))).clamp_(0, 1)

    def solver(self, releases: Releases, matrix: Spectrum, matrix_noise: float) -> Precondition:
        """Returns (g + lambda h D) (A + lambda I)^-1 for a released A, the same in every step.

        Args:
          matrix: A.
          matrix_noise: A's noise multiplier.
        """
        noise = releases.plan.mechanism(GRADIENTS).noise_multiplier / math.sqrt(self._steps)
        longest = self.options.longest
        ridge = ridge_of(self.design, self.options.ridge, longest, matrix_noise, noise, matrix)
        penalty = ridge * self.curvature if self.options.penalised else 0.0
        gain = matrix.noise_gain(ridge)

        def precondition(
            _step: int, _weights: torch.Tensor, gradients: torch.Tensor, distance: torch.Tensor
        ) -> tuple[torch.Tensor, float]:
            return matrix.solve(gradients + penalty * distance, ridge), gain

        return precondition

    def run(self, releases: Releases, precondition: Precondition) -> torch.Tensor:
        """Takes one seed's steps; returns its weights [K, d + 1] on normalised rows."""
        options, rows = self.options, self.rows
        deviation = releases.deviation(GRADIENTS) * self._scale
        longest = options.step / self.curvature

        def direction(step: int, parameters: torch.Tensor) -> tuple[torch.Tensor, float]:
            weights = self.weights(parameters)
            total = gradient(self.design, self.loss, weights).over(self._scale)
            noisy = releases.gaussian(GRADIENTS, total.one_seed)[0] * self._scale
            towards, gain = precondition(step, weights, noisy, parameters)
            if options.learning_rate is not None:
                return towards, options.learning_rate
            return towards, step_rate(longest, deviation, gain, rows.n)

        zero = torch.zeros_like(self.start, dtype=torch.float64)
        snapshots = None if self._record is None else [zero]
        result = descend(zero, self._steps, direction, options.average, snapshots)
        if snapshots is not None:
            self._snapshots.append([self.weights(snapshot) for snapshot in snapshots])
        return self.weights(result)

    def fitted(self, weights: torch.Tensor) -> Fitted:
        """Returns all seeds' heads, and their history."""
        history = History(self.rows, 1.0, self._record, sigmoid=self.loss.sigmoid)
        for step, snapshots in enumerate(zip(*self._snapshots, strict=True)):
            history.add(step, torch.stack(snapshots))
        return Fitted(weights=weights.cpu().numpy(), steps=self._steps, history=history.records)


def start_weights(options: PreconditionedDescentOptions, rows: Rows) -> torch.Tensor:
    """Returns the weights of every seed's start, float32 [K, d + 1] on normalised rows."""
    start = torch.zeros((rows.num_classes, rows.dimension + 1), device=rows.device)
    if isinstance(options, FileInitOptions) and options.init_file is not None:
        scale = 1.0 if options.init_scale is None else options.init_scale
        public = weights_from_file(
            str(resolve_path(options.init_file)), rows.num_classes, rows.dimension
        )
        start.copy_(torch.from_numpy(public * scale))
        if options.init_bias is None:
            return start
    start[:, -1] = options.start_bias(rows.num_classes)
    return start
