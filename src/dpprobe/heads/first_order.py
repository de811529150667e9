"""Privatised gradient steps on a linear softmax head, in closed form, all seeds together.

With x a row with a 1 appended, p its class probabilities and r = p - e_y, the gradient of a row's
cross-entropy is r x^T and its norm |r| |x|. So the sum of the rows' gradients clipped to norm C is
R^T X with each r scaled by min(1, C / (|r| |x|)): no gradient of a single row is ever formed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.heads import Record
from dpprobe.heads import sgd as sgd_module
from dpprobe.heads.training_set import Heads, Rows, TrainingSet, chunks
from dpprobe.privacy.noise import GaussianNoise
from dpprobe.privacy.plan import Mechanism, Plan
from dpprobe.privacy.randomness import stream
from dpprobe.privacy.sampling import PoissonSampler
from dpprobe.progress import Progress

RECORDS = 20
LOSS_ROWS = 10_000

# A clipped row's norm in exact arithmetic stays at most C: norms and clip factors are computed in
# float64, their product with r rounds by at most 2^-24, or 2^-23 where the factor rounds first.
_MARGIN = 4 * 2.0**-24
# A block of steps: so many bytes of noise and so many expected rows a seed, whoever else trains.
_NOISE_BYTES = 2**20
_BLOCK_ROWS = 2**14
_GROUP_BYTES = 2**20
_PIECE_BYTES = 32 * 2**20


def fit(
    options: sgd_module.Options,
    data: TrainingSet,
    plan: Plan,
    seeds: Sequence[int],
    *,
    record: Record | None = None,
) -> Heads:
    """Runs the plan: Poisson batches, clipped sums, noise, steps of the negative mean gradient.

    A seed's head depends on that seed alone, but for the last bits of float32 sums.

    Raises:
      PrivacyError: when the steps taken are not the steps priced.
      ConfigError: when training diverged.
    """
    mechanism = plan.mechanism(sgd_module.GRADIENTS)
    clip = mechanism.sensitivity if plan.private else math.inf
    deviation = mechanism.noise_multiplier * mechanism.sensitivity
    rate = options.learning_rate / (mechanism.sample_rate * plan.n)
    history = History(data, options.normalize, mechanism.sample_rate, record)
    with torch.inference_mode():
        rows = data.normalised(options.normalize)
        weights = initial_weights(options.init, data, seeds)
        noise = GaussianNoise(seeds, weights[0].numel(), data.device)
        gradients: FullBatch | PoissonBatches
        if mechanism.sample_rate == 1:
            gradients = FullBatch(data, rows, clip, weights)
        else:
            samplers = [
                PoissonSampler(data.rows, mechanism.sample_rate, stream(seed, "sampling"))
                for seed in seeds
            ]
            gradients = PoissonBatches(data, rows, clip, weights, samplers)
        block = block_steps(weights[0].numel(), mechanism, plan.n)
        taken = 0
        history.add(0, weights)
        with Progress(mechanism.count, label=f"{options.head}: train", unit="steps") as progress:
            for stop in record_steps(mechanism.count):
                while taken < stop:
                    steps = min(block, stop - taken)
                    releases = noise.draw(steps, deviation).unflatten(2, weights.shape[1:])
                    gradients.prepare(steps)
                    for release in releases.unbind(1):
                        gradients.add_clipped_sum_(release)
                        weights.add_(release, alpha=-rate)
                        taken += 1
                    progress.advance(steps)
                history.add(taken, weights)
    check_steps(taken, mechanism.count)
    return Heads(
        weights=finite_weights(weights, options),
        seeds=tuple(seeds),
        normalize=options.normalize,
        steps=taken,
        history=history.rows,
    )


def block_steps(size: int, mechanism: Mechanism, rows: int) -> int:
    """Steps whose noise and batches are drawn at a time.

    On a GPU noise depends on it, so it must not depend on how many seeds train together.

    Args:
      size: numbers in one head.
      mechanism: the gradients.
      rows: in the dataset.
    """
    steps = _NOISE_BYTES // (4 * size)
    if mechanism.sample_rate < 1:
        steps = min(steps, int(_BLOCK_ROWS / (mechanism.sample_rate * rows)))
    return max(1, steps)


def record_steps(steps: int) -> list[int]:
    """About twenty steps on the way, evenly spread, and the last one."""
    parts = min(steps, RECORDS)
    return [round(steps * part / parts) for part in range(1, parts + 1)]


def check_steps(taken: int, priced: int) -> None:
    """Raises PrivacyError unless training took exactly the steps that were priced."""
    if taken != priced:
        raise PrivacyError(f"{taken} noisy steps were taken, {priced} were priced; not released")


def finite_weights(weights: torch.Tensor, options: sgd_module.Options) -> np.ndarray:
    """The weights as NumPy's.

    Raises:
      ConfigError: when training diverged.
    """
    array: np.ndarray = weights.cpu().numpy()
    if not np.isfinite(array).all():
        raise ConfigError(
            f"head {options.head}: training diverged at learning_rate {options.learning_rate:g}; "
            "write a smaller one"
        )
    return array


def initial_weights(
    init: str, data: TrainingSet, seeds: Sequence[int], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """[seeds, classes, d + 1]: zeros, or PyTorch's default, uniform within 1 / sqrt(d)."""
    shape = (data.num_classes, data.dimension + 1)
    if init == "zero":
        return torch.zeros((len(seeds), *shape), dtype=dtype, device=data.device)
    bound = 1 / math.sqrt(data.dimension)
    draws = [stream(seed, "init").uniform(-bound, bound, size=shape) for seed in seeds]
    return torch.from_numpy(np.stack(draws)).to(device=data.device, dtype=dtype)


