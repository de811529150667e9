"""The optimisers of networks: those of the heads, one a parameter tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from dpprobe.heads import adam, lamb, momentum
from dpprobe.heads.optimiser import Optimiser
from dpprobe.heads.sgd import Sgd


class TensorLamb(lamb.Lamb):
    """You et al. 2019, algorithm 2: a layer is a parameter tensor.

    If the tensor or the direction is 0, the ratio is 1.
    """

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        direction = self.compute_direction(gradient)
        sizes = torch.linalg.vector_norm(weights), torch.linalg.vector_norm(direction)
        ratio = torch.where((sizes[0] > 0) & (sizes[1] > 0), sizes[0] / sizes[1], 1.0)
        weights.sub_(direction.mul_(ratio), alpha=rate)


def _make_momentum() -> Optimiser:
    return momentum.Momentum(beta=momentum.Options().beta)


def _make_adam() -> Optimiser:
    options = adam.Options()
    return adam.Adam(beta1=options.beta1, beta2=options.beta2, eps=options.eps)


def _make_lamb() -> Optimiser:
    options = lamb.Options()
    return TensorLamb(beta1=options.beta1, beta2=options.beta2, eps=options.eps)


# The constants are those that the head of that name has by default; the noise is not corrected for.
OPTIMISERS: Mapping[str, Callable[[], Optimiser]] = {
    "sgd": Sgd,
    "momentum": _make_momentum,
    "adam": _make_adam,
    "lamb": _make_lamb,
}
