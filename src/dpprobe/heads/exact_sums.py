"""Sums of clipped gradients as integer multiples of public steps, for `exact_engine`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import PrivacyError
from dpprobe.heads.kernels import exact_step
from dpprobe.heads.rows import Rows
from dpprobe.privacy.grid import (
    GridSum,
    check_exact,
    entry_bits,
    factor_bits,
    grid_step,
    product_bits,
)

_NONE = torch.zeros(0)
PIECE_BYTES = 32 * 2**20  # for rows that are copied from a batch at a time
# The smallest number of rows per thread.
SLICE_ROWS = 512

Index = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


class Data(NamedTuple):
    """The rows for `exact_step`: row i is scale[i] * features[i] - shift[i] * centre.

    Attributes:
      features, scale, shift, centre: [n, d], [n], [n] and [d]; shift and centre are [0] without
        centre.
      labels, multi_hot: shapes [n] and [0, 0], or [0] and [n, K] for several labels per row.
      weights: [n], factors of the clipped gradients; 0 for an unusable row.
      norms: [n], norms of the rows with a 1 appended; 0 for a row of weight 0.
    """

    features: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]
    centre: npt.NDArray[np.float32]
    labels: Index
    multi_hot: npt.NDArray[np.uint8]
    weights: npt.NDArray[np.float32]
    norms: Numbers


class Given(NamedTuple):
    """The constants for `exact_step`, common to all rows.

    Attributes:
      bits: the bits of a class's integer weights; see `exact_step.to_integers`.
      clip: the largest norm of a gradient.
      entry, step: the grid steps of the rows' entries and of the factors.
    """

    bits: int
    clip: float
    entry: float
    step: float
    sigmoid: bool


class ExactSums:
    """Computes sums of clipped gradients over a set of rows, on a public grid, for any weights.

    Args:
      clip: the largest norm of an example's gradient.
      pool: threads that divide the rows of a full batch, or the seeds' Poisson batches.
      constant: b, appended to each row.
    """

    def __init__(
        self,
        rows: Rows,
        clip: float,
        *,
        sigmoid: bool,
        pool: Executor | None,
        constant: float = 1.0,
    ) -> None:
        self._rows = rows
        # Compiled code appends 1 to x / b, because [x / b, 1] is parallel to [x, b]. So it clips at
        # C / b, and its sums are multiplied by b.
        self._constant = constant
        longest, bits = 1 - exact_step.MARGIN, entry_bits(rows.n)
        clip = clip / constant * longest
        self._pool = pool
        self._shape = rows.num_classes, rows.dimension + 1
        entry, step = grid_step(longest, bits), grid_step(clip, factor_bits(rows.n))
        self._given = Given(product_bits(1) - bits - 1, clip, entry, step, sigmoid)
        check_exact(rows.n, longest / entry * clip / step)
        check_exact(1, longest / entry * (2.0**self._given.bits + self._shape[1] ** 0.5))
        self.step = entry * step  # the sums' grid step, before the factor b
        weights = torch.ones(len(rows)) if rows.weights is None else rows.weights
        self._weights = torch.where(rows.lengths.isfinite(), weights, 0.0)
        if not bool((self._weights <= 1).all()):  # sensitivities assume 1
            raise PrivacyError("weights of examples must be at most 1; nothing is released")
        self.whole = self._view_rows()

    def sum_all(self, weights: torch.Tensor) -> GridSum:
        """Returns the sum over all rows for each head in `weights` [seeds, K, d + 1]."""
        heads, totals = self._prepare(weights)
        for data in self._read_blocks():
            index = np.arange(len(data.features))
            count = max(1, min(torch.get_num_threads(), len(index) // SLICE_ROWS))
            if self._pool is None or count == 1:
                self._add_rows(data, index, heads, totals)
                continue
            parts = [np.zeros_like(totals) for _ in range(count)]
            slices = np.array_split(index, count)
            list(self._pool.map(self._add_rows, repeat(data), slices, repeat(heads), parts))
            for part in parts:
                totals += part
        return self._make_sum(totals)

    def sum_batches(self, weights: torch.Tensor, batches: Sequence[Index]) -> GridSum:
        """Returns each head's sum over its batch."""
        heads, totals = self._prepare(weights)

        def add_seed(seed: int) -> None:
            window = slice(seed, seed + 1)
            for data, index in self._gather_rows(batches[seed]):
                self._add_rows(data, index, heads[window], totals[window])

        seeds = range(len(batches))
        list(map(add_seed, seeds) if self._pool is None else self._pool.map(add_seed, seeds))
        return self._make_sum(totals)

    def take_steps(self, batches: tuple[Index, Index], head: Numbers, *rest: Any) -> bool:
        """Takes plain SGD steps on one head by `exact_step.take_steps`; rows must need no copy."""
        assert self.whole is not None
        return bool(
            exact_step.take_steps(tuple(self.whole), *batches, head, tuple(self._given), *rest)
        )

    def _prepare(self, weights: torch.Tensor) -> tuple[Numbers, Numbers]:
        """Converts weights for compiled code; returns them, and zeros for sums."""
        if self._constant != 1:
            weights = torch.cat([weights[..., :-1] * self._constant, weights[..., -1:]], -1)
        return weights.numpy(), np.zeros((len(weights), *self._shape))

    def _make_sum(self, totals: Numbers) -> GridSum:
        total = GridSum(torch.from_numpy(totals[..., : self._shape[1]]), self.step)
        return total if self._constant == 1 else total.divide_by(1 / self._constant)

    def _add_rows(self, data: Data, index: Index, heads: Numbers, out: Numbers) -> None:
        exact_step.add_sums(tuple(data), index, heads, tuple(self._given), out)

    def _view_rows(self) -> Data | None:
        """Returns all rows without a copy; None if compiled code cannot read them in place."""
        features, affine = self._rows.data.features, self._rows.affine
        if affine is not None and features is not None:
            return self._make_data(features, slice(None), *affine)
        if self._rows.direct is not None:
            features, scale = self._rows.direct
            return self._make_data(features, slice(None), scale)
        return None

    def _make_data(
        self,
        features: torch.Tensor,
        index: torch.Tensor | slice,
        scale: torch.Tensor,
        shift: torch.Tensor = _NONE,
        centre: torch.Tensor = _NONE,
    ) -> Data:
        labels, several = self._rows.labels[index].contiguous().numpy(), self._rows.multi_label
        if self._constant != 1:
            scale, shift = scale / self._constant, shift / self._constant
        weights, norms = self._weights[index].contiguous().numpy(), np.empty(len(features))
        moves = features, scale, shift, centre
        rows, factors, shifts, centres = (each.contiguous().numpy() for each in moves)
        exact_step.measure_rows(rows, factors, shifts, centres, weights, norms)
        return Data(
            rows,
            factors,
            shifts,
            centres,
            np.zeros(0, dtype=np.int64) if several else labels,
            labels if several else np.zeros((0, 0), dtype=np.uint8),
            weights,
            norms,
        )

    def _read_blocks(self) -> Iterator[Data]:
        if self.whole is not None:
            yield self.whole
            return
        affine = self._rows.affine
        for start, stop, features in self._rows.read_blocks(raw=affine is not None):
            window = slice(start, stop)
            if affine is None:
                yield self._make_data(features, window, torch.ones(len(features)))
            else:
                scale, shift = affine.scale[window], affine.shift[window]
                yield self._make_data(features, window, scale, shift, affine.centre)

    def _gather_rows(self, index: Index) -> Iterator[tuple[Data, Index]]:
        if self.whole is not None:
            yield self.whole, index
            return
        piece = max(1, PIECE_BYTES // (4 * self._rows.dimension))
        for start in range(0, len(index), piece):
            chosen = torch.from_numpy(index[start : start + piece])
            rows = self._rows.copy_rows(chosen)
            yield self._make_data(rows, chosen, torch.ones(len(rows))), np.arange(len(rows))
