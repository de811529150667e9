"""Clipped gradient sums by the compiled and the PyTorch way, for tests of both."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.heads.clipping import (
    ClippedGradients,
    ClippedGradientSum,
    NativeFullBatchSum,
    NativePoissonSum,
    TorchSum,
)
from dpprobe.heads.exact_sums import ExactSums
from dpprobe.heads.kernels import fused_step
from dpprobe.heads.rows import Rows
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.randomness import cell_seed, open_stream
from dpprobe.privacy.sampling import PoissonSampler

SEEDS = [cell_seed("test", index) for index in range(3)]
LOSSES = [("softmax", False), ("sigmoid", False), ("sigmoid", True)]


def random_weights(rows: Rows, seeds: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(seeds, rows.num_classes, rows.dimension + 1, generator=generator) / 4


def padded(weights: torch.Tensor) -> torch.Tensor:
    buffer = fused_step.padded_zeros(*weights.shape)
    unpadded(buffer, weights)[:] = weights
    return buffer


def unpadded(buffer: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return buffer[:, : like.shape[1], : like.shape[2]]


def full_sum(
    rows: Rows, clip: float, weights: torch.Tensor, *, sigmoid: bool, native: bool
) -> torch.Tensor:
    """Returns the sum over all rows by one of the two ways, [seeds, classes, d + 1]."""
    gradients = ClippedGradients(rows, clip, sigmoid)
    if not native:
        release = torch.zeros_like(weights)
        TorchSum(gradients, weights).add_to(release)
        return release
    release = fused_step.padded_zeros(*weights.shape)
    NativeFullBatchSum(gradients, padded(weights), None).add_to(release)
    assert not release[:, weights.shape[1] :].any()
    assert not release[..., weights.shape[2] :].any()
    return unpadded(release, weights)


def poisson_sums(
    rows: Rows, clip: float, weights: torch.Tensor, rate: float, *, sigmoid: bool, native: bool
) -> Iterator[torch.Tensor]:
    """Yields the sums over Poisson batches, three steps at a time."""
    gradients = ClippedGradients(rows, clip, sigmoid)
    samplers = [PoissonSampler(rows.n, rate, open_stream(seed, "sampling")) for seed in SEEDS]
    sums: list[ClippedGradientSum] = [TorchSum(gradients, weights, samplers[: len(weights)])]
    if native:
        sums = [
            NativePoissonSum(gradients, padded(weights[index : index + 1]), sampler, None)
            for index, sampler in enumerate(samplers[: len(weights)])
        ]
    while True:
        for each in sums:
            each.draw_batches(3)
        for _ in range(3):
            parts = []
            for each in sums:
                release = torch.zeros_like(weights)
                if native:
                    release = fused_step.padded_zeros(1, *weights.shape[1:])
                each.add_to(release)
                parts.append(unpadded(release, weights).clone())
            yield torch.cat(parts)


def sum_over(sums: ExactSums, index: npt.NDArray[np.int64], weights: torch.Tensor) -> GridSum:
    """Each head's exact sum over the rows of an index."""
    return sums.sum_batches(weights, [index] * len(weights))


def square(sums: GridSum) -> Fraction:
    """The squared norm of the sums, exactly."""
    whole = [Fraction(unit) for unit in sums.units.flatten().tolist()]
    assert all(unit.denominator == 1 for unit in whole)
    return sum((unit**2 for unit in whole), Fraction(0)) * Fraction(sums.step) ** 2
