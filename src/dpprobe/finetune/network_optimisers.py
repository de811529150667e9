"""Optimisers for networks: one instance of a head's optimiser per parameter tensor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from dpprobe.heads import adam, lamb, momentum
from dpprobe.heads.optimiser import MakeOptimiser, Sgd


class TensorLamb(lamb.Lamb):
    """LAMB (You et al. 2019, algorithm 2); each parameter tensor counts as a layer."""

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        lamb.step_layer(weights, self.compute_direction(gradient), rate, dim=None)


def _default_moments(options: adam.MomentOptions) -> dict[str, float]:
    return {"beta1": options.beta1, "beta2": options.beta2, "eps": options.eps}


# Each has the default constants of the head with its name, without correction for noise.
OPTIMISERS: Mapping[str, MakeOptimiser] = {
    "sgd": Sgd,
    "momentum": partial(momentum.Momentum, beta=momentum.Options().beta),
    "adam": partial(adam.Adam, **_default_moments(adam.Options())),
    "lamb": partial(TensorLamb, **_default_moments(lamb.Options())),
}
