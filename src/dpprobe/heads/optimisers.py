"""What is done with a privatised gradient: optimisers, learning rates, averages.

All of it looks at noisy sums alone, so it is post-processing and costs no privacy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.heads.gradient_options import GradientOptions

DEFAULT_EMA_DECAY = 0.99


class Optimiser(ABC):
    """Updates heads [seeds, classes, d + 1] in place; each seed as if it were alone."""

    @abstractmethod
    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        """One step of length `rate` along `gradient`, of the weights' shape; it may be altered."""

    @abstractmethod
    def reference(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The same in PyTorch; its learning rate is set at each step."""


class Sgd(Optimiser):
    """w - rate g."""

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        weights.add_(gradient, alpha=-rate)

    def reference(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1.0)


class Momentum(Optimiser):
    """v = beta v + g, w - rate v: Polyak's heavy ball, as in `torch.optim.SGD`."""

    def __init__(self, *, beta: float) -> None:
        self._beta = beta
        self._velocity: torch.Tensor | None = None

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        if self._velocity is None:
            self._velocity = torch.zeros_like(gradient)
        self._velocity.mul_(self._beta).add_(gradient)
        weights.add_(self._velocity, alpha=-rate)

    def reference(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1.0, momentum=self._beta)


class Adam(Optimiser):
    """Kingma and Ba 2015, algorithm 1: debiased mean over the root of the debiased mean square."""

    def __init__(self, *, beta1: float, beta2: float, eps: float) -> None:
        self._beta1, self._beta2, self._eps = beta1, beta2, eps
        self._means: tuple[torch.Tensor, torch.Tensor] | None = None
        self._taken = 0

    def direction(self, gradient: torch.Tensor) -> torch.Tensor:
        """What is subtracted from the weights, but for the rate."""
        if self._means is None:
            self._means = torch.zeros_like(gradient), torch.zeros_like(gradient)
        mean, square = self._means
        self._taken += 1
        mean.lerp_(gradient, 1 - self._beta1)
        square.mul_(self._beta2).addcmul_(gradient, gradient, value=1 - self._beta2)
        root = (square / (1 - self._beta2**self._taken)).sqrt_().add_(self._eps)
        return torch.div(mean, root, out=root).div_(1 - self._beta1**self._taken)

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        weights.add_(self.direction(gradient), alpha=-rate)

    def reference(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1.0, betas=(self._beta1, self._beta2), eps=self._eps)


class Lamb(Adam):
    """You et al. 2019, algorithm 2: Adam's direction d times |w| / |d| a layer.

    Layers are the weights [classes, d] and the biases [classes] of each seed. Without weight
    decay, and with the identity for the paper's phi. Where |w| or |d| is 0 the ratio is 1.
    """

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        direction = self.direction(gradient)
        for layer in (slice(None, -1), slice(-1, None)):
            own, towards = weights[..., layer], direction[..., layer]
            sizes = [torch.linalg.vector_norm(part, dim=(1, 2), keepdim=True)
                     for part in (own, towards)]  # fmt: skip
            ratio = torch.where((sizes[0] > 0) & (sizes[1] > 0), sizes[0] / sizes[1], 1.0)
            own.sub_(towards.mul_(ratio), alpha=rate)

    def reference(
        self,
        parameters: Iterable[torch.nn.Parameter],  # noqa: ARG002
    ) -> torch.optim.Optimizer:
        raise TypeError("PyTorch has no LAMB; `GradientOptions` refuses engine opacus for it")


def learning_rates(options: GradientOptions, steps: int) -> npt.NDArray[np.float64]:
    """[steps]: the learning rate of each.

    Over the first w = round(warmup * steps) steps it rises, learning_rate * t / w in the t-th.
    From there it falls, learning_rate * (1 + cos(pi p)) / 2 or learning_rate * (1 - p), with p
    from 0 at the first of the remaining steps to 1 just after the last.
    """
    if options.schedule == "constant":
        return np.full(steps, options.learning_rate)
    warm = min(round(options.warmup * steps), steps - 1)
    rising = np.arange(1, warm + 1) / max(warm, 1)
    progress = np.arange(steps - warm) / (steps - warm)
    if options.schedule == "warmup_cosine":
        falling = (1 + np.cos(np.pi * progress)) / 2
    else:
        falling = 1 - progress
    return options.learning_rate * np.concatenate([rising, falling])


def mixing_rates(options: GradientOptions, steps: int) -> npt.NDArray[np.float64] | None:
    """[steps]: how far the average moves towards each step's weights; None for the last weights.

    The mean of w_1 ... w_t moves by 1 / t. The moving average e_t = beta e_(t-1) + (1 - beta) w_t
    from e_0 = 0, debiased by 1 / (1 - beta^t), moves by (1 - beta) / (1 - beta^t): both start at
    w_1, and the initial weights have no part in them.
    """
    taken = np.arange(1, steps + 1, dtype=np.float64)
    if options.average == "mean":
        return 1 / taken
    if options.average == "ema":
        decay = DEFAULT_EMA_DECAY if options.ema_decay is None else options.ema_decay
        return (1 - decay) / (1 - decay**taken)
    return None


MakeOptimiser = Callable[[], Optimiser]