def clip_bounds(norms: torch.Tensor, clip: float) -> torch.Tensor:
    """The largest |r| of each row that keeps its gradient's norm at most `clip`, float64.

    Infinite when `clip` is. For rows that may not contribute it is so small that their factor is
    0 in float32, and not 0 itself, since 0 / 0 is no number.
    """
    return torch.where(norms.isfinite(), clip * (1 - _MARGIN) / norms, 1e-300)


def clipped_residuals(
    logits: torch.Tensor, labels: torch.Tensor, bounds: torch.Tensor
) -> torch.Tensor:
    """r * min(1, bound / |r|) for the columns of logits [..., classes, m].

    Args:
      logits: of any floating type.
      labels: int64, of the shape of `logits` with 1 in place of classes.
      bounds: float64 [m], from `clip_bounds`.

    Returns:
      A tensor like `logits`. A row whose logits overflow has no gradient to speak of: its column
      is exactly 0.
    """
    residuals = torch.softmax(logits, -2)
    residuals.scatter_(-2, labels, -1.0, reduce="add").nan_to_num_(0.0, 0.0, 0.0)
    norms = residuals.to(torch.float64).square_().sum(-2, keepdim=True).sqrt_()
    return residuals.mul_(torch.div(bounds, norms).clamp_(max=1.0))


class FullBatch:
    """The clipped gradient sum over every row: two products for all seeds, chunk by chunk."""

    def __init__(self, data: TrainingSet, rows: Rows, clip: float, weights: torch.Tensor) -> None:
        self._features = rows.features
        self._labels = data.labels
        self._bounds = clip_bounds(rows.norms, clip)
        self._weights = weights

    def prepare(self, steps: int) -> None:
        """Nothing to draw: every step takes every row."""

    def add_clipped_sum_(self, release: torch.Tensor) -> None:
        """Adds each seed's clipped sum at the present weights to [seeds, classes, d + 1]."""
        seeds, classes, columns = self._weights.shape
        flat = self._weights.view(seeds * classes, columns)
        total = torch.zeros_like(flat)
        for start, stop in chunks(len(self._features), 32 * seeds * classes):
            block = self._features[start:stop]
            logits = torch.addmm(flat[:, -1:], flat[:, :-1], block.T)
            residuals = clipped_residuals(
                logits.view(seeds, classes, -1),
                self._labels[start:stop].expand(seeds, 1, -1),
                self._bounds[start:stop],
            ).view(seeds * classes, -1)
            total[:, :-1].addmm_(residuals, block)
            total[:, -1].add_(residuals.sum(1))
        release.add_(total.view_as(release))


