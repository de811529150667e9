"""The closed form against Opacus: equal sums without noise, equal law with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.sgd import Options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.randomness import cell_seed
from tests.support.linear_heads import plan_for
from tests.support.opacus_engine import through_opacus
from tests.support.plain_heads import Adam, Momentum

SEEDS = [cell_seed("opacus", index) for index in range(2)]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def training_set(
    rows: int, dimension: int, classes: int, *, multi_label: bool = False
) -> TrainingSet:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(rows, dimension, generator=generator)
    if multi_label:
        several = torch.randint(0, 2, (rows, classes), generator=generator).to(torch.uint8)
        return TrainingSet(features, several, classes)
    return TrainingSet(features, torch.randint(0, classes, (rows,), generator=generator), classes)


def fit(
    data: TrainingSet,
    seeds: list[int],
    noise: float,
    *,
    head: Any = Options,
    opacus: bool = False,
    **changes: Any,
) -> Heads:
    options = head(**changes)
    plan = plan_for(options, data.rows, noise, 1.0 if noise else math.inf)
    with through_opacus() if opacus else nullcontext():
        return fit_heads(options, data, plan, seeds)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid", "several"])
@pytest.mark.parametrize("batch_size", [100, "full"])
def test_clipped_sums_are_opacus_s(batch_size: Any, loss: str) -> None:
    """One step from zero with next to no noise: the step is the clipped sum, divided."""
    data = training_set(400, 256, 10, multi_label=loss == "several")
    settings: dict[str, Any] = {
        "batch_size": batch_size,
        "steps": 1,
        "init": "zero",
        "max_grad_norm": 1.2,
        "loss": "softmax" if loss == "softmax" else "sigmoid",
    }
    fast = fit(data, SEEDS[:1], 1e-9, **settings).weights.astype(np.float64)
    slow = fit(data, SEEDS[:1], 1e-9, opacus=True, **settings).weights.astype(np.float64)
    assert np.linalg.norm(fast - slow) < 5e-5 * np.linalg.norm(slow)
    free = fit(data, SEEDS[:1], 0.0, **settings).weights
    assert np.linalg.norm(free) > 1.5 * np.linalg.norm(fast)  # so that clipping was at work


@pytest.mark.parametrize("head", [Options, Momentum, Adam])
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"schedule": "warmup_cosine", "warmup": 0.1, "average": "ema", "loss": "sigmoid"},
        {"schedule": "warmup_linear", "average": "mean", "normalize": "l2"},
    ],
)
def test_without_privacy_both_train_alike_over_empty_batches(head: Any, values: Any) -> None:
    data = training_set(60, 5, 3)
    common = {"head": head, "batch_size": 2, "steps": 40, "learning_rate": 0.05, **values}
    fast = fit(data, SEEDS, 0.0, **common)
    slow = fit(data, SEEDS, 0.0, opacus=True, **common)
    np.testing.assert_allclose(fast.weights, slow.weights, rtol=2e-4, atol=1e-4)
    assert fast.steps == slow.steps == 40


def test_noisy_heads_have_the_same_law() -> None:
    data = training_set(40, 2, 2)
    seeds = [cell_seed("law", index) for index in range(200)]
    settings: dict[str, Any] = {
        "batch_size": 4,
        "steps": 6,
        "learning_rate": 0.5,
        "max_grad_norm": 0.7,
    }
    fast = fit(data, seeds, 0.9, **settings).weights.astype(np.float64).reshape(200, -1)
    slow = fit(data, seeds, 0.9, opacus=True, **settings)
    other = slow.weights.astype(np.float64).reshape(200, -1)
    # Same starts and same batches: what differs is the noise alone.
    spread = np.maximum(fast.std(0), other.std(0))
    assert np.abs(fast.mean(0) - other.mean(0)).max() < 4.5 * spread.max() * (2 / 200) ** 0.5
    ratio = fast.std(0) / other.std(0)
    assert np.abs(np.log(ratio)).max() < 4.5 * (1 / 200) ** 0.5
    np.testing.assert_allclose(np.corrcoef(fast.T), np.corrcoef(other.T), atol=0.4)
    assert not np.allclose(fast, other, atol=1e-3)
