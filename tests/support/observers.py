"""An observer that records what a fit releases."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dpprobe.privacy.releases import Observer
from dpprobe.privacy.sampling import Sampler


class Watching(Observer):
    """Records each release's sums and output, and the batches of each sampler.

    Attributes:
      through: False if heads continue with a fixed output: all datasets then see equal weights.
    """

    def __init__(self, *, through: bool = False) -> None:
        self.through = through
        self.sums: dict[str, list[torch.Tensor]] = {}
        self.outputs: dict[str, list[torch.Tensor]] = {}
        self.batches: list[np.ndarray] = []

    def observe_release(
        self,
        name: str,
        seed: int,
        sums: torch.Tensor,
        draw: Callable[[], torch.Tensor],
        step: float | None = None,
    ) -> torch.Tensor:
        del seed
        square = sums.ndim == 2 and sums.shape[0] == sums.shape[1]
        output = torch.eye(len(sums), dtype=sums.dtype) if square else torch.zeros_like(sums)
        output = self.change_output(name, draw() if self.through else output, step)
        self.sums.setdefault(name, []).append(sums.clone())
        self.outputs.setdefault(name, []).append(output)
        return output

    def change_output(self, name: str, output: torch.Tensor, step: float | None) -> torch.Tensor:
        """Returns the output with which the fit continues."""
        del name, step
        return output

    def replace_sampler(self, seed: int, sampler: Sampler) -> Sampler:
        del seed
        watched = self

        class Kept:
            def draw_block(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
                drawn, sizes = sampler.draw_block(steps)
                watched.batches += np.split(drawn, np.cumsum(sizes)[:-1])
                return drawn, sizes

        return Kept()
