"""Sums of clipped gradients of a linear head, in closed form, for several heads together.

With x a row with a 1 appended, p its class probabilities (softmax, or one sigmoid per class), y its
labels as zeros and ones and r = p - y, the gradient of a row's cross-entropy is r x^T, of norm
|r| |x|. So the sum of gradients clipped to norm C is R^T X with each r scaled by
min(1, C / (|r| |x|)): no gradient of a single row is formed.

If units of privacy have several rows (`units`), each clipped gradient is multiplied with its row's
weight. A unit's weights sum to at most 1, so a unit adds at most norm C. Poisson samples are of
units: all rows of a drawn unit join the batch.

On the CPU `kernels.fused_step` computes the sums; else PyTorch, synchronising only between blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.heads.kernels import fused_step
from dpprobe.heads.rows import Rows
from dpprobe.privacy.sampling import Sampler

# A clipped row's norm in exact arithmetic stays at most C: norms and clip factors are computed in
# float64, their product with r rounds by at most 2^-24, or 2^-23 where the factor rounds first.
_MARGIN = 4 * 2.0**-24
_GROUP_BYTES = 2**20
_PIECE_BYTES = 32 * 2**20
# A sum over many rows goes by slices, whose number depends on the rows and the head alone, so that
# threads do not change the sum. The slices' sums take at most so much memory per seed.
_SLICE_ROWS, _MOST_SLICES, _SLICE_BYTES = 512, 8, 8 * 2**20
# Normalised rows up to this size are kept between full-batch steps; more are normalised each time.
_KEPT_BYTES = 64 * 2**20
# Rows of a batch that one thread adds up in compiled steps.
_LARGEST_BATCH = 1024

Index = npt.NDArray[np.int64]


def clip_bounds(norms: torch.Tensor, clip: float) -> torch.Tensor:
    """Returns the largest |r| of each row that keeps its gradient's norm at most `clip`, float64.

    The bound is infinite if `clip` is. For unusable rows the bound makes their factor 0 in float32.
    """
    return torch.where(norms.isfinite(), clip * (1 - _MARGIN) / norms, fused_step.NOT_USABLE)


@dataclass(frozen=True)
class ClippedGradients:
    """The rows, the loss and the clipping norm of the gradients that are summed.

    Attributes:
      clip: the largest norm of an example's gradient; infinite for no clipping.
      sigmoid: True if the loss is a sum over classes of sigmoid cross-entropies.
      constant: b, appended to each row, so that its gradient is r [x, b]. Sums here have r in the
        last column, for the caller to multiply with b.
    """

    rows: Rows
    clip: float
    sigmoid: bool
    constant: float = 1.0

    @cached_property
    def bounds(self) -> torch.Tensor:
        """The largest |r| of each row, float64 [n]."""
        norms = self.rows.norms
        if self.constant != 1:
            norms = self.rows.lengths.square().add_(self.constant**2).sqrt_()
        return clip_bounds(norms, self.clip)

    @cached_property
    def arrays(self) -> fused_step.Arrays | None:
        """All rows without a copy; None if they are not in memory in this form."""
        if self.rows.direct is None:
            return None
        features, scale = self.rows.direct
        return fused_step.Arrays.make_arrays(
            features, scale, self.rows.labels, self.bounds, self.rows.weights, sigmoid=self.sigmoid
        )

    @cached_property
    def copies(self) -> list[fused_step.Arrays] | None:
        """Blocks of all rows after normalisation; None if they are too many to keep."""
        if 4 * len(self.rows) * self.rows.dimension > _KEPT_BYTES:
            return None
        return list(self.read_copies())

    def read_copies(self) -> Iterator[fused_step.Arrays]:
        for start, stop, features in self.rows.read_blocks():
            yield self.copy_arrays(features, slice(start, stop))

    def copy_arrays(self, features: torch.Tensor, index: torch.Tensor | slice) -> fused_step.Arrays:
        rows = self.rows
        return fused_step.Arrays.make_arrays(
            features,
            torch.ones(len(features)),
            rows.labels[index],
            self.bounds[index],
            None if rows.weights is None else rows.weights[index],
            sigmoid=self.sigmoid,
        )

    def clip_residuals(
        self, logits: torch.Tensor, labels: torch.Tensor, index: torch.Tensor | slice
    ) -> torch.Tensor:
        residuals = clipped_residuals(logits, labels, self.bounds[index], sigmoid=self.sigmoid)
        weights = self.rows.weights
        return residuals if weights is None else residuals.mul_(weights[index])


def drawn_rows(rows: Rows, sampler: Sampler, steps: int) -> tuple[Index, Index]:
    """Returns the rows of the next `steps` Poisson batches of units, and each batch's rows."""
    drawn, sizes = sampler.draw_block(steps)
    return (drawn, sizes) if rows.units is None else rows.units.rows_of(drawn, sizes)


