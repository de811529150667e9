"""Gradients and weights of three seeds, for tests of optimisers."""

from __future__ import annotations

import torch

SHAPE = (3, 4, 6)


def gradients(steps: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(steps, *SHAPE, generator=generator, dtype=torch.float64)


def start() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SHAPE, generator=generator, dtype=torch.float64)
