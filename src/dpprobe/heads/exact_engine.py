"""`engine: exact`: noisy gradient steps with exact sums and exact noise, under the same plan.

**Released** in each step: the sum of w v u^T over the batch's rows, plus noise. A row x has weight
w (1, or less in a unit with several rows) and residual r, and the head has the constant b (1, or
`intercept`). Let u = [x, b] / |[x, b]|, and v = r |[x, b]|, clipped to norm C = `max_grad_norm`.
Then v u^T is the row's clipped gradient. The vectors u and w v are rounded towards zero to whole
numbers of two public steps (`privacy.grid`).

**Sensitivity** C. Rounding towards zero lengthens no vector, so |w v| |u| <= w C, and the weights
of a unit sum to at most 1. The residual r depends only on the head and on x, because products of u
and the rounded head are exact in float64, and everything else is computed row by row. The summed
integers are at most 2^52 in total (`privacy.grid`), so the sum is exact in any order. Replacing a
row by a null row changes the sum by exactly the row's contribution, so by at most C, to the last
bit. `device_sums` proves that a GPU computes the same sums.

Noise (`Releases.release_gaussian`) and Poisson samples of units (`ExactPoissonSampler`) are drawn
with exact probabilities from a keystream. Everything else in a fit is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import repeat

import numpy as np
import torch

from dpprobe import devices
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.heads.clipping import drawn_rows
from dpprobe.heads.device_sums import DeviceSums
from dpprobe.heads.exact_sums import ExactSums, Index
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.gradient_options import GRADIENTS, GradientOptions, finite_weights
from dpprobe.heads.history import History, record_steps
from dpprobe.heads.initial_weights import initial_weights
from dpprobe.heads.optimiser import Optimiser, Sgd
from dpprobe.heads.rows import Rows, crop_at
from dpprobe.heads.schedules import learning_rates, mixing_rates, rate_of
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.sampling import ExactPoissonSampler, Sampler
from dpprobe.progress import Progress

# The most plain SGD steps per compiled call, and bytes of their noise, which fit the cache.
_STEPS, _NOISE_BYTES = 8, 2**19


def train(
    options: GradientOptions,
    rows: Rows,
    releases: Releases,
    optimiser: Optimiser,
    *,
    start: torch.Tensor | None = None,
    record: Record | None = None,
) -> Fitted:
    """Trains the heads of all seeds with exact sums and noise; see `take_gradient_steps`.

    Raises:
      PrivacyError: if training takes more steps than the plan covers.
      ConfigError: if training diverged, or if the rows are on a GPU.
      DataError: if rows of Poisson batches are not in memory.
    """
    if not devices.has_kernels(rows.device):
        raise ConfigError(
            f"head {options.head}: engine exact computes on the CPU, but the rows are on "
            f"{rows.device.type}; keep the rows on the CPU and set their `exact_device`"
        )
    mechanism = releases.plan.find_mechanism(GRADIENTS)
    history = History(rows, mechanism.sample_rate, record, options.link)
    with ExitStack() as stack, torch.inference_mode():
        threads = torch.get_num_threads()
        pool = stack.enter_context(ThreadPoolExecutor(threads)) if threads > 1 else None
        training = ExactTraining(options, rows, releases, optimiser, pool, start=start)
        progress = stack.enter_context(
            Progress(mechanism.count, label=f"{options.head}, exact: train", unit="steps")
        )
        history.add_record(0, training.average.float())
        for stop in record_steps(mechanism.count):
            progress.advance_by(stop - training.taken)
            training.take_steps(stop)
            history.add_record(training.taken, training.average.float())
        heads = finite_weights(training.average.float(), options)
    return Fitted(weights=heads, steps=training.taken, history=history.records)


class ExactTraining:
    """Heads of all seeds while they train on exact sums.

    Attributes:
      taken: the number of steps taken.
      average: the weights that training would return now, float64 [seeds, classes, d + 1].
    """

    def __init__(
        self,
        options: GradientOptions,
        rows: Rows,
        releases: Releases,
        optimiser: Optimiser,
        pool: Executor | None,
        *,
        start: torch.Tensor | None = None,
    ) -> None:
        mechanism = releases.plan.find_mechanism(GRADIENTS)
        self.taken, self._sample_rate = 0, mechanism.sample_rate
        self._rows, self._releases, self._optimiser = rows, releases, optimiser
        self._pool = pool
        self._divisor = self._sample_rate * rows.n
        self._rates = learning_rates(options, mechanism.count, rate_of(options, rows, releases))
        self._mixing = mixing_rates(options, mechanism.count)
        self._weights = initial_weights(options, rows, releases.seeds, releases.entropy).double()
        if start is not None:
            self._weights += start.to(self._weights)
        self.average = self._weights if self._mixing is None else self._weights.clone()
        # `_parameters` are what steps change. Biases are the last column times the constant.
        self._constant = options.constant
        self._parameters = self._weights if self._constant == 1 else self._weights.clone()
        self._parameters[..., -1] /= self._constant
        self._crops = self._make_sums(mechanism.sensitivity, options.loss == "sigmoid")
        self._samplers = self._make_samplers()
        # Compiled code takes several small steps per call, because calls take longer than steps.
        self._compiled = (
            type(optimiser) is Sgd
            and self._constant == 1
            and releases.observer is None
            and bool(self._samplers)
            and all(type(crop) is ExactSums and crop.whole for crop in self._crops)
        )
        self._size = self._weights[0].numel()
        self._most = max(1, min(_STEPS, _NOISE_BYTES // (8 * self._size))) if self._compiled else 1

    def _make_sums(self, clip: float, sigmoid: bool) -> list[ExactSums]:
        device = torch.device(self._rows.data.exact_device)
        make_sums: Callable[..., ExactSums] = ExactSums
        if not devices.has_kernels(device):
            make_sums = partial(DeviceSums, device=device)
        return [
            make_sums(each, clip, sigmoid=sigmoid, pool=self._pool, constant=self._constant)
            for each in self._rows.crops
        ]

    def _make_samplers(self) -> list[Sampler]:
        samplers: list[Sampler] = []
        for seed in self._releases.seeds if self._sample_rate < 1 else ():
            words = self._releases.open_keystream(seed, "Poisson sampling")
            sampler = ExactPoissonSampler(self._rows.n, self._sample_rate, words)
            samplers.append(self._releases.choose_sampler(seed, sampler))
        return samplers

    def take_steps(self, stop: int) -> None:
        """Takes steps until `stop` steps have been taken."""
        while self.taken < stop:
            crop, left = crop_at(self.taken, self._sample_rate, len(self._crops))
            sums, steps = self._crops[crop], min(stop - self.taken, left, self._most)
            batches = [drawn_rows(self._rows, each, steps) for each in self._samplers]
            if self._compiled:
                self._descend_compiled(sums, batches, slice(self.taken, self.taken + steps))
            else:
                self._take_step(sums, [index for index, _ in batches])
            self.taken += steps

    def _descend_compiled(
        self, sums: ExactSums, batches: list[tuple[Index, Index]], window: slice
    ) -> None:
        """Takes the steps of a window in compiled code; each seed has its own batches."""
        steps = window.stop - window.start
        self._releases.count_releases(GRADIENTS, steps)
        noise = self._releases.draw_ahead(GRADIENTS, sums.step, steps, self._size)
        mixes = np.zeros(0) if self._mixing is None else self._mixing[window]
        further = (repeat(each) for each in (self._divisor, self._rates[window], mixes))
        heads, means = self._weights.numpy()[:, None], self.average.numpy()
        share = map if self._pool is None else self._pool.map
        if not all(share(sums.take_steps, batches, heads, noise, *further, means)):
            raise PrivacyError("sums of gradients are off their grid; nothing is released")

    def _take_step(self, sums: ExactSums, drawn: list[Index]) -> None:
        """Takes one step of all seeds, on the drawn batches or on all rows."""
        weights = self._weights
        self._releases.show_values("weights", weights)
        total = sums.sum_batches(weights, drawn) if self._samplers else sums.sum_all(weights)
        release = self._releases.release_gaussian(GRADIENTS, total).div_(self._divisor)
        self._optimiser.step(self._parameters, release, float(self._rates[self.taken]))
        if self._constant != 1:
            weights.copy_(self._parameters)
            weights[..., -1] *= self._constant
        if self._mixing is not None:
            self.average.lerp_(weights, float(self._mixing[self.taken]))
