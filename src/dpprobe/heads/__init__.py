"""Heads: linear classifiers trained on stored features, privately or not.

One module a head, named in `dpprobe.config.HEADS`: its `Options` say what a study may write, its
`fit` trains. Nothing heavy is imported here.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpprobe.config import HEADS, MethodOptions
from dpprobe.errors import PrivacyError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from dpprobe.heads.training_set import Heads, TrainingSet
    from dpprobe.privacy.plan import Plan

# Called with (step, weights [seeds, classes, d + 1], information on the step). The weights are
# the trainer's own buffer: copy what outlives the call. What it returns, one value a seed under
# each name, joins the history.
Record = Callable[
    [int, "torch.Tensor", dict[str, Any]], Mapping[str, "Sequence[float] | np.ndarray"] | None
]


def fit(
    method: MethodOptions,
    data: TrainingSet,
    plan: Plan,
    seeds: Sequence[int],
    *,
    record: Record | None = None,
) -> Heads:
    """Trains a method's head once for each seed, all seeds together.

    Args:
      method: a head's options.
      data: the private training rows, on the device that is to train.
      plan: what was calibrated for this method on this many rows.
      seeds: one a head, from `dpprobe.privacy.randomness.cell_seed`; different from each other.
      record: called at the start, about twenty times on the way, and at the end. Without it no
        training loss is computed and the history is empty.

    Returns:
      The trained heads, weights [seeds, classes, d + 1].

    Raises:
      PrivacyError: when the plan is not one for this method on this data.
    """
    if plan.n != data.rows:
        raise PrivacyError(
            f"head {method.head}: the plan is for n = {plan.n} rows, the data has {data.rows}; "
            "calibrate for this dataset"
        )
    if method.private:
        _check_plan(method, plan)
    elif plan.private or plan.mechanisms:
        raise PrivacyError(
            f"head {method.head}: it is not private, yet its plan promises epsilon "
            f"{plan.epsilon:g} by {len(plan.mechanisms)} mechanisms; calibrate for this method"
        )
    if len(set(seeds)) < len(seeds) or not seeds:
        raise PrivacyError(f"head {method.head}: seeds must be given, and differ from each other")
    heads: Heads = importlib.import_module(HEADS[method.head]).fit(
        method, data, plan, seeds, record=record
    )
    return heads


def scores(heads: Heads, features: Any) -> np.ndarray:
    """The logits of every head on features [n, d]: [seeds, n, classes], float32."""
    from dpprobe.heads import training_set

    return training_set.scores(heads, features)


def _check_plan(method: MethodOptions, plan: Plan) -> None:
    """A plan must hold exactly what the method releases, its noise up to one common factor."""
    wanted = method.mechanisms(plan.n)
    factors = []
    for expected in wanted:
        planned = plan.mechanism(expected.name)
        for attribute in ("sensitivity", "sample_rate", "count"):
            value = getattr(planned, attribute)
            if value != getattr(expected, attribute):
                raise PrivacyError(
                    f"head {method.head}: the plan's {expected.name} has {attribute} {value!r}, "
                    f"the method {getattr(expected, attribute)!r}; calibrate for this method"
                )
        factors.append(planned.noise_multiplier / expected.noise_multiplier)
    same = all(math.isclose(factor, factors[0], rel_tol=1e-9) for factor in factors)
    if len(plan.mechanisms) != len(wanted) or not same:
        raise PrivacyError(
            f"head {method.head}: the plan is not this method's; calibrate for this method"
        )
