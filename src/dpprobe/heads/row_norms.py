"""Norms of feature rows, and which rows a head cannot use."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from dpprobe import devices

# Rows with norms above LONGEST_ROW count as not finite, because their squares would overflow
# float32. Nonzero rows with norms below SHORTEST_ROW would overflow when scaled to norm 1.
LONGEST_ROW, SHORTEST_ROW = 1e18, 1e-20
PIECE_BYTES = 2**18  # for rows whose norms a CPU computes at a time


def row_lengths(rows: torch.Tensor) -> torch.Tensor:
    """Returns L2 norms of a block's rows, float64 [m]; on the CPU without a float64 copy."""
    size = max(1, PIECE_BYTES // (4 * rows.shape[1]))
    # Exported graphs must accept any number of rows, so they do not split blocks.
    whole = torch.compiler.is_exporting() or not devices.has_kernels(rows.device)
    pieces = [rows] if whole else rows.split(size)
    norms = [torch.linalg.vector_norm(piece, dim=1, dtype=torch.float64) for piece in pieces]
    return torch.cat(norms)


def find_unusable(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Returns which rows [m, d] contain NaN or infinity, or have norms above `LONGEST_ROW`."""
    return np.asarray(~(np.linalg.norm(rows.astype(np.float64), axis=1) <= LONGEST_ROW))


def unit_scale(lengths: torch.Tensor) -> torch.Tensor:
    """Returns the factors that scale rows of these norms to norm 1, float32; 1 for norms near 0."""
    # Division by zero would make gradients NaN, even where `torch.where` takes another value.
    return (1 / torch.where(lengths >= SHORTEST_ROW, lengths, 1.0)).to(torch.float32)
