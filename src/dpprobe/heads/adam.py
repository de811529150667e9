"""DP-Adam (Kingma and Ba 2015 on privatised gradients) on a linear head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dpprobe.heads.first_order_options import FirstOrderOptions
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.optimiser import Optimiser

if TYPE_CHECKING:
    import torch

    from dpprobe.heads.optimiser import State
    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases


class Options(FirstOrderOptions):
    """DP-Adam.

    Defaults: full batch, zero weights and C = 1 (Mehta et al. 2022, sections 4 and 5), the
    moments' decays of Kingma and Ba; 40 steps at 0.01, chosen like momentum's.
    """

    DEFAULT_EPOCHS: ClassVar[float] = 40

    head: Literal["adam"] = "adam"
    learning_rate: float = Field(0.01, gt=0, allow_inf_nan=False)
    beta1: float = Field(0.9, ge=0, lt=1, allow_inf_nan=False, description="Of the mean gradient.")
    beta2: float = Field(
        0.999, ge=0, lt=1, allow_inf_nan=False, description="Of the mean squared gradient."
    )
    eps: float = Field(
        1e-8, gt=0, allow_inf_nan=False, description="Added to the root of the mean square."
    )


class Adam(Optimiser):
    """Kingma and Ba 2015, algorithm 1: debiased mean over the root of the debiased mean square."""

    def __init__(self, *, beta1: float, beta2: float, eps: float) -> None:
        self._beta1, self._beta2, self._eps = beta1, beta2, eps
        self._means: tuple[torch.Tensor, torch.Tensor] | None = None
        self._taken = 0

    def direction(self, gradient: torch.Tensor) -> torch.Tensor:
        """Returns what is subtracted from the weights, but for the rate."""
        import torch  # heavy: planning imports this module

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

    def state(self) -> dict[str, State]:
        if self._means is None:
            return {}
        mean, square = self._means
        return {"mean": mean.clone(), "square": square.clone(), "taken": self._taken}

    def restore(self, state: Mapping[str, State]) -> None:
        import torch  # as above

        mean, square = state.get("mean"), state.get("square")
        self._taken = int(state.get("taken", 0))
        self._means = None
        if isinstance(mean, torch.Tensor) and isinstance(square, torch.Tensor):
            self._means = mean.clone(), square.clone()

    def reference(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch  # as above

        return torch.optim.Adam(parameters, lr=1.0, betas=(self._beta1, self._beta2), eps=self._eps)


def fit(
    options: Options, rows: Rows, releases: Releases, *, record: Record | None = None
) -> Fitted:
    """Trains one head a seed; see `dpprobe.heads.fit`."""
    from dpprobe.heads import first_order  # imports torch, which planning goes without

    optimiser = partial(Adam, beta1=options.beta1, beta2=options.beta2, eps=options.eps)
    return first_order.train(options, rows, releases, optimiser, record=record)
