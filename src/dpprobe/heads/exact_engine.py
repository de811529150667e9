"""`engine: exact`: noisy gradient steps with exact sums and exact noise, under an unchanged plan.

**Released** in each step: the sum over the batch's rows of w v u^T, plus noise. A row x has weight
w (1, or less in a unit of several rows) and residual r, and the head has the constant b (1, or
`intercept`). Then u = [x, b] / |[x, b]|, and v = r |[x, b]|, scaled down to norm C =
`max_grad_norm` if longer: v u^T is the row's clipped gradient. The vectors u and w v are rounded
towards zero to whole numbers of two public steps (`privacy.grid`).

**Sensitivity** C. Rounding towards zero lengthens no vector, so |w v| |u| <= w C, and the weights
of a unit sum to at most 1. The residual r depends only on the head and on x: float64 adds the
products of u and of the rounded head exactly, and all else is computed row by row. The summed
integers are at most 2^52 in total (`privacy.grid`), so the sum is exact in any order. Replacing a
row by a null row changes the sum by exactly the row's contribution: by at most C, to the last bit.
`device_sums` proves that a GPU computes equal sums.

Noise (`Releases.release_gaussian`) and Poisson samples of units (`ExactPoissonSampler`) are exact,
from the words of a keystream. Everything else in a fit is post-processing of the releases.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import repeat

import numpy as np
import torch

from dpprobe import devices
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.heads.clipping import drawn_rows
from dpprobe.heads.device_sums import DeviceSums
from dpprobe.heads.exact_sums import ExactSums
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

# The most steps of plain SGD per compiled call, and bytes of their noise, which fit the cache.
_STEPS, _NOISE_BYTES = 8, 2**19


def train(
    options: GradientOptions,
    rows: Rows,
    releases: Releases,
    optimiser: Optimiser,
    *,
    record: Record | None = None,
) -> Fitted:
    """Trains all seeds' heads in parallel, by exact sums and noise; see `train_heads`.

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
    rates = learning_rates(options, mechanism.count, rate_of(options, rows, releases))
    mixing = mixing_rates(options, mechanism.count)
    sample_rate = mechanism.sample_rate
    history = History(rows, sample_rate, record, options.link)
    weights = initial_weights(options, rows, releases.seeds, releases.entropy).double()
    # Steps change `parameters`; the biases are the last parameters times the constant.
    constant = options.constant
    parameters = weights if constant == 1 else weights.clone()
    parameters[..., -1] /= constant
    average = weights if mixing is None else weights.clone()
    divisor, taken, size = sample_rate * rows.n, 0, weights[0].numel()
    with ExitStack() as stack, torch.inference_mode():
        threads = torch.get_num_threads()
        pool = stack.enter_context(ThreadPoolExecutor(threads)) if threads > 1 else None
        clip, sigmoid = mechanism.sensitivity, options.loss == "sigmoid"
        device = torch.device(rows.data.exact_device)
        make_sums: Callable[..., ExactSums] = ExactSums
        if not devices.has_kernels(device):
            make_sums = partial(DeviceSums, device=device)
        crops = [
            make_sums(each, clip, sigmoid=sigmoid, pool=pool, constant=constant)
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
        # Compiled code takes several small steps per call; Python's calls would take longer than
        # steps.
        compiled = type(optimiser) is Sgd and constant == 1 and releases.observer is None
        compiled = (
            compiled
            and bool(samplers)
            and all(type(crop) is ExactSums and crop.whole for crop in crops)
        )
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
