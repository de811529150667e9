"""Learning rates over the steps, and the weights of averages of iterates.

Schedules depend only on public quantities and are applied to noisy sums, at no privacy cost.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpprobe.heads.gradient_options import GRADIENTS, GradientOptions, step_noise
from dpprobe.heads.rows import Rows
from dpprobe.privacy.releases import Releases

DEFAULT_EMA_DECAY = 0.99


def rate_of(options: GradientOptions, rows: Rows, releases: Releases) -> float:
    """Returns the learning rate of a fit, computed only from public quantities."""
    if options.learning_rate is not None:
        return options.learning_rate
    return options.choose_rate(
        releases.plan.find_mechanism(GRADIENTS).count,
        noise=step_noise(releases),
        classes=rows.num_classes,
        dimension=rows.dimension,
    )


def learning_rates(
    options: GradientOptions, steps: int, rate: float | None = None
) -> npt.NDArray[np.float64]:
    """Returns the learning rate per step, [steps]; the highest is `rate` (or `learning_rate`).

    Over the first w = round(warmup * steps) steps the rate rises: rate * t / w in step t. Over the
    remaining steps the rate falls: rate * (1 + cos(pi p)) / 2 or rate * (1 - p), with p from 0 at
    the first of these steps to 1 just after the last.

    Example:
      >>> from dpprobe.heads.registry import method_options
      >>> options = method_options({"head": "sgd", "schedule": "warmup_linear", "warmup": 0.4})
      >>> learning_rates(options, 5, rate=1.0).round(2).tolist()
      [0.5, 1.0, 1.0, 0.67, 0.33]
    """
    highest = options.learning_rate if rate is None else rate
    assert highest is not None, "a rate by rule is resolved by `rate_of`"
    if options.schedule == "constant":
        return np.full(steps, highest)
    warm = min(round(options.warmup * steps), steps - 1)
    rising = np.arange(1, warm + 1) / max(warm, 1)
    progress = np.arange(steps - warm) / (steps - warm)
    if options.schedule == "warmup_cosine":
        falling = (1 + np.cos(np.pi * progress)) / 2
    else:
        falling = 1 - progress
    return highest * np.concatenate([rising, falling])


def mixing_rates(options: GradientOptions, steps: int) -> npt.NDArray[np.float64] | None:
    """Returns the fraction by which the average moves to each step's weights; None for `last`.

    The mean of w_1 ... w_t moves 1 / t of the way to w_t. The moving average e_t = beta e_(t-1) +
    (1 - beta) w_t from e_0 = 0, debiased by 1 / (1 - beta^t), moves (1 - beta) / (1 - beta^t) of
    the way to w_t. Averages of iterates exclude the initial weights.

    Example:
      >>> from dpprobe.heads.registry import method_options
      >>> mixing_rates(method_options({"head": "sgd", "average": "mean"}), 4).round(2).tolist()
      [1.0, 0.5, 0.33, 0.25]
    """
    taken = np.arange(1, steps + 1, dtype=np.float64)
    if options.average == "mean":
        return 1 / taken
    if options.average == "ema":
        decay = DEFAULT_EMA_DECAY if options.ema_decay is None else options.ema_decay
        return (1 - decay) / (1 - decay**taken)
    return None
