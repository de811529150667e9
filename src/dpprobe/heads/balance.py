"""Fits a head with public weights of classes, or with their priors taken off its biases.

**Weights.** A row's part is clipped as ever and then multiplied with its class's weight, at most 1,
as the rows of a patient are with 1 / m: what a unit adds is no longer than before, so every
sensitivity and every price is as without them. Weights are public numbers of the study; from
private counts they would be a release. Normalisations are of all rows alike.

**Priors.** A head that is trained on classes of frequencies p estimates p(y | x) in proportion to
p(x | y) p(y); without log p in its biases it answers as if classes were equally frequent (Menon et
al. 2021, "Long-tail learning via logit adjustment"). That is done to the released head:
post-processing.
"""

from __future__ import annotations

import copy
import importlib
from dataclasses import replace

import numpy as np
import torch

from dpprobe.errors import ConfigError
from dpprobe.heads.balance_options import BalanceOptions
from dpprobe.heads.fitted import Fitted, Record, Values
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import HEADS
from dpprobe.heads.rows import Rows
from dpprobe.privacy.releases import Releases


def fit_balanced(
    method: MethodOptions, rows: Rows, releases: Releases, *, record: Record | None = None
) -> Fitted:
    """Calls the module of a method's head, on rows with their classes' weights.

    Raises:
      ConfigError: for numbers of another count than there are classes, and for weights of rows with
        several labels.
    """
    module = importlib.import_module(HEADS[method.head])
    fitted: Fitted
    if not isinstance(method, BalanceOptions) or method.counted_classes is None:
        fitted = module.fit(method, rows, releases, record=record)
        return fitted
    if fault := method.class_fault(rows.num_classes, multi_label=rows.multi_label):
        raise ConfigError(f"head {method.head}: {fault}")
    if method.class_weights:
        rows = rows.cached(("class weights", method.class_weights), lambda: weighted(method, rows))
    shifts = method.bias_shifts()
    fitted = module.fit(method, rows, releases, record=_shifted(record, shifts))
    if not shifts:
        return fitted
    weights = fitted.weights.copy()
    weights[..., -1] += np.asarray(shifts, dtype=np.float32)
    return replace(fitted, weights=weights)


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


def _shifted(record: Record | None, shifts: tuple[float, ...]) -> Record | None:
    if record is None or not shifts:
        return record

    def shifted(step: int, weights: torch.Tensor) -> Values | None:
        moved = weights.clone()
        moved[..., -1] += torch.tensor(shifts, dtype=moved.dtype, device=moved.device)
        return record(step, moved)

    return shifted
