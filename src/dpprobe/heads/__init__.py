"""Heads: linear classifiers trained on stored features, privately or not.

One module a head, named in `dpprobe.heads.registry.HEADS`: its `Options` say what a study may
write, its `fit` trains. Nothing heavy is imported here.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpprobe.errors import PrivacyError
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import HEADS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from dpprobe.heads.rows import Rows, Transform
    from dpprobe.heads.training_set import TrainingSet
    from dpprobe.privacy.plan import Plan

# Values of one thing, one a seed, by name.
Values = Mapping[str, "Sequence[float] | np.ndarray"]
# What a head calls: (step, weights [seeds, classes, d + 1]). The weights are the trainer's own
# buffer: copy what outlives the call. What it returns, one value a seed, joins the history.
Record = Callable[[int, "torch.Tensor"], "Values | None"]
# What a caller of `fit` gives: the same, with what is done to rows before the product.
Observe = Callable[[int, "torch.Tensor", "Transform"], "Values | None"]


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What a head's `fit` returns.

    Attributes:
      weights: float32 [seeds, classes, d + 1], on normalised rows; the last column is the bias.
      steps: noisy steps taken (0 for a method without).
      history: one record a seed and recorded step: seed_index, step, epoch, train_loss, ...
        Training losses are not private.
      chosen: for each seed what a search chose, JSON-compatible; empty where none was made.
    """

    weights: npt.NDArray[np.float32]
    steps: int
    history: list[dict[str, Any]] = field(default_factory=list)
    chosen: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Linear classifiers, one a seed.

    Attributes:
      weights: float32 [seeds, classes, d + 1], on normalised rows; the last column is the bias.
      seeds: what each head was trained with.
      transforms: for each seed, what is done to a feature row before the product.
      steps, history, chosen: as in `Fitted`.
    """

    weights: npt.NDArray[np.float32]
    seeds: tuple[int, ...]
    transforms: tuple[Transform, ...]
    steps: int
    history: list[dict[str, Any]] = field(default_factory=list)
    chosen: tuple[Mapping[str, Any], ...] = ()

    def arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """What the transforms hold beside the weights, [seeds, ...] each, by name."""
        import numpy as np

        first = self.transforms[0].arrays
        return {
            name: np.stack([own.arrays[name].cpu().numpy() for own in self.transforms])
            for name in first
        }


def fit(
    method: MethodOptions,
    data: TrainingSet,
    plan: Plan,
    seeds: Sequence[int],
    *,
    record: Observe | None = None,
) -> Heads:
    """Trains a method's head once for each seed, all seeds together where that pays.

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
      PrivacyError: when the plan is not one for this method on this data, or when the noisy
        releases taken are not those priced.
    """
    _check(method, data, plan, seeds)
    import numpy as np

    from dpprobe.heads.rows import normalise
    from dpprobe.privacy.releases import Releases

    module = importlib.import_module(HEADS[method.head])
    # A priced normalisation is released anew for each seed, whose rows are then its own.
    groups = [(seed,) for seed in seeds] if method.normalize.priced else [tuple(seeds)]
    fits: list[Fitted] = []
    transforms: list[Transform] = []
    for group in groups:
        releases = Releases(plan, group, data.device)
        rows = normalise(data, method.normalize, releases)
        with _true_products():
            fits.append(module.fit(method, rows, releases, record=_recorder(record, rows)))
        releases.check()
        transforms += [rows.transform] * len(group)
    history = [
        row | {"seed_index": row["seed_index"] + offset}
        for offset, part in zip(range(0, len(seeds), len(groups[0])), fits, strict=True)
        for row in part.history
    ]
    return Heads(
        weights=np.concatenate([part.weights for part in fits]),
        seeds=tuple(seeds),
        transforms=tuple(transforms),
        steps=fits[0].steps,
        history=history,
        chosen=tuple(own for part in fits for own in part.chosen),
    )


@contextmanager
def _true_products() -> Iterator[None]:
    """Full float32 products, whatever a caller has set: margins of clipping are made for those."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _recorder(record: Observe | None, rows: Rows) -> Record | None:
    if record is None:
        return None
    return lambda step, weights: record(step, weights, rows.transform)


def scores(heads: Heads, features: Any) -> np.ndarray:
    """The scores of every head on features [n, d]: [seeds, n, classes], float32."""
    from dpprobe.heads import scoring

    return scoring.scores(heads, features)


def _check(method: MethodOptions, data: TrainingSet, plan: Plan, seeds: Sequence[int]) -> None:
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
    if data.multi_label and not method.multi_label:
        raise PrivacyError(
            f"head {method.head}: it takes one label a row, and rows here have several"
        )


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
    searched = plan.selection == method.selection(plan.n)
    if len(plan.mechanisms) != len(wanted) or not same or not searched:
        raise PrivacyError(
            f"head {method.head}: the plan is not this method's; calibrate for this method"
        )
