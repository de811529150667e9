"""Computes clipped gradient sums with compiled code and with PyTorch, for tests of both."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

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
    """Returns the sum over all rows, compiled if `native`, [seeds, classes, d + 1]."""
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
    """Yields the sums over Poisson batches, in groups of three steps."""
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
    """Returns each head's exact sum over the rows of an index."""
    return sums.sum_batches(weights, [index] * len(weights))


def square(sums: GridSum) -> Fraction:
    """Returns the exact squared norm of the sums."""
    whole = [Fraction(unit) for unit in sums.units.flatten().tolist()]
    assert all(unit.denominator == 1 for unit in whole)
    return sum((unit**2 for unit in whole), Fraction(0)) * Fraction(sums.step) ** 2


def numpy_sum(arrays: fused_step.Arrays, rows: Any, weights: Any) -> npt.NDArray[np.float64]:
    """Returns one head's clipped sum in float64, [classes, dimension + 1]."""
    x = arrays.scale[rows].astype(float)[:, None] * arrays.features[rows]
    logits = x @ weights[:, :-1].astype(float).T + weights[:, -1]
    used = (abs(logits) <= np.finfo(np.float32).max).all(1)
    x, logits, rows = x[used], logits[used], rows[used]
    powers = np.exp(logits - logits.max(1, initial=-np.inf, keepdims=True))
    residual = 1 / (1 + np.exp(-logits)) if arrays.sigmoid else powers / powers.sum(1)[:, None]
    residual -= (
        arrays.multi_hot[rows]
        if len(arrays.multi_hot)
        else (np.eye(len(weights))[arrays.labels[rows]])
    )
    length = np.linalg.norm(residual, axis=1)
    parts = arrays.parts[rows] if len(arrays.parts) else 1.0
    residual *= (np.minimum(1, arrays.bounds[rows] / length) * parts)[:, None]
    return np.column_stack([residual.T @ x, residual.sum(0)])
