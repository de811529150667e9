"""Float32 sums of clipped gradients of a linear head, in closed form, for several heads at once.

Only benchmarks use these sums: releases refuse them, and use `exact_sums`.

Let x be a row with a 1 appended, p the row's class probabilities (softmax, or one sigmoid per
class), y the labels as zeros and ones, and r = p - y. The gradient of the row's cross-entropy is r
x^T, with norm |r| |x|. So the sum of gradients clipped to norm C is R^T X with each r scaled by
min(1, C / (|r| |x|)), and no per-row gradient has to be formed.

If units of privacy have several rows (`units`), each clipped gradient is multiplied with its row's
weight. A unit's weights sum to at most 1, so a unit's contribution has norm at most C. Poisson
sampling draws units: all rows of a drawn unit join the batch.

On the CPU `kernels.fused_step` computes the sums; on other devices PyTorch computes the sums,
without waiting for the device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from dpprobe import devices
from dpprobe.heads.kernels import fused_step
from dpprobe.heads.rows import Rows
from dpprobe.privacy.sampling import Sampler

# Makes the exact norm of a clipped gradient at most C: norms and clip factors are float64, and the
# product of factor and r is rounded by at most 2^-24, or 2^-23 if the factor is rounded first.
_MARGIN = 4 * 2.0**-24
PIECE_BYTES = 32 * 2**20  # for rows that are gathered from batches at a time
# Working memory of PyTorch's sums per row and class.
_ENTRY_BYTES = 32
# A sum over many rows is split into slices. Their number depends only on the rows and the head, so
# threads do not change the sum. _SLICE_BYTES limits the sums' memory per seed.
_SLICE_ROWS, _MOST_SLICES, _SLICE_BYTES = 512, 8, 8 * 2**20
# Up to KEPT_BYTES of normalised rows are cached between full-batch steps; larger sets are not.
KEPT_BYTES = 64 * 2**20
# The largest batch, in rows, that a single thread sums in compiled steps.
LARGEST_BATCH = 1024

Index = npt.NDArray[np.int64]


def clip_bounds(norms: torch.Tensor, clip: float) -> torch.Tensor:
    """Returns the largest residual norm |r| per row whose gradient has norm at most `clip`.

    With an infinite `clip` the bound is infinite. The bound of an unusable row makes its clipping
    factor 0 in float32.

    Example:
      >>> [round(bound, 3) for bound in clip_bounds(torch.tensor([1.0, 4.0]), 2.0).tolist()]
      [2.0, 0.5]
    """
    return torch.where(norms.isfinite(), clip * (1 - _MARGIN) / norms, fused_step.NOT_USABLE)


@dataclass(frozen=True)
class ClippedGradients:
    """The rows, the loss and the clipping norm of gradients to be summed.

    Attributes:
      clip: the largest norm of an example's gradient; infinite for no clipping.
      sigmoid: True if the loss is a sum over classes of sigmoid cross-entropies.
      constant: b, appended to each row, so that the row's gradient is r [x, b]. The last column of
        sums has r instead of b r; the caller multiplies it by b.
    """

    rows: Rows
    clip: float
    sigmoid: bool
    constant: float = 1.0

    @cached_property
    def bounds(self) -> torch.Tensor:
        """Each row's largest residual norm |r| within the clipping norm, float64 [n]."""
        norms = self.rows.norms
        if self.constant != 1:
            norms = self.rows.lengths.square().add_(self.constant**2).sqrt_()
        return clip_bounds(norms, self.clip)

    @cached_property
    def arrays(self) -> fused_step.Arrays | None:
        """All rows as arrays without a copy; None if compiled loops cannot read them in place."""
        if self.rows.direct is None:
            return None
        features, scale = self.rows.direct
        return fused_step.Arrays.make_arrays(
            features, scale, self.rows.labels, self.bounds, self.rows.weights, sigmoid=self.sigmoid
        )

    @cached_property
    def copies(self) -> list[fused_step.Arrays] | None:
        """All rows after normalisation, in blocks; None if they are too large to cache."""
        if 4 * len(self.rows) * self.rows.dimension > KEPT_BYTES:
            return None
        return list(self.read_copies())

    def read_copies(self) -> Iterator[fused_step.Arrays]:
        for start, stop, features in self.rows.read_blocks():
            yield self.copy_arrays(features, slice(start, stop))

    def copy_arrays(self, features: torch.Tensor, index: torch.Tensor | slice) -> fused_step.Arrays:
        rows, ones = self.rows, torch.ones(len(features))
        weights = None if rows.weights is None else rows.weights[index]
        return fused_step.Arrays.make_arrays(
            features, ones, rows.labels[index], self.bounds[index], weights, sigmoid=self.sigmoid
        )

    def clip_residuals(
        self, logits: torch.Tensor, labels: torch.Tensor, index: torch.Tensor | slice
    ) -> torch.Tensor:
        residuals = clipped_residuals(logits, labels, self.bounds[index], sigmoid=self.sigmoid)
        weights = self.rows.weights
        return residuals if weights is None else residuals.mul_(weights[index][:, None, None])


