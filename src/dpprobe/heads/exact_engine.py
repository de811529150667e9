"""`engine: exact`: noisy gradient steps with exact sums and noise, by the same plan.

**Released** in each step: the sum over the batch's rows of w v u^T, plus noise. For a row x of
weight w (1, or less if its unit of privacy has several rows) and residual r, and the head's
constant b (1, or its `intercept`), u is [x, b] / |[x, b]|, and v is r |[x, b]|, scaled to norm
C = `max_grad_norm` if it is longer: v u^T is the row's clipped gradient. u and w v are rounded
towards zero to whole numbers of two public steps (`privacy.grid`).

**Sensitivity** C. Rounding towards zero lengthens nothing, so |w v| |u| <= w C, and the weights of
a unit sum to at most 1. r depends on the head and on x alone: logits are products of u and of the
head on a grid, which float64 adds exactly, and the rest is done row by row. The sum is of integers
of at most n 2^(a + b) <= 2^52 in total, exact in any order. So a null row in a row's place changes
the sum by exactly that row's part: by at most C, to the last bit.

**Noise** is the rounding of a real Gaussian to the grid (`Releases.release_gaussian`): the release
is the real-valued mechanism, rounded, at an unchanged price. A batch is a Poisson sample of units
with exactly the plan's rate (`ExactPoissonSampler`). All random words are a keystream's.

Weights, rates, optimisers and averages are post-processing of the releases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dpprobe import devices
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.heads.clipping import drawn_rows
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.gradient_options import GRADIENTS, GradientOptions, finite_weights
from dpprobe.heads.history import History, record_steps
from dpprobe.heads.initial_weights import initial_weights
from dpprobe.heads.kernels import exact_step
from dpprobe.heads.kernels.integer_products import digit_bits, padded
from dpprobe.heads.optimiser import Optimiser, Sgd
from dpprobe.heads.rows import Rows, crop_at
from dpprobe.heads.schedules import learning_rates, mixing_rates, rate_of
from dpprobe.privacy.grid import GridSum, entry_bits, factor_bits, grid_step, product_bits
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.sampling import ExactPoissonSampler, Sampler
from dpprobe.progress import Progress

_NONE = torch.zeros(0)
_PIECE_BYTES = 32 * 2**20
# Steps of plain SGD at a time, at most, and bytes of their noise: more would leave the cache.
_STEPS, _NOISE_BYTES = 8, 2**19
# Rows of a thread's slice are at least so many.
_SLICE_ROWS = 512

Index = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


def train(
    options: GradientOptions,
    rows: Rows,
    releases: Releases,
    optimiser: Optimiser,
    *,
    record: Record | None = None,
) -> Fitted:
    """Trains like `gradient_steps.train_heads`, all seeds side by side, under noise.

    Raises:
      PrivacyError: if more steps were taken than were priced.
      ConfigError: if training diverged, or on a GPU.
      DataError: if batches are needed of rows that are not in memory.
    """
    if not devices.has_kernels(rows.device):
        raise ConfigError(
            f"head {options.head}: engine exact computes on the CPU, but the rows are on "
            f"{rows.device.type}; train on the CPU, or write `engine: closed_form`"
        )
    mechanism = releases.plan.find_mechanism(GRADIENTS)
    rates = learning_rates(options, mechanism.count, rate_of(options, rows, releases))
    mixing = mixing_rates(options, mechanism.count)
    sample_rate = mechanism.sample_rate
    history = History(rows, sample_rate, record, options.link)
    weights = initial_weights(options, rows, releases.seeds, releases.entropy).double()
    # Steps are taken on parameters: the biases are these times the constant.
    constant = options.constant
    parameters = weights if constant == 1 else weights.clone()
    parameters[..., -1] /= constant
    average = weights if mixing is None else weights.clone()
    divisor, taken, size = sample_rate * rows.n, 0, weights[0].numel()
    with ExitStack() as stack, torch.inference_mode():
        threads = torch.get_num_threads()
        pool = stack.enter_context(ThreadPoolExecutor(threads)) if threads > 1 else None
        clip, sigmoid = mechanism.sensitivity, options.loss == "sigmoid"
        crops = [
            ExactSums(each, clip, sigmoid=sigmoid, pool=pool, constant=constant)
            for each in rows.crops
        ]
        samplers: list[Sampler] = []
        for seed in releases.seeds if sample_rate < 1 else ():
            words = releases.open_keystream(seed, "Poisson sampling")
            sampler = ExactPoissonSampler(rows.n, sample_rate, words)
            samplers.append(releases.choose_sampler(seed, sampler))
        progress = stack.enter_context(
            Progress(mechanism.count, label=f"{options.head}, exact: train", unit="steps")
        )
        # Several small steps at a time: Python's calls between them would take longer.
        compiled = type(optimiser) is Sgd and constant == 1 and releases.observer is None
        compiled = compiled and bool(samplers) and all(crop.whole for crop in crops)
        most = max(1, min(_STEPS, _NOISE_BYTES // (8 * size))) if compiled else 1
        share = map if pool is None else pool.map
        history.add_record(0, average.float())
        for stop in record_steps(mechanism.count):
            progress.advance_by(stop - taken)
            while taken < stop:
                crop, left = crop_at(taken, sample_rate, len(crops))
                sums, steps = crops[crop], min(stop - taken, left, most)
                batches = [drawn_rows(rows, each, steps) for each in samplers]
                step, taken = taken, taken + steps
                mixes = np.zeros(0) if mixing is None else mixing[step:taken]
                if compiled:
                    releases.count_releases(GRADIENTS, steps)
                    noise = releases.draw_ahead(GRADIENTS, sums.step, steps, size)
                    further = (repeat(each) for each in (divisor, rates[step:taken], mixes))
                    heads, means = weights.numpy()[:, None], average.numpy()
                    if not all(share(sums.take_steps, batches, heads, noise, *further, means)):
                        raise PrivacyError("sums of gradients are off their grid; none is released")
                    continue
                drawn = [index for index, _ in batches]
                total = sums.sum_batches(weights, drawn) if samplers else sums.sum_all(weights)
                release = releases.release_gaussian(GRADIENTS, total).div_(divisor)
                optimiser.step(parameters, release, float(rates[step]))
                if constant != 1:
                    weights.copy_(parameters)
                    weights[..., -1] *= constant
                if mixing is not None:
                    average.lerp_(weights, float(mixing[step]))
            history.add_record(taken, average.float())
    heads = finite_weights(average.float(), options)
    return Fitted(weights=heads, steps=taken, history=history.records)


class _Data(NamedTuple):
    """The first arguments of `exact_step.add_sums`."""

    features: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]
    centre: npt.NDArray[np.float32]
    labels: Index
    multi_hot: npt.NDArray[np.uint8]
    weights: npt.NDArray[np.float32]


class ExactSums:
    """The clipped sums of a set of rows, on their grid, for any weights.

    Args:
      clip: the largest norm of an example's gradient.
      pool: threads that share the rows of a full batch, or the seeds' Poisson batches.
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
        # The compiled sums append 1, so they see x / b, clip at C / b, and their result is times b,
        # because
        # [x / b, 1] has the direction of [x, b].
        self._constant = constant
        self._clip = clip / constant * (1 - exact_step.MARGIN)
        self._pool = pool
        bits = entry_bits(rows.n)
        self._entry = grid_step(1 - exact_step.MARGIN, bits)
        self._bits = product_bits(1) - bits - 1, digit_bits(bits)
        self._shape = rows.num_classes, rows.dimension + 1
        self._padded = padded(self._shape[0], 4), padded(self._shape[1], 32)
        self._step = grid_step(self._clip, factor_bits(rows.n))
        self.step = self._entry * self._step  # of the sums, before the constant
        self._given = *self._bits, self._clip, self._entry, self._step, sigmoid
        weights = torch.ones(len(rows)) if rows.weights is None else rows.weights
        self._weights = torch.where(rows.lengths.isfinite(), weights, 0.0)
        if not bool((self._weights <= 1).all()):  # the sensitivity, and the integers' bounds
            raise PrivacyError("weights of examples must be at most 1; nothing is released")
        self.whole = self._where_they_lie()

    def sum_all(self, weights: torch.Tensor) -> GridSum:
        """Returns the sums over all rows, one for each head of weights [seeds, K, d + 1]."""
        heads, totals = self._prepare(weights)
        for data in self._read_blocks():
            index = np.arange(len(data.features))
            count = max(1, min(torch.get_num_threads(), len(index) // _SLICE_ROWS))
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
        """Takes steps of plain SGD on one head, if rows lie whole; see `exact_step.take_steps`."""
        assert self.whole is not None
        return bool(exact_step.take_steps(*self.whole, *batches, head, *self._given, *rest))

    def _prepare(self, weights: torch.Tensor) -> tuple[Numbers, Numbers]:
        """Returns weights for the compiled sums' rows, and zeros for the sums."""
        if self._constant != 1:
            weights = torch.cat([weights[..., :-1] * self._constant, weights[..., -1:]], -1)
        return weights.numpy(), np.zeros((len(weights), *self._padded))

    def _make_sum(self, totals: Numbers) -> GridSum:
        units = torch.from_numpy(totals[:, : self._shape[0], : self._shape[1]])
        total = GridSum(units, self.step)
        return total if self._constant == 1 else total.divide_by(1 / self._constant)

    def _add_rows(self, data: _Data, index: Index, heads: Numbers, out: Numbers) -> None:
        exact_step.add_sums(*data, index, len(index), heads, *self._given, out)

    def _where_they_lie(self) -> _Data | None:
        """Returns all rows without a copy; None if they are not in memory in this form."""
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
    ) -> _Data:
        labels, several = self._rows.labels[index].contiguous().numpy(), self._rows.multi_label
        if self._constant != 1:
            scale, shift = scale / self._constant, shift / self._constant
        return _Data(
            features.contiguous().numpy(),
            scale.contiguous().numpy(),
            shift.contiguous().numpy(),
            centre.contiguous().numpy(),
            np.zeros(0, dtype=np.int64) if several else labels,
            labels if several else np.zeros((0, 0), dtype=np.uint8),
            self._weights[index].contiguous().numpy(),
        )

    def _read_blocks(self) -> Iterator[_Data]:
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

    def _gather_rows(self, index: Index) -> Iterator[tuple[_Data, Index]]:
        if self.whole is not None:
            yield self.whole, index
            return
        piece = max(1, _PIECE_BYTES // (4 * self._rows.dimension))
        for start in range(0, len(index), piece):
            chosen = torch.from_numpy(index[start : start + piece])
            rows = self._rows.copy_rows(chosen)
            yield self._make_data(rows, chosen, torch.ones(len(rows))), np.arange(len(rows))
