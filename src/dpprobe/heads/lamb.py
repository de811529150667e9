"""DP-LAMB (You et al. 2019, algorithm 2, on privatised gradients) on a linear head."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from dpprobe.heads.adam import (
    Adam,
    Beta1,
    Beta2,
    MomentOptions,
    NoiseCorrection,
    RootOffset,
    moment_constants,
)
from dpprobe.heads.fitted import Fitted, Record

if TYPE_CHECKING:
    import torch

    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases


# Weights change by at most the fraction _IN_ALL of their norm over all steps, and _IN_ONE per step.
_IN_ALL, _IN_ONE = 4.0, 0.5


class Options(MomentOptions):
    """DP-LAMB: Adam's direction times |w| / |direction|, for the weights and for the biases.

    If |w| or the direction is 0, the ratio is 1, so the first step from zero is Adam's. Mehta et
    al. (2022, section 5.1) take one step on the full batch, with other settings than these
    defaults: loss sigmoid, steps 1, init_bias -10, learning_rate from 1e-4 to 1e-3, max_grad_norm
    1, normalize none, intercept 1.
    """

    UNIT_ROWS: ClassVar[bool] = False

    head: Literal["lamb"] = "lamb"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: RootOffset = 1e-6
    noise_correction: NoiseCorrection = None

    def choose_rate(self, steps: int, **_: float) -> float:
        return min(_IN_ALL / steps, _IN_ONE)


class Lamb(Adam):
    """LAMB (You et al. 2019, algorithm 2): Adam's direction d times |w| / |d| per layer.

    Layers are the weights [classes, d] and the biases [classes] of each seed. There is no weight
    decay, and the paper's phi is the identity. If |w| or |d| is 0, the factor is 1.
    """

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        directions = self.compute_direction(gradient)
        for layer in (slice(None, -1), slice(-1, None)):
            step_layer(weights[..., layer], directions[..., layer], rate, dim=(1, 2))


def step_layer(
    weights: torch.Tensor, direction: torch.Tensor, rate: float, *, dim: tuple[int, ...] | None
) -> None:
    """Takes a step of length `rate` |w| / |d| against d, with norms over the dimensions `dim`."""
    import torch  # heavy: planning imports this module

    size, length = (
        torch.linalg.vector_norm(part, dim=dim, keepdim=True) for part in (weights, direction)
    )
    ratio = torch.where((size > 0) & (length > 0), size / length, 1.0)
    weights.sub_(direction.mul_(ratio), alpha=rate)


def fit(options: Options, rows: Rows, releases: Releases, *, record: Record | None) -> Fitted:
    from dpprobe.heads import gradient_steps  # imports torch, which planning goes without

    optimiser = partial(Lamb, **moment_constants(options, releases))
    return gradient_steps.take_gradient_steps(options, rows, releases, optimiser, record=record)
