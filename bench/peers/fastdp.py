"""fastDP (awslabs/fast-differential-privacy): book-keeping, Abadi's clipping.

It brings no sampler: Poisson batches come from NumPy, by distances between hits, which costs next
to nothing. `batch_size` is the divisor of the noisy sum, whatever a batch's own size.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import util
from typing import Any

import numpy as np
import numpy.typing as npt

from peers import Run, Task


def version() -> str | None:
    if util.find_spec("fastDP") is None:
        return None
    import fastDP

    return str(fastDP.__version__)


def trainer(task: Task, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Run:
    import torch
    from fastDP import PrivacyEngine

    model = torch.nn.Sequential(
        torch.nn.Linear(features.shape[1], task.classes, device=task.device)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=task.learning_rate)
    engine = PrivacyEngine(
        model,
        batch_size=task.batch,
        sample_size=task.rows,
        epochs=1,
        max_grad_norm=task.clip,
        noise_multiplier=task.noise_multiplier,
        clipping_fn="Abadi",
        clipping_mode="MixOpt",
        loss_reduction="mean",
    )
    engine.attach(optimizer)
    rows = torch.from_numpy(features).to(task.device)
    targets = torch.from_numpy(labels).to(task.device)
    batches = _batches(task)

    def run(steps: int) -> None:
        for _ in range(steps):
            for piece in next(batches):
                loss = torch.nn.functional.cross_entropy(model(rows[piece]), targets[piece])
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def _batches(task: Task) -> Iterator[list[Any]]:
    import torch

    if task.full:
        starts = range(0, task.rows, task.at_once)
        slices = [slice(start, start + task.at_once) for start in starts]
        while True:
            yield slices
    generator = np.random.default_rng(0)
    draws = int(task.batch + 10 * task.batch**0.5) + 10
    while True:
        # Past the last row with all but certainty: ten standard deviations more than are expected.
        hits = np.cumsum(generator.geometric(task.rate, size=draws)) - 1
        drawn = torch.from_numpy(hits[hits < task.rows]).to(task.device)
        yield list(drawn.split(task.at_once))
