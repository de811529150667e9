"""DP-LAMB (You et al. 2019, algorithm 2, on privatised gradients) on a linear head."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dpprobe.heads.adam import Adam, Beta1, Beta2, NoiseCorrection, RootOffset, correction_constants
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.gradient_options import GradientOptions, Intercept, RateByRule, UnitRowNorm
from dpprobe.heads.normalisation import CENTRED_BY_DEFAULT, Centred, Normalize

if TYPE_CHECKING:
    import torch

    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases


# The parts of their length by which weights change in all steps, and in one at most.
_IN_ALL, _IN_ONE = 4.0, 0.5


class Options(GradientOptions):
    """DP-LAMB: Adam's direction times |w| / |direction|, for the weights and for the biases.

    If |w| or the direction is 0, the ratio is 1, so the first step from zero is Adam's. Mehta et
    al. (2022, section 5.1) take one step on the full batch. Their settings differ from this head's
    defaults: loss sigmoid, steps 1, init_bias -10, learning_rate from 1e-4 to 1e-3, max_grad_norm
    1, normalize none, intercept 1.
    """

    DEFAULT_EPOCHS: ClassVar[float] = 40
    UNIT_ROWS: ClassVar[bool] = False

    head: Literal["lamb"] = "lamb"
    normalize: Normalize = Field(default_factory=Centred, description=CENTRED_BY_DEFAULT)
    learning_rate: RateByRule = None
    max_grad_norm: UnitRowNorm = 0.7
    intercept: Intercept = 0.2
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    eps: RootOffset = 1e-6
    noise_correction: NoiseCorrection = None

    @property
    def constant(self) -> float:
        return self.intercept

    def choose_rate(
        self,
        steps: int,
        *,
        noise: float,  # noqa: ARG002
        classes: int,  # noqa: ARG002
        dimension: int,  # noqa: ARG002
    ) -> float:
        return min(_IN_ALL / steps, _IN_ONE)


class Lamb(Adam):
    """You et al. 2019, algorithm 2: Adam's direction d times |w| / |d| a layer.

    Layers are the weights [classes, d] and the biases [classes] of each seed. Without weight
    decay, and with the identity for the paper's phi. Where |w| or |d| is 0 the ratio is 1.
    """

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        import torch  # heavy: planning imports this module

        directions = self.compute_direction(gradient)
        for layer in (slice(None, -1), slice(-1, None)):
            parameters, direction = weights[..., layer], directions[..., layer]
            sizes = [torch.linalg.vector_norm(part, dim=(1, 2), keepdim=True)
                     for part in (parameters, direction)]  # fmt: skip
            ratio = torch.where((sizes[0] > 0) & (sizes[1] > 0), sizes[0] / sizes[1], 1.0)
            parameters.sub_(direction.mul_(ratio), alpha=rate)


def fit(
    options: Options, rows: Rows, releases: Releases, *, record: Record | None = None
) -> Fitted:
    """Trains one head per seed; see `dpprobe.heads.fit`."""
    from dpprobe.heads import gradient_steps  # imports torch, which planning goes without

    optimiser = partial(
        Lamb,
        beta1=options.beta1,
        beta2=options.beta2,
        eps=options.eps,
        **correction_constants(options.noise_correction, releases),
    )
    return gradient_steps.train_heads(options, rows, releases, optimiser, record=record)
