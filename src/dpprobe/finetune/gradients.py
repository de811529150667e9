"""Sums of a network's clipped gradients over rows.

Each example's gradient, over all trained parameters together, is clipped to L2 norm C, then
multiplied by the row's weight. A row whose gradient is not finite, or too long for float32, adds
nothing. In exact arithmetic a row adds a vector of norm at most C times the row's weight. Norms are
computed from the summed tensors themselves, with a margin for rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch

from dpprobe.finetune.ghost import Ghost

if TYPE_CHECKING:
    from dpprobe.finetune.fine_tuned_network import FineTunedNetwork

# A margin for the rounding of norms (float32 sums of a thousand squares each) and of factors.
MARGIN = 2.0**-18
# The constant of automatic clipping (Bu et al. 2022).
STABILITY = 0.01
Clipping = Literal["fixed", "automatic"]
Precision = Literal["float32", "bfloat16"]
PRECISIONS: dict[Precision, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16}


def clip_factors(norms: torch.Tensor, limit: float, clipping: Clipping) -> torch.Tensor:
    """Returns factors for per-example gradients, float64 [m]: at most limit / norm."""
    if math.isinf(limit):
        return torch.ones_like(norms)
    limit *= 1 - MARGIN
    if clipping == "automatic":
        return limit / (norms + STABILITY)
    return (limit / norms).clamp_(max=1.0)


def as_float32(factors: torch.Tensor) -> torch.Tensor:
    """Converts factors to float32; tiny factors that rounding could increase become 0."""
    rounded = factors.float()
    return torch.where(rounded < torch.finfo(torch.float32).tiny, 0.0, rounded)


class ClippedSums:
    """Adds per-example gradients, clipped over all trained parameters together, to a flat sum.

    The sum has `size` numbers, for all trained parameters in order.

    Args:
      max_grad_norm: the clipping norm C; infinite for no clipping.
      clipping: "fixed" scales gradients longer than C down to length C. "automatic" divides each
        gradient by its norm plus 0.01 and multiplies it by C.
    """

    def __init__(
        self,
        network: FineTunedNetwork,
        *,
        sigmoid: bool,
        max_grad_norm: float,
        clipping: Clipping,
        precision: Precision,
    ) -> None:
        self._sigmoid = sigmoid
        self._limit = max_grad_norm
        self._clipping = clipping
        self._precision = PRECISIONS[precision]
        self._ghost = Ghost(network.module, network.trained)
        self._dimensions = len(network.shape)
        self._sizes = {name: parameter.numel() for name, parameter in network.trained.items()}
        self.size = sum(self._sizes.values())

    def add_rows(
        self,
        total: torch.Tensor,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor | None,
    ) -> torch.Tensor:
        """Adds clipped per-example gradients to `total`, float32 [size].

        Returns the norms of gradients before clipping, float64 [m]; not finite for rows that add
        nothing. The norms are private: they must not be released.

        Args:
          inputs: [m, ...]; or [m, v, ...], for a mean of a row's gradient over v views.
          labels: classes, int64 [m]; or [m, K], see `losses.row_losses`.
          weights: float32 [m], the factors of clipped gradients; None if all are 1.
        """
        if len(inputs) == 0:
            return torch.zeros(0, dtype=torch.float64, device=total.device)
        batch = self._ghost.compute_gradients(
            lay_inputs(inputs, self._dimensions, self._precision),
            labels,
            sigmoid=self._sigmoid,
            precision=self._precision,
        )
        norms = batch.squared_norms().sqrt_()
        usable = norms.isfinite()
        if not usable.all():
            kept = None if weights is None else weights[usable]
            self.add_rows(total, inputs[usable], labels[usable], kept)
            return norms
        factors = clip_factors(norms, self._limit, self._clipping)
        if weights is not None:
            factors = factors * weights
        parts = total.split(list(self._sizes.values()))
        batch.add_sum(dict(zip(self._sizes, parts, strict=True)), as_float32(factors))
        return norms


def lay_inputs(
    inputs: torch.Tensor, dimensions: int, precision: torch.dtype | None = None
) -> torch.Tensor:
    """Returns inputs in the network's form: views adjacent, in the fastest memory format.

    `dimensions` is the number of dimensions of one view of a row.
    """
    flat = join_views(inputs, dimensions)
    if flat.ndim == 4 and (flat.device.type == "cpu" or precision is not None):
        # channels_last is fastest for convolutions, and is preserved by later layers.
        return flat.contiguous(memory_format=torch.channels_last)
    return flat


def join_views(inputs: torch.Tensor, dimensions: int) -> torch.Tensor:
    """Flattens rows and views to one axis; returns inputs without views unchanged."""
    return inputs.flatten(0, 1) if inputs.ndim == dimensions + 2 else inputs
