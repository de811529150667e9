"""Fits heads that balance classes, with public weights or priors, or released frequencies.

**Weights.** A row's clipped contribution is multiplied by the weight of the row's class, at most 1,
just as each of a patient's m rows is multiplied by 1 / m. Weights of at most 1 increase no unit's
contribution, so sensitivities and privacy costs do not change. Weights are public numbers, because
weights from private counts would be a release. Normalisations ignore class weights.

**Priors.** A head trained on classes with frequencies p(y) estimates p(y | x), which is
proportional to p(x | y) p(y). If log p is subtracted from the biases, the head predicts as if
classes were equally frequent (Menon et al. 2021, "Long-tail learning via logit adjustment").
Subtracting log p is post-processing of the released head. Priors are public numbers, at no cost, or
follow from noisy counts, which `class_priors: released` releases:

**class_counts** [K], the sum of the rows' one-hot labels, each times its row's weight (1 / m for a
row of a unit with m rows), plus Gaussian noise. A unit adds non-negative numbers with a sum of at
most 1, so an L2 norm of at most 1; a null row adds nothing. So the sensitivity is 1. `prior_share`
is the counts' share of the budget; the other releases divide the rest in unchanged proportions.
`released_priors` turns noisy counts into frequencies, which are published.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from dpprobe.errors import ConfigError
from dpprobe.heads.balance_options import CLASS_COUNTS, BalanceOptions, log_shifts
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import HEADS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from dpprobe.heads.fitted import Fitted, Record, Values
    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases

Priors: TypeAlias = "npt.NDArray[np.float32]"

# Counts are raised to at least PRIOR_FLOOR standard deviations of their noise. Otherwise noise
# could favour a class without limit. PRIOR_FLOOR was chosen on public features
# (bench/results/balanced.md).
PRIOR_FLOOR = 2.0


def released_priors(counts: Sequence[float], deviation: float) -> tuple[float, ...]:
    """Converts noisy class counts to frequencies that sum to 1.

    A count below `PRIOR_FLOOR` standard deviations of its noise, or below 1, is raised to the
    larger of these bounds.
    """
    least = max(1.0, PRIOR_FLOOR * deviation)
    floored = [max(count, least) for count in counts]
    total = math.fsum(floored)
    return tuple(count / total for count in floored)


def fit_balanced(
    method: MethodOptions, rows: Rows, releases: Releases, *, record: Record | None = None
) -> Fitted:
    """Fits a method's head on class-weighted rows, and subtracts log priors from the biases.

    With `auto`, fits the chosen head. Raises ConfigError if weights, priors or counts do not match
    the labels.
    """
    # late imports: planning imports this module without torch
    import numpy as np

    from dpprobe.heads.class_offsets import release_offsets

    method = method.trained_head
    module = importlib.import_module(HEADS[method.head])
    fitted: Fitted
    if not isinstance(method, BalanceOptions) or not method.is_balanced:
        fitted = module.fit(method, rows, releases, record=record)
        return fitted
    if fault := method.class_fault(rows.num_classes, multi_label=rows.multi_label):
        raise ConfigError(f"head {method.head}: {fault}")
    released = count_classes(rows, releases) if method.releases_priors else None
    each = method.bias_shifts() if released is None else [*map(log_shifts, released.tolist())]
    unweighted = rows
    shifts = np.asarray(each, dtype=np.float32)  # [seeds, classes], or [classes] for all seeds
    if method.class_weights:
        rows = rows.make_once(
            ("class weights", method.class_weights), lambda: weigh_classes(method, rows)
        )
    fitted = module.fit(method, rows, releases, record=_shift_record(record, shifts))
    if not shifts.size:
        return fitted
    weights = fitted.weights.copy()
    weights[..., -1] += shifts
    if method.offset_share is not None and released is not None:
        weights[..., -1] -= release_offsets(weights, released, unweighted, releases)
    return replace(fitted, weights=weights, priors=released)


def count_classes(rows: Rows, releases: Releases) -> Priors:
    """Releases `class_counts`; returns the priors, float32 [seeds, classes]."""
    # late imports: planning imports this module without torch
    import numpy as np
    import torch

    from dpprobe.privacy.grid import GridSum

    grid = releases.make_grid(1.0, rows.n)
    each = rows.lengths.isfinite().to(torch.float64)
    if rows.weights is not None:
        each *= rows.weights
    total = torch.zeros(rows.num_classes, dtype=torch.float64, device=rows.device)
    total.index_add_(0, rows.labels, grid.round_to_steps(each))
    sums = GridSum(total.expand(len(releases.seeds), -1), grid.step)
    counts = releases.release_gaussian(CLASS_COUNTS, sums).tolist()
    deviation = releases.noise_deviation(CLASS_COUNTS)
    return np.asarray([released_priors(seed, deviation) for seed in counts], dtype=np.float32)


def weigh_classes(method: BalanceOptions, rows: Rows) -> Rows:
    """Returns a view of the rows, with each row's weight multiplied by its class's weight."""
    import torch  # heavy: planning imports this module

    of_class = torch.tensor(method.class_weights, dtype=torch.float32, device=rows.device)
    of_row = of_class[rows.labels]
    if rows.weights is not None:
        of_row = of_row * rows.weights
    other = copy.copy(rows)
    other.weights = of_row
    other.drop_cache()
    return other


def _shift_record(record: Record | None, shifts: Priors) -> Record | None:
    import torch  # heavy: planning imports this module

    if record is None or not shifts.size:
        return record

    def record_shifted(step: int, weights: torch.Tensor) -> Values | None:
        moved = weights.clone()
        moved[..., -1] += torch.from_numpy(shifts).to(moved)
        return record(step, moved)

    return record_shifted