class ClippedGradientSum(ABC):
    """The sum of clipped gradients at the current weights, step after step.

    `gradients` may be replaced between batches, by gradients of as many other rows.
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
    """Adds `fused_step`'s clipped sums over any number of rows, by the pool's threads."""
    if not len(index):  # many batches of an audit's few rows
        return
    most = max(1, min(_MOST_SLICES, _SLICE_BYTES // (4 * weights[0].numel())))
    count = max(1, min(most, len(index) // _SLICE_ROWS))
    total, heads = release.numpy(), weights.numpy()
    if count == 1:
        sizes = np.array([len(index)])
        fused_step.add_clipped_sums(*arrays, index, sizes, heads, classes, total[np.newaxis])
        return
    sizes = np.full(count, len(index) // count)
    sizes[: len(index) % count] += 1
    partial = np.zeros((count, *total.shape), np.float32)

    def add_slice(first: int, last: int) -> None:
        rows = index[sizes[:first].sum() : sizes[:last].sum()]
        fused_step.add_clipped_sums(
            *arrays, rows, sizes[first:last], heads, classes, partial[first:last]
        )

    if pool is None:
        add_slice(0, count)
    else:
        list(pool.map(add_slice, range(count), range(1, count + 1)))
    for one in partial:
        total += one


class NativeFullBatchSum(ClippedGradientSum):
    """Every row in every step, on the CPU, block by block, for all seeds.

    Weights and releases are from `fused_step.padded_zeros`.
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
    """One head's Poisson batches, on the CPU.

    Weights and releases are [1, ...], from `fused_step.padded_zeros`.
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
        """Draws batches, and gathers their rows unless they lie in memory or are too many."""
        rows, sizes = drawn_rows(self.gradients.rows, self._sampler, steps)
        arrays = self.gradients.arrays
        if arrays is None and len(rows) * 4 * self.gradients.rows.dimension <= _PIECE_BYTES:
            arrays, rows = self._gather_rows(rows), np.arange(len(rows))
        self._arrays, self._rows, self._sizes = arrays, rows, sizes
        self._step, self._start = 0, 0

    def next_batches(self) -> tuple[fused_step.Arrays, Index, Index] | None:
        """Takes the prepared batches up to the first that is too large for one thread.

        Returns:
          The arrays, their rows, batch after batch, and each batch's number of rows. Rows of a
          later batch may follow. None if the next batch is too large, or rows were not gathered.
        """
        sizes = self._sizes[self._step :]
        if self._arrays is None or sizes[0] > _LARGEST_BATCH:
            return None
        large = sizes > _LARGEST_BATCH
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
        piece = max(1, _PIECE_BYTES // (4 * self.gradients.rows.dimension))
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
    """Returns r * min(1, bound / |r|) for the columns of logits [seeds, classes, m], like `logits`.

    A row's column is exactly 0 if one of its logits is not finite.

    Args:
      labels: int64 [seeds or 1, m], or uint8 [seeds or 1, classes, m].
      bounds: float64 [m], from `clip_bounds`.
    """
    usable = logits.isfinite().all(-2, keepdim=True)
    residuals = torch.sigmoid(logits) if sigmoid else torch.softmax(logits, -2)
    if labels.dtype == torch.uint8:
        residuals -= labels
    else:
        index = labels.unsqueeze(-2).expand(*logits.shape[:-2], 1, -1)
        residuals.scatter_(-2, index, -1.0, reduce="add")
    residuals.masked_fill_(~usable, 0.0)
    norms = residuals.to(torch.float64).square_().sum(-2, keepdim=True).sqrt_()
    return residuals.mul_(torch.div(bounds, norms).clamp_(max=1.0))


class FullBatchSum(ClippedGradientSum):
    """Every row in every step: two products for all seeds, block by block."""

    def __init__(self, gradients: ClippedGradients, weights: torch.Tensor) -> None:
        self.gradients = gradients
        self._weights = weights

    def draw_batches(self, steps: int) -> None:
        pass

    def add_to(self, release: torch.Tensor) -> None:
        seeds, classes, columns = self._weights.shape
        rows, flat = self.gradients.rows, self._weights.view(seeds * classes, columns)
        total = torch.zeros_like(flat)
        for start, stop, block in rows.read_blocks(32 * seeds * classes):
            logits = torch.addmm(flat[:, -1:], flat[:, :-1], block.T)
            labels = rows.labels[start:stop]
            residuals = self.gradients.clip_residuals(
                logits.view(seeds, classes, -1),
                (labels.T if rows.multi_label else labels).unsqueeze(0),
                slice(start, stop),
            ).view(seeds * classes, -1)
            total[:, :-1].addmm_(residuals, block)
            total[:, -1].add_(residuals.sum(1))
        release.add_(total.view_as(release))


class PoissonBatchSum(ClippedGradientSum):
    """One Poisson batch per seed, all seeds together, by PyTorch.

    Batches are laid end to end, step after step and seed after seed: one gather for several steps,
    one elementwise pass for all seeds, two small products per seed, and no padding.
    """

    def __init__(
        self, gradients: ClippedGradients, weights: torch.Tensor, samplers: Sequence[Sampler]
    ) -> None:
        self.gradients = gradients
        self._heads = weights.unbind()
        self._samplers = samplers
        row_bytes = 4 * (gradients.rows.dimension + 1)
        self._group = max(1, _GROUP_BYTES // row_bytes)
        self._longest = max(1, _PIECE_BYTES // row_bytes)
        self._buffer = weights.new_empty((0, gradients.rows.dimension + 1))
        self._pieces: Iterator[_Piece] = iter(())
        self._counts: Iterator[int] = iter(())

    def draw_batches(self, steps: int) -> None:
        drawn = [drawn_rows(self.gradients.rows, sampler, steps) for sampler in self._samplers]
        step = np.concatenate([np.repeat(np.arange(steps), sizes) for _, sizes in drawn])
        rows = np.concatenate([rows for rows, _ in drawn])[np.argsort(step, kind="stable")]
        sizes = np.stack([sizes for _, sizes in drawn], axis=1).tolist()
        cut = [self._cut_pieces(step_sizes) for step_sizes in sizes]
        self._counts = iter([len(pieces) for pieces in cut])
        chosen = torch.from_numpy(rows).to(self.gradients.rows.device, non_blocking=True)
        self._pieces = self._gather_pieces(chosen, [piece for pieces in cut for piece in pieces])

    def _cut_pieces(self, sizes: list[int]) -> list[list[int]]:
        """Cuts a step's rows, given as one number per seed, into pieces that are not too long."""
        if sum(sizes) <= self._longest:
            return [sizes]
        pieces = []
        for seed, size in enumerate(sizes):
            for start in range(0, size, self._longest):
                piece = [0] * len(sizes)
                piece[seed] = min(self._longest, size - start)
                pieces.append(piece)
        return pieces

    def _gather_pieces(self, chosen: torch.Tensor, pieces: list[list[int]]) -> Iterator[_Piece]:
        """Yields pieces with their features, gathered group by group into one buffer."""
        rows, start = self.gradients.rows, 0
        for group in group_pieces(pieces, self._group):
            counts = [sum(piece) for piece in group]
            stop = start + sum(counts)
            if len(self._buffer) < stop - start:
                self._buffer = self._buffer.new_ones((stop - start, self._buffer.shape[1]))
            group_rows, block = chosen[start:stop], self._buffer[: stop - start]
            block[:, :-1] = rows.copy_rows(group_rows)
            labels = rows.labels[group_rows]
            yield from map(
                _Piece,
                group,
                block.split_with_sizes(counts),
                (labels.T if rows.multi_label else labels).split_with_sizes(counts, -1),
                group_rows.split_with_sizes(counts),
            )
            start = stop

    def add_to(self, release: torch.Tensor) -> None:
        totals = release.unbind()
        for piece in islice(self._pieces, next(self._counts)):
            self._add_piece(totals, piece)

    def _add_piece(self, totals: Sequence[torch.Tensor], piece: _Piece) -> None:
        batches = piece.rows.split_with_sizes(piece.sizes)
        logits = piece.rows.new_empty((1, self._heads[0].shape[0], len(piece.places)))
        columns = logits[0].split_with_sizes(piece.sizes, 1)
        for head, batch, out in zip(self._heads, batches, columns, strict=True):
            torch.mm(head, batch.T, out=out)
        residuals = self.gradients.clip_residuals(logits, piece.labels.unsqueeze(0), piece.places)
        columns = residuals[0].split_with_sizes(piece.sizes, 1)
        for total, batch, batch_residuals in zip(totals, batches, columns, strict=True):
            total.addmm_(batch_residuals, batch)


class _Piece(NamedTuple):
    """Rows of one step, seed after seed: numbers of rows, rows [m, d + 1], labels, places."""

    sizes: list[int]
    rows: torch.Tensor
    labels: torch.Tensor
    places: torch.Tensor


def group_pieces(pieces: Sequence[list[int]], most: int) -> Iterator[list[list[int]]]:
    """Yields groups of consecutive pieces with a maximum total of rows, or of a single piece."""
    group: list[list[int]] = []
    total = 0
    for piece in pieces:
        if group and total + sum(piece) > most:
            yield group
            group, total = [], 0
        group.append(piece)
        total += sum(piece)
    if group:
        yield group
