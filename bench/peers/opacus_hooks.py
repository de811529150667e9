"""Opacus with per-example gradients by hooks, as `PrivacyEngine.make_private` sets it up.

The module composes the engine's parts itself, because the engine's loader would change the sampling
rate to 1 / len(loader). Batches come from Opacus's Poisson sampler. Rows are gathered at once
instead of one by one in Python, which favours Opacus. Pieces of a batch are accumulated as in
Opacus's `BatchMemoryManager`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib import metadata, util
from typing import Any

import numpy.typing as npt

from peers import Run, Task

# Opacus's sampler needs a number of steps: more than any measurement takes.
_MOST_STEPS = 10**9


def version() -> str | None:
    return metadata.version("opacus") if util.find_spec("opacus") else None


def trainer(task: Task, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Run:
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    linear = torch.nn.Linear(features.shape[1], task.classes, device=task.device)
    model = GradSampleModule(linear, loss_reduction="mean")
    optimizer = private(DPOptimizer, task, model)
    return looped(task, model, optimizer, torch.nn.CrossEntropyLoss(), features, labels)


def private(kind: Any, task: Task, model: Any) -> Any:
    """Returns an optimizer of Opacus, with an accountant that records every step."""
    import torch
    from opacus.accountants import PRVAccountant

    optimizer = kind(
        torch.optim.SGD(model.parameters(), lr=task.learning_rate),
        noise_multiplier=task.noise_multiplier,
        max_grad_norm=task.clip,
        expected_batch_size=task.batch,
        loss_reduction="mean",
    )
    hook = PRVAccountant().get_optimizer_hook_fn(sample_rate=task.rate)
    optimizer.attach_step_hook(hook)
    return optimizer


def looped(
    task: Task,
    model: Any,
    optimizer: Any,
    criterion: Any,
    features: npt.NDArray[Any],
    labels: npt.NDArray[Any],
) -> Run:
    import torch

    rows = torch.from_numpy(features).to(task.device)
    targets = torch.from_numpy(labels).to(task.device)
    batches = _batches(task)
    # Opacus's hooks warn of inputs without gradients, such as features.
    warnings.filterwarnings("ignore", "Full backward hook", UserWarning)

    def run(steps: int) -> None:
        for _ in range(steps):
            pieces = next(batches)
            for number, piece in enumerate(pieces):
                optimizer.signal_skip_step(do_skip=number < len(pieces) - 1)
                optimizer.zero_grad(set_to_none=True)
                criterion(model(rows[piece]), targets[piece]).backward()
                optimizer.step()

    return run


def _batches(task: Task) -> Iterator[list[Any]]:
    """Yields each step's rows in pieces: slices of all rows, or the draws of Opacus's sampler."""
    import torch
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    if task.full:
        starts = range(0, task.rows, task.at_once)
        slices = [slice(start, start + task.at_once) for start in starts]
        while True:
            yield slices
    sampler = UniformWithReplacementSampler(
        num_samples=task.rows, sample_rate=task.rate, steps=_MOST_STEPS
    )
    for drawn in sampler:
        yield list(torch.tensor(drawn, device=task.device).split(task.at_once))