class PoissonBatches:
    """The clipped gradient sums of one Poisson batch a seed.

    Batches are laid end to end, step after step and seed after seed: one gather for several steps,
    one pass of the elementwise work for all seeds, two small products a seed, and no padding.
    """

    def __init__(
        self,
        data: TrainingSet,
        rows: Rows,
        clip: float,
        weights: torch.Tensor,
        samplers: Sequence[PoissonSampler],
    ) -> None:
        self._features = rows.features
        self._labels = data.labels.unsqueeze(0)
        self._bounds = clip_bounds(rows.norms, clip)
        self._heads = weights.unbind()
        self._samplers = samplers
        row_bytes = rows.features.element_size() * (data.dimension + 1)
        self._group = max(1, _GROUP_BYTES // row_bytes)
        self._longest = max(1, _PIECE_BYTES // row_bytes)
        self._buffer = rows.features.new_empty((0, data.dimension + 1))
        self._pieces: Iterator[_Piece] = iter(())
        self._counts: Iterator[int] = iter(())

    def prepare(self, steps: int) -> None:
        """Draws the next `steps` steps' batches."""
        drawn = [sampler.block(steps) for sampler in self._samplers]
        step = np.concatenate([np.repeat(np.arange(steps), sizes) for _, sizes in drawn])
        rows = np.concatenate([rows for rows, _ in drawn])[np.argsort(step, kind="stable")]
        sizes = np.stack([sizes for _, sizes in drawn], axis=1).tolist()
        cut = [self._cut(own) for own in sizes]
        self._counts = iter([len(pieces) for pieces in cut])
        chosen = torch.from_numpy(rows).to(self._features.device, non_blocking=True)
        self._pieces = self._gathered(chosen, [piece for pieces in cut for piece in pieces])

    def _cut(self, sizes: list[int]) -> list[list[int]]:
        """A step's rows, a number a seed, in pieces none of which is too long."""
        if sum(sizes) <= self._longest:
            return [sizes]
        pieces = []
        for seed, size in enumerate(sizes):
            for start in range(0, size, self._longest):
                piece = [0] * len(sizes)
                piece[seed] = min(self._longest, size - start)
                pieces.append(piece)
        return pieces

    def _gathered(self, rows: torch.Tensor, pieces: list[list[int]]) -> Iterator[_Piece]:
        """Pieces with their features, gathered a group at a time into one buffer."""
        labels, bounds = self._labels[:, rows], self._bounds[rows]
        start = 0
        for group in groups(pieces, self._group):
            counts = [sum(piece) for piece in group]
            stop = start + sum(counts)
            if len(self._buffer) < stop - start:
                shape = (stop - start, self._buffer.shape[1])
                self._buffer = self._features.new_ones(shape)
            block = self._buffer[: stop - start]
            torch.index_select(self._features, 0, rows[start:stop], out=block[:, :-1])
            yield from map(
                _Piece,
                group,
                block.split_with_sizes(counts),
                labels[:, start:stop].split_with_sizes(counts, 1),
                bounds[start:stop].split_with_sizes(counts),
            )
            start = stop

    def add_clipped_sum_(self, release: torch.Tensor) -> None:
        """Adds each seed's clipped sum at the present weights to [seeds, classes, d + 1]."""
        totals = release.unbind()
        for piece in islice(self._pieces, next(self._counts)):
            self._add_piece_(totals, piece)

    def _add_piece_(self, totals: Sequence[torch.Tensor], piece: _Piece) -> None:
        batches = piece.rows.split_with_sizes(piece.sizes)
        logits = piece.rows.new_empty((self._heads[0].shape[0], len(piece.bounds)))
        columns = logits.split_with_sizes(piece.sizes, 1)
        for head, batch, out in zip(self._heads, batches, columns, strict=True):
            torch.mm(head, batch.T, out=out)
        residuals = clipped_residuals(logits, piece.labels, piece.bounds)
        columns = residuals.split_with_sizes(piece.sizes, 1)
        for total, batch, own in zip(totals, batches, columns, strict=True):
            total.addmm_(own, batch)


class _Piece(NamedTuple):
    """Rows of one step, seed after seed: how many of each, [m, d + 1], labels, clip bounds."""

    sizes: list[int]
    rows: torch.Tensor
    labels: torch.Tensor
    bounds: torch.Tensor


def groups(pieces: Sequence[list[int]], most: int) -> Iterator[list[list[int]]]:
    """Consecutive pieces together while they have at most so many rows; at least one each."""
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


class History:
    """What is recorded while training; nothing is computed where there is nobody to record for."""

    def __init__(
        self, data: TrainingSet, normalize: str, sample_rate: float, record: Record | None
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self._data = data
        self._normalize = normalize
        self._sample_rate = sample_rate
        self._record = record

    def add(self, step: int, weights: torch.Tensor) -> None:
        """One record a seed: the loss on the first 10,000 training rows, what `record` returns."""
        if self._record is None:
            return
        losses = self._losses(weights)
        epoch = step * self._sample_rate
        further = self._record(step, weights, {"epoch": epoch, "train_loss": losses}) or {}
        for index, loss in enumerate(losses):
            own = {name: float(values[index]) for name, values in further.items()}
            self.rows.append(
                {"seed_index": index, "step": step, "epoch": epoch, "train_loss": loss, **own}
            )

    def _losses(self, weights: torch.Tensor) -> list[float]:
        features = self._data.normalised(self._normalize).features[:LOSS_ROWS]
        total = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
        flat = weights.flatten(0, 1)
        for start, stop in chunks(len(features), 12 * len(flat)):
            logits = torch.addmm(flat[:, -1], features[start:stop], flat[:, :-1].T)
            logits = logits.view(-1, *weights.shape[:2]).movedim(0, 2)
            labels = self._data.labels[start:stop].expand(len(weights), -1)
            total += torch.nn.functional.cross_entropy(logits, labels, reduction="none").sum(1)
        return [float(value) for value in total / len(features)]
