"""Noisy gradient steps on linear heads: the training loop of sgd, momentum, adam and lamb.

`gradient_options` documents the releases and sensitivities. `clipping` computes the sums,
`privacy.releases` makes the noise, and each head's module has its optimiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import torch

from dpprobe import devices
from dpprobe.errors import PrivacyError
from dpprobe.heads.clipping import (
    ClippedGradients,
    ClippedGradientSum,
    NativeFullBatchSum,
    NativePoissonSum,
    TorchSum,
)
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.gradient_options import GRADIENTS, GradientOptions, finite_weights
from dpprobe.heads.history import History, record_steps
from dpprobe.heads.initial_weights import initial_weights
from dpprobe.heads.kernels import fused_step
from dpprobe.heads.optimiser import MakeOptimiser, Sgd
from dpprobe.heads.rows import Rows, crop_at
from dpprobe.heads.schedules import learning_rates, mixing_rates, rate_of
from dpprobe.privacy.plan import Mechanism
from dpprobe.privacy.randomness import open_stream
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.sampling import PoissonSampler
from dpprobe.progress import Progress

if TYPE_CHECKING:
    from dpprobe.heads.opacus_engine import OpacusHead

# Noise is drawn in blocks of NOISE_BYTES, half of a core's second-level cache. Batches are drawn
# together up to _BLOCK_ROWS expected rows per seed.
NOISE_BYTES = 2**19
_BLOCK_ROWS = 2**14


def take_gradient_steps(
    options: GradientOptions,
    rows: Rows,
    releases: Releases,
    optimiser: MakeOptimiser,
    *,
    start: torch.Tensor | None = None,
    record: Record | None = None,
) -> Fitted:
    """Trains heads: draws batches, sums clipped gradients, adds noise, steps the optimiser.

    `start` [classes, d + 1] is added to the initial weights of all seeds.

    Noisy sums are divided by the public expected batch size. On the CPU, seeds with Poisson batches
    train in parallel threads; with full batches, all seeds use each block of rows together. A
    seed's head does not depend on other seeds, except for last bits on a GPU.

    Raises:
      PrivacyError: if training takes more steps than the plan covers.
      ConfigError: if training diverged, or initial weights do not fit.
      DataError: if rows of Poisson batches are not in memory.
    """
    # Without noise, sums need not be exact.
    if options.engine == "exact" and releases.plan.private:
        from dpprobe.heads import exact_engine  # slow: loads compiled functions

        return exact_engine.train(options, rows, releases, optimiser(), start=start, record=record)
    mechanism = releases.plan.find_mechanism(GRADIENTS)
    history = History(rows, mechanism.sample_rate, record, options.link)
    clip, sigmoid = releases.sensitivity(GRADIENTS), options.loss == "sigmoid"
    gradients = [ClippedGradients(each, clip, sigmoid, options.constant) for each in rows.crops]
    opacus = options.engine == "opacus"
    alone = opacus or (is_native(rows) and mechanism.sample_rate < 1)
    groups = [(seed,) for seed in releases.seeds] if alone else [releases.seeds]
    with ExitStack() as stack, torch.inference_mode():
        threads = torch.get_num_threads() if is_native(rows) and not opacus else 1
        pool = stack.enter_context(ThreadPoolExecutor(threads)) if threads > 1 else None
        side_by_side = len(groups) > 1
        trainings = [
            Training(
                options,
                gradients,
                releases,
                seeds,
                optimiser,
                None if side_by_side else pool,
                start=start,
            )
            for seeds in groups
        ]
        progress = stack.enter_context(
            Progress(mechanism.count, label=f"{options.head}: train", unit="steps")
        )
        taken = 0
        history.add_record(0, heads_of(trainings))
        for stop in record_steps(mechanism.count):
            steps = _advance_all(trainings, stop - taken, pool if side_by_side else None)
            releases.count_releases(GRADIENTS, steps)
            progress.advance_by(steps)
            taken += steps
            history.add_record(taken, heads_of(trainings))
        weights = finite_weights(heads_of(trainings), options)
    return Fitted(weights=weights, steps=taken, history=history.records)


def is_native(rows: Rows) -> bool:
    """Returns True if `fused_step` computes the sums, False if PyTorch does."""
    return devices.has_kernels(rows.device)


def _advance_all(trainings: Sequence[Training], steps: int, pool: Executor | None) -> int:
    """Takes the next steps of all trainings; returns the number of steps."""
    before = [training.taken for training in trainings]
    advance_all = map if pool is None else pool.map
    list(advance_all(lambda training: training.take_steps(steps), trainings))
    taken = {training.taken - start for training, start in zip(trainings, before, strict=True)}
    if len(taken) > 1:
        raise PrivacyError(f"seeds took {sorted(taken)} steps, but epsilon covers {steps}")
    return taken.pop()


class Training:
    """Heads while they train, one per seed, which take blocks of steps together.

    `gradients` has one entry per crop of the images, usually a single one; steps use crops in turn.
    """

    def __init__(
        self,
        options: GradientOptions,
        gradients: Sequence[ClippedGradients],
        releases: Releases,
        seeds: Sequence[int],
        optimiser: MakeOptimiser,
        pool: Executor | None,
        *,
        start: torch.Tensor | None = None,
    ) -> None:
        mechanism, rows = releases.plan.find_mechanism(GRADIENTS), gradients[0].rows
        begun = initial_weights(options, rows, seeds)
        if start is not None:
            begun += start.to(begun)
        size = begun[0].numel()
        self.taken = 0
        self._native = is_native(rows)
        self._shape = begun.shape
        self._weights, self._release = (self._make_buffer(rows.device) for _ in range(2))
        self._view_heads(self._weights).copy_(begun)
        # The optimiser changes `_parameters`. Biases are their last column times the constant.
        self._constant = options.constant
        self._parameters = self._view_heads(self._weights)
        if self._constant != 1:
            self._parameters = begun.clone()
            self._parameters[..., -1] /= self._constant
        self._rates = learning_rates(options, mechanism.count, rate_of(options, rows, releases))
        self._mixing = mixing_rates(options, mechanism.count)
        self._average = None if self._mixing is None else self._weights.clone()
        self._divisor = mechanism.sample_rate * rows.n
        self._lengths = (self._rates / self._divisor).astype(np.float32)
        self._mixed = np.zeros(0) if self._mixing is None else self._mixing
        self._mixed = self._mixed.astype(np.float32)
        self._block = block_steps(size, mechanism, len(rows))
        # For rows in memory, batches are only indices, so many are drawn at once.
        in_memory = self._native and gradients[0].arrays is not None
        blocks = batch_steps(mechanism, len(rows)) // self._block if in_memory else 1
        self._batches_at_once = self._block * max(1, blocks)
        self._deviation = releases.noise_deviation(GRADIENTS)
        self._releases, self._seeds = releases, tuple(seeds)
        self._noise = releases.make_noise(GRADIENTS, size, seeds=seeds)
        self._optimiser = optimiser()
        self._gradients, self._rate = gradients, mechanism.sample_rate
        self._sum: ClippedGradientSum | OpacusHead
        self._sum = self._gradient_sum(gradients[0], mechanism, seeds, pool, options.engine)
        self._longest = None if releases.plan.private else options.max_batch_grad_norm
        # whether compiled code can take the steps
        self._plain = (
            type(self._optimiser) is Sgd
            and self._longest is None
            and self._constant == 1
            and not (releases.observer and releases.observer.sees_each_step)
        )

    def _make_buffer(self, device: torch.device) -> torch.Tensor:
        if self._native:
            return fused_step.padded_zeros(*self._shape)
        return torch.zeros(self._shape, device=device)

    def _view_heads(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer[:, : self._shape[1], : self._shape[2]]

    def _gradient_sum(
        self,
        gradients: ClippedGradients,
        mechanism: Mechanism,
        seeds: Sequence[int],
        pool: Executor | None,
        engine: str,
    ) -> ClippedGradientSum | OpacusHead:
        n, rate = gradients.rows.n, mechanism.sample_rate
        samplers = [
            self._releases.choose_sampler(
                seed, PoissonSampler(n, rate, open_stream(seed, "sampling"))
            )
            for seed in (seeds if rate < 1 else ())
        ]
        if engine == "opacus":
            from dpprobe.heads.opacus_engine import OpacusHead  # slow: imports Opacus

            return OpacusHead(
                gradients,
                self._parameters,
                samplers[0] if samplers else None,
                noise_multiplier=self._releases.noise_multiplier(GRADIENTS),
                divisor=self._divisor,
                add=self._add_noise,
            )
        if not samplers and self._native:
            return NativeFullBatchSum(gradients, self._weights, pool)
        if self._native:
            (sampler,) = samplers
            return NativePoissonSum(gradients, self._weights, sampler, pool)
        return TorchSum(gradients, self._weights, samplers)

    @property
    def heads(self) -> torch.Tensor:
        """The weights that training would return now, [seeds, classes, d + 1]."""
        return self._view_heads(self._weights if self._average is None else self._average)

    @torch.inference_mode()
    def take_steps(self, steps: int) -> None:
        stop = self.taken + steps
        while self.taken < stop:
            most = min(self._batches_at_once, stop - self.taken)
            if len(self._gradients) > 1:
                crop, left = crop_at(self.taken, self._rate, len(self._gradients))
                self._sum.gradients, most = self._gradients[crop], min(most, left)
            prepared = self.taken + most
            self._sum.draw_batches(most)
            while self.taken < prepared:
                if self._descend_compiled():
                    continue
                block = min(self._block, prepared - self.taken)
                drawn = self._noise.draw_steps(block, self._deviation).unflatten(2, self._shape[1:])
                for noise in drawn.unbind(1):
                    self._take_step(noise)

    def _descend_compiled(self) -> bool:
        """Takes the next plain SGD steps in compiled code; returns False if it cannot."""
        if not self._plain or not isinstance(self._sum, NativePoissonSum):
            return False
        batches = self._sum.next_batches()
        if batches is None:
            return False
        arrays, rows, sizes = batches
        window = slice(self.taken, self.taken + len(sizes))
        observed = self._releases.observe_steps(
            GRADIENTS, self._seeds[0], len(sizes), self._shape[1:]
        )
        average = self._weights if self._average is None else self._average
        fused_step.take_steps(
            tuple(arrays),
            rows,
            sizes,
            self._noise.noise_source(self._deviation),
            self._lengths[window],
            self._weights.numpy(),
            self._shape[1],
            self._release.numpy(),
            self._mixed[window],
            average.numpy(),
            tuple(observed),
        )
        self.taken += len(sizes)
        return True

    def _take_step(self, noise: torch.Tensor) -> None:
        weights = self._view_heads(self._weights)
        if isinstance(self._sum, ClippedGradientSum):
            release = self._release_mean(self._sum, noise)
        else:
            release = self._sum.release_mean(noise)
        if self._longest is not None:
            norms = torch.linalg.vector_norm(release, dim=(1, 2), keepdim=True)
            release.mul_((self._longest / norms).clamp_(max=1))
        self._optimiser.step(self._parameters, release, float(self._rates[self.taken]))
        if self._constant != 1:
            weights.copy_(self._parameters)
            weights[..., -1] *= self._constant
        if self._average is not None and self._mixing is not None:
            self._view_heads(self._average).lerp_(weights, float(self._mixing[self.taken]))
        self.taken += 1

    def _release_mean(self, sums: ClippedGradientSum, noise: torch.Tensor) -> torch.Tensor:
        """Returns the noisy mean gradients of the next batches."""
        release = self._view_heads(self._release)
        if self._releases.observer is None and self._constant == 1:
            release.copy_(noise)
            sums.add_to(self._release)
        else:
            release.zero_()
            sums.add_to(self._release)
            release[..., -1] *= self._constant
            release = self._add_noise(release, noise)
        return release.div_(self._divisor)

    def _add_noise(self, sums: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Returns sums of gradients plus noise, or an audit observer's replacement."""
        if self._releases.observer is None:
            return sums.add_(noise)
        self._releases.observer.see_values("weights", self._seeds, self._view_heads(self._weights))
        return self._releases.observe_sums(GRADIENTS, sums, noise, self._seeds)


def heads_of(trainings: Sequence[Training]) -> torch.Tensor:
    """Returns a copy of all heads, [seeds, classes, d + 1]."""
    return torch.cat([training.heads for training in trainings])


def block_steps(size: int, mechanism: Mechanism, rows: int) -> int:
    """Returns for how many steps noise is drawn at a time, `size` numbers per step.

    On a GPU this number affects the noise, so it must not depend on the number of seeds.
    """
    steps = NOISE_BYTES // (4 * size)
    if mechanism.sample_rate < 1:
        steps = min(steps, batch_steps(mechanism, rows))
    return max(1, steps)


def batch_steps(mechanism: Mechanism, rows: int) -> int:
    """Returns for how many steps (at least one) batches have about `_BLOCK_ROWS` rows together."""
    return max(1, int(_BLOCK_ROWS / (mechanism.sample_rate * rows)))
