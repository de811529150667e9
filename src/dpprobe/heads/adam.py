"""DP-Adam (Kingma and Ba 2015 on privatised gradients) on a linear head."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.gradient_options import UnitRowOptions, step_noise
from dpprobe.heads.optimiser import Optimiser

if TYPE_CHECKING:
    import torch

    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases


# The default rate times sqrt(d T), and the largest rate times sqrt(T), for T steps.
_LENGTH, _LOGIT_NOISE = 19.0, 1.0


Beta1 = Annotated[
    float, Field(ge=0, lt=1, description="Decay rate of the moving mean of the gradient.")
]
Beta2 = Annotated[
    float, Field(ge=0, lt=1, description="Decay rate of the moving mean of the squared gradient.")
]
RootOffset = Annotated[float, Field(gt=0, description="Added to the root of the mean square.")]
NoiseCorrection = Annotated[
    float | None,
    Field(
        gt=0,
        description="DP-AdamBC (Tang et al. 2024): the known variance of the noise is subtracted "
        "from the mean square, which stays at least this fraction of the noise's variance. Null "
        "switches the correction off.",
    ),
]


class MomentOptions(UnitRowOptions):
    """Options of Adam's moments, which LAMB also uses."""

    beta1: Beta1
    beta2: Beta2
    eps: RootOffset
    noise_correction: NoiseCorrection


class Options(MomentOptions):
    """DP-Adam on centred features; the moments decay as in Kingma and Ba's Adam.

    Each coordinate of a step is about the learning rate r. So a step moves the weights of a class
    by at most r sqrt(d), and by less as training continues. If noise decides every sign, T steps
    add noise of standard deviation r sqrt(T) to the logits of an example with norm 1.
    """

    head: Literal["adam"] = "adam"
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: RootOffset = 1e-8
    noise_correction: NoiseCorrection = 0.3

    def choose_rate(self, steps: int, *, dimension: int, **_: float) -> float:
        return min(_LENGTH / math.sqrt(dimension), _LOGIT_NOISE) / math.sqrt(steps)


class Adam(Optimiser):
    """Adam (Kingma and Ba 2015, algorithm 1), with the mean square corrected for noise.

    The noise's variance is subtracted from Adam's mean square (Tang et al. 2024, algorithm 1).

    Args:
      noise: the standard deviation of the noise on each entry of a gradient; 0 for plain Adam.
      floor: a lower bound on the mean square, as a fraction of the noise's variance.
    """

    def __init__(
        self, *, beta1: float, beta2: float, eps: float, noise: float = 0.0, floor: float = 0.0
    ) -> None:
        super().__init__()
        self._beta1, self._beta2, self._eps = beta1, beta2, eps
        self._variance, self._least = noise**2, floor * noise**2

    def compute_direction(self, gradient: torch.Tensor) -> torch.Tensor:
        """Returns the step to subtract from the weights, before the learning rate."""
        import torch  # heavy: planning imports this module

        if not self._state:
            zeros = torch.zeros_like(gradient)
            self._state = {"mean": zeros, "square": zeros.clone(), "taken": 0}
        self._state["taken"] += 1
        mean, square, taken = (self._state[name] for name in ("mean", "square", "taken"))
        mean.lerp_(gradient, 1 - self._beta1)
        square.mul_(self._beta2).addcmul_(gradient, gradient, value=1 - self._beta2)
        debiased = square / (1 - self._beta2**taken)
        if self._variance > 0:
            debiased.sub_(self._variance).clamp_(min=self._least)
        root = debiased.sqrt_().add_(self._eps)
        return torch.div(mean, root, out=root).div_(1 - self._beta1**taken)

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        weights.add_(self.compute_direction(gradient), alpha=-rate)


def moment_constants(options: MomentOptions, releases: Releases) -> dict[str, float]:
    """Returns the arguments of `Adam`: options, and the noise to subtract from the mean square."""
    floor = options.noise_correction
    return {
        "beta1": options.beta1,
        "beta2": options.beta2,
        "eps": options.eps,
        "noise": 0.0 if floor is None else step_noise(releases),
        "floor": floor or 0.0,
    }


def fit(options: Options, rows: Rows, releases: Releases, *, record: Record | None) -> Fitted:
    from dpprobe.heads import gradient_steps  # imports torch, which planning does not need

    optimiser = partial(Adam, **moment_constants(options, releases))
    return gradient_steps.take_gradient_steps(options, rows, releases, optimiser, record=record)
