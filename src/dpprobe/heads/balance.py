"""Fits a head with public weights of classes, or with their priors taken off its biases.

**Weights.** A row's part is clipped as ever and then multiplied with its class's weight, at most 1,
as the rows of a patient are with 1 / m: what a unit adds is no longer than before, so every
sensitivity and every price is as without them. Weights are public numbers of the study; from
private counts they would be a release. Normalisations are of all rows alike.

**Priors.** A head that is trained on classes of frequencies p estimates p(y | x) in proportion to
p(x | y) p(y); without log p in its biases it answers as if classes were equally frequent (Menon et
al. 2021, "Long-tail learning via logit adjustment"). That is done to the released head:
post-processing. Priors are public numbers, or follow from the noisy counts that are released before
the head is trained; see `balance_options`.
"""

from __future__ import annotations

import copy
import importlib
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import ConfigError
from dpprobe.heads.balance_options import (
    CLASS_COUNTS,
    BalanceOptions,
    log_shifts,
    released_priors,
)
from dpprobe.heads.fitted import Fitted, Record, Values
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import HEADS
from dpprobe.heads.rows import Rows
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.releases import Releases

Priors = npt.NDArray[np.float32]


def fit_balanced(
    method: MethodOptions, rows: Rows, releases: Releases, *, record: Record | None = None
) -> Fitted:
    """Calls the module of a method's head, on rows with their classes' weights.

    Raises:
      ConfigError: for numbers of another count than there are classes, and for weights, or counts,
        of rows with several labels.
    """
    module = importlib.import_module(HEADS[method.head])
    fitted: Fitted
    if not isinstance(method, BalanceOptions) or not method.balances:
        fitted = module.fit(method, rows, releases, record=record)
        return fitted
    if fault := method.class_fault(rows.num_classes, multi_label=rows.multi_label):
        raise ConfigError(f"head {method.head}: {fault}")
    released = count_classes(rows, releases) if method.releases_priors else None
    shifts = _shifts(method, released)
    if method.class_weights:
        rows = rows.cached(("class weights", method.class_weights), lambda: weighted(method, rows))
    fitted = module.fit(method, rows, releases, record=_shifted(record, shifts))
    if not shifts.size:
        return fitted
    weights = fitted.weights.copy()
    weights[..., -1] += shifts
    return replace(fitted, weights=weights, priors=released)


def count_classes(rows: Rows, releases: Releases) -> Priors:
    """Releases how many rows each class has; returns the priors, float32 [seeds, classes].

    A row adds its weight to the count of its class, and one that must not contribute adds nothing:
    sensitivity 1.
    """
    grid = releases.grid(1.0, rows.n)
    each = rows.lengths.isfinite().to(torch.float64)
    if rows.weights is not None:
        each *= rows.weights
    total = torch.zeros(rows.num_classes, dtype=torch.float64, device=rows.device)
    total.index_add_(0, rows.labels, grid.units(each))
    sums = GridSum(total.expand(len(releases.seeds), -1), grid.step)
    counts = releases.gaussian(CLASS_COUNTS, sums).tolist()
    deviation = releases.deviation(CLASS_COUNTS)
    return np.asarray([released_priors(seed, deviation) for seed in counts], dtype=np.float32)


def _shifts(method: BalanceOptions, released: Priors | None) -> Priors:
    """Returns what is added to the biases, [seeds, classes], or [classes] for all seeds."""
    shifts = method.bias_shifts() if released is None else list(map(log_shifts, released.tolist()))
    return np.asarray(shifts, dtype=np.float32)


def weighted(method: BalanceOptions, rows: Rows) -> Rows:
    """Returns the rows, not copied, with their classes' weights in their units' weights."""
    of_class = torch.tensor(method.class_weights, dtype=torch.float32, device=rows.device)
    of_row = of_class[rows.labels]
    if rows.weights is not None:
        of_row = of_row * rows.weights
    other = copy.copy(rows)
    other.weights = of_row
    other.forget()
    return other


def _shifted(record: Record | None, shifts: Priors) -> Record | None:
    if record is None or not shifts.size:
        return record

    def shifted(step: int, weights: torch.Tensor) -> Values | None:
        moved = weights.clone()
        moved[..., -1] += torch.from_numpy(shifts).to(moved)
        return record(step, moved)

    return shifted