def drawn_rows(rows: Rows, sampler: Sampler, steps: int) -> tuple[Index, Index]:
    """Returns the rows of the next `steps` Poisson batches, and the number of rows per batch."""
    drawn, sizes = sampler.draw_block(steps)
    return (drawn, sizes) if rows.units is None else rows.units.rows_of(drawn, sizes)


class ClippedGradientSum(ABC):
    """Computes the sum of clipped gradients at the current weights, step by step.

    Between batches, `gradients` may be replaced by gradients of as many other rows.
    """

    gradients: ClippedGradients

    @abstractmethod
    def draw_batches(self, steps: int) -> None:
        """Draws the next `steps` steps' batches."""

    @abstractmethod
    def add_to(self, release: torch.Tensor) -> None:
        """Adds each seed's clipped sum over its next batch to a tensor of the weights' shape."""


def add_in_slices(
    arrays: fused_step.Arrays,
    index: Index,
    weights: torch.Tensor,
    classes: int,
    release: torch.Tensor,
    pool: Executor | None,
) -> None:
    """Adds clipped sums over any number of rows to `release`, with `fused_step` in parallel."""
    if not len(index):  # an audit has many empty batches
        return
    most = max(1, min(_MOST_SLICES, _SLICE_BYTES // (4 * weights[0].numel())))
    count = max(1, min(most, len(index) // _SLICE_ROWS))
    data, total, heads = tuple(arrays), release.numpy(), weights.numpy()
    if count == 1:
        sizes = np.array([len(index)])
        fused_step.add_clipped_sums(data, index, sizes, heads, classes, total[np.newaxis])
        return
    sizes = np.full(count, len(index) // count)
    sizes[: len(index) % count] += 1
    partial = np.zeros((count, *total.shape), np.float32)

    def add_slice(first: int, last: int) -> None:
        rows = index[sizes[:first].sum() : sizes[:last].sum()]
        fused_step.add_clipped_sums(
            data, rows, sizes[first:last], heads, classes, partial[first:last]
        )

    if pool is None:
        add_slice(0, count)
    else:
        list(pool.map(add_slice, range(count), range(1, count + 1)))
    for one in partial:
        total += one


class NativeFullBatchSum(ClippedGradientSum):
    """Computes full-batch clipped sums for all seeds, on the CPU, block by block.

    Weights and releases must be made by `fused_step.padded_zeros`.
    """

    def __init__(
        self, gradients: ClippedGradients, weights: torch.Tensor, pool: Executor | None
    ) -> None:
        self.gradients = gradients
        self._weights = weights
        self._pool = pool

    def draw_batches(self, steps: int) -> None:
        pass

    def add_to(self, release: torch.Tensor) -> None:
        rows = self.gradients.rows
        for arrays in self._read_blocks():
            index = np.arange(len(arrays.features))
            add_in_slices(arrays, index, self._weights, rows.num_classes, release, self._pool)

    def _read_blocks(self) -> Iterator[fused_step.Arrays]:
        if self.gradients.arrays is not None:
            yield self.gradients.arrays
            return
        copies = self.gradients.copies
        yield from self.gradients.read_copies() if copies is None else copies


class NativePoissonSum(ClippedGradientSum):
    """Computes one head's clipped sums over Poisson batches, on the CPU.

    Weights and releases are [1, ...], made by `fused_step.padded_zeros`.
    """

    def __init__(
        self,
        gradients: ClippedGradients,
        weights: torch.Tensor,
        sampler: Sampler,
        pool: Executor | None,
    ) -> None:
        self.gradients = gradients
        self._weights = weights
        self._sampler = sampler
        self._pool = pool
        self._arrays: fused_step.Arrays | None = None
        self._rows: Index = np.zeros(0, dtype=np.int64)
        self._sizes = self._rows
        self._step, self._start = 0, 0

    def draw_batches(self, steps: int) -> None:
        """Draws batches, and gathers their rows unless these are in memory already or too many."""
        rows, sizes = drawn_rows(self.gradients.rows, self._sampler, steps)
        arrays = self.gradients.arrays
        if arrays is None and len(rows) * 4 * self.gradients.rows.dimension <= PIECE_BYTES:
            arrays, rows = self._gather_rows(rows), np.arange(len(rows))
        self._arrays, self._rows, self._sizes = arrays, rows, sizes
        self._step, self._start = 0, 0

    def next_batches(self) -> tuple[fused_step.Arrays, Index, Index] | None:
        """Returns the prepared batches that precede the first batch too large for one thread.

        Returns:
          The arrays, the rows' indices, batch after batch, and the number of rows per batch.
          Indices of later batches may follow. None if the next batch is too large, or not gathered.
        """
        sizes = self._sizes[self._step :]
        if self._arrays is None or sizes[0] > LARGEST_BATCH:
            return None
        large = sizes > LARGEST_BATCH
        if large.any():
            sizes = sizes[: int(large.argmax())]
        rows = self._rows[self._start :]
        self._step, self._start = self._step + len(sizes), self._start + int(sizes.sum())
        return self._arrays, rows, sizes

    def add_to(self, release: torch.Tensor) -> None:
        stop = self._start + int(self._sizes[self._step])
        batch = self._rows[self._start : stop]
        self._step, self._start = self._step + 1, stop
        if self._arrays is not None:
            self._add_rows(self._arrays, batch, release)
            return
        piece = max(1, PIECE_BYTES // (4 * self.gradients.rows.dimension))
        for start in range(0, len(batch), piece):
            arrays = self._gather_rows(batch[start : start + piece])
            self._add_rows(arrays, np.arange(len(arrays.features)), release)

    def _add_rows(self, arrays: fused_step.Arrays, index: Index, release: torch.Tensor) -> None:
        classes = self.gradients.rows.num_classes
        add_in_slices(arrays, index, self._weights, classes, release, self._pool)

    def _gather_rows(self, index: Index) -> fused_step.Arrays:
        chosen = torch.from_numpy(index)
        return self.gradients.copy_arrays(self.gradients.rows.copy_rows(chosen), chosen)


def clipped_residuals(
    logits: torch.Tensor, labels: torch.Tensor, bounds: torch.Tensor, *, sigmoid: bool = False
) -> torch.Tensor:
    """Returns r * min(1, bound / |r|) for rows of logits [m, seeds, classes], in the same shape.

    A row is exactly 0 if one of its logits is not finite.

    Args:
      labels: int64 [m], or uint8 [m, classes].
      bounds: float64 [m], from `clip_bounds`.
    """
    usable = torch.linalg.vector_norm(logits, math.inf, dim=-1, keepdim=True).isfinite()
    residuals = torch.sigmoid(logits) if sigmoid else torch.softmax(logits, -1)
    if labels.dtype == torch.uint8:
        residuals -= labels.unsqueeze(1)
    else:
        index = labels[:, None, None].expand(*logits.shape[:-1], 1)
        residuals.scatter_(-1, index, -1.0, reduce="add")
    residuals.masked_fill_(~usable, 0.0)
    norms = torch.linalg.vector_norm(residuals, dim=-1, keepdim=True, dtype=torch.float64)
    return residuals.mul_(torch.div(bounds[:, None, None], norms).clamp_(max=1.0))


class TorchSum(ClippedGradientSum):
    """Computes the sums with PyTorch, over all rows in every step, or over Poisson batches.

    On a GPU a step over all rows is recorded once and then repeated as one CUDA graph, because
    launching its kernels takes longer than computing.
    """

    def __init__(
        self, gradients: ClippedGradients, weights: torch.Tensor, samplers: Sequence[Sampler] = ()
    ) -> None:
        self.gradients = gradients
        self._weights = weights
        self._total = torch.zeros_like(weights)
        self._samplers = samplers
        self._batches: list[Iterator[torch.Tensor]] = []
        self._graphs: dict[ClippedGradients, torch.cuda.CUDAGraph | None] = {}

    def draw_batches(self, steps: int) -> None:
        self._batches = []
        for sampler in self._samplers:
            rows, sizes = drawn_rows(self.gradients.rows, sampler, steps)
            chosen = torch.from_numpy(rows).to(self._weights.device)
            self._batches.append(iter(chosen.split_with_sizes(sizes.tolist())))

    def add_to(self, release: torch.Tensor) -> None:
        if self._samplers:
            self._total.zero_()
            for seed, batches in enumerate(self._batches):
                self._add_batch(slice(seed, seed + 1), next(batches))
        elif graph := self._graphs.get(self.gradients):
            graph.replay()
        elif self._can_repeat():
            # The second step is recorded, as the first loads libraries, which graphs cannot record.
            graph = self._graphs[self.gradients] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._add_all()
            graph.replay()
        else:
            self._add_all()
        release.add_(self._total)

    def _can_repeat(self) -> bool:
        """Returns True from the second step on, if the rows are on a GPU."""
        first = self.gradients not in self._graphs
        self._graphs[self.gradients] = None
        return (
            not first and self.gradients.rows.are_views and devices.is_gpu(str(self._total.device))
        )

    def _add_all(self) -> None:
        self._total.zero_()
        seeds, classes, _ = self._weights.shape
        for start, stop, block in self.gradients.rows.read_blocks(_ENTRY_BYTES * seeds * classes):
            self._add_rows(slice(None), block, slice(start, stop))

    def _add_batch(self, seed: slice, batch: torch.Tensor) -> None:
        row_bytes = 4 * self.gradients.rows.dimension + _ENTRY_BYTES * self._weights.shape[1]
        for index in batch.split(max(1, PIECE_BYTES // row_bytes)):
            self._add_rows(seed, self.gradients.rows.copy_rows(index), index)

    def _add_rows(self, chosen: slice, block: torch.Tensor, index: torch.Tensor | slice) -> None:
        """Adds the clipped sum over a block [m, d] to the totals of the `chosen` seeds."""
        weights, total = self._weights[chosen].flatten(0, 1), self._total[chosen].flatten(0, 1)
        # Contiguous weights, because products with a view into rows of d + 1 numbers are slower.
        logits = torch.addmm(weights[:, -1].clone(), block, weights[:, :-1].contiguous().T)
        logits = logits.view(len(block), *self._weights[chosen].shape[:2])
        labels = self.gradients.rows.labels[index]
        residuals = self.gradients.clip_residuals(logits, labels, index).flatten(1)
        total[:, :-1].add_(residuals.T @ block)
        total[:, -1].add_(residuals.sum(0))
