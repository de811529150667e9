"""Steps on privatised gradients, and averages of iterates, against PyTorch's and papers'."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.heads import sgd
from dpprobe.heads.adam import Adam
from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.lamb import Lamb
from dpprobe.heads.momentum import Momentum
from dpprobe.heads.optimiser import Optimiser, Sgd
from dpprobe.heads.schedules import mixing_rates

SHAPE = (3, 4, 6)


def gradients(*shape: int, seed: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (12, *SHAPE)), generator=generator, dtype=torch.float64)


def start() -> torch.Tensor:
    return gradients(*SHAPE, seed=1)


MOMENTUM, ADAM = partial(Momentum, beta=0.8), partial(Adam, beta1=0.8, beta2=0.95, eps=1e-3)
LAMB = partial(Lamb, beta1=0.8, beta2=0.95, eps=1e-3)


@pytest.mark.parametrize(
    ("make", "reference", "options"),
    [
        (Sgd, torch.optim.SGD, {}),
        (MOMENTUM, torch.optim.SGD, {"momentum": 0.8}),
        (ADAM, torch.optim.Adam, {"betas": (0.8, 0.95), "eps": 1e-3}),
    ],
)
def test_steps_are_pytorch_s(make: Any, reference: Any, options: dict[str, Any]) -> None:
    weights, wanted = start(), torch.nn.Parameter(start())
    optimiser, theirs = make(), reference([wanted], lr=1, **options)
    for step, gradient in enumerate(gradients()):
        rate = 0.1 / (step + 1)
        optimiser.step(weights, gradient.clone(), rate)
        wanted.grad = gradient.clone()
        theirs.param_groups[0]["lr"] = rate
        theirs.step()
        torch.testing.assert_close(weights, wanted.detach(), rtol=1e-12, atol=1e-12)


def test_a_gradient_of_zero_moves_nothing() -> None:
    for optimiser in (Adam(beta1=0.9, beta2=0.9, eps=1e-8), Lamb(beta1=0.9, beta2=0.9, eps=1e-8)):
        weights = start()
        optimiser.step(weights, torch.zeros(SHAPE, dtype=torch.float64), 0.1)
        assert torch.equal(weights, start())


@pytest.mark.parametrize("make", [Sgd, MOMENTUM, ADAM, LAMB])
@pytest.mark.parametrize("taken", [0, 1, 5])
def test_an_optimiser_goes_on_from_a_state(make: Callable[[], Optimiser], taken: int) -> None:
    """Bit for bit, however the first one goes on."""
    weights, first = start(), make()
    for gradient in gradients()[:taken]:
        first.step(weights, gradient.clone(), 0.1)
    state, other, again = first.copy_state(), weights.clone(), make()
    again.step(start(), gradients()[-1], 0.3)  # forgets what it did before
    for gradient in gradients()[taken:]:
        first.step(weights, gradient.clone(), 0.1)
    again.restore_state(state)
    for gradient in gradients()[taken:]:
        again.step(other, gradient.clone(), 0.1)
    assert torch.equal(weights, other)


def lamb_of_the_paper(weights: np.ndarray, steps: np.ndarray, rate: float) -> np.ndarray:
    """You et al. 2019, algorithm 2, one layer at a time; weight decay 0, phi the identity."""
    beta1, beta2, eps = 0.9, 0.99, 1e-6
    m, v = np.zeros_like(weights), np.zeros_like(weights)
    for t, gradient in enumerate(steps, start=1):
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient**2
        direction = (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
        length = np.linalg.norm(weights)
        ratio = length / np.linalg.norm(direction) if length > 0 else 1.0
        weights = weights - rate * ratio * direction
    return weights


@pytest.mark.parametrize("zero", [False, True])
def test_lamb_is_the_paper_s(zero: bool) -> None:
    optimiser = Lamb(beta1=0.9, beta2=0.99, eps=1e-6)
    weights = torch.zeros(SHAPE, dtype=torch.float64) if zero else start()
    first = weights.clone()
    for gradient in gradients():
        optimiser.step(weights, gradient.clone(), 0.07)
    steps = gradients().numpy()
    for seed in range(3):
        for layer in (slice(None, -1), slice(-1, None)):
            wanted = lamb_of_the_paper(
                first[seed, :, layer].numpy(), steps[:, seed, :, layer], 0.07
            )
            np.testing.assert_allclose(weights[seed, :, layer].numpy(), wanted, rtol=1e-11)


def averaged(options: GradientOptions, values: np.ndarray) -> list[float]:
    mixing = mixing_rates(options, len(values))
    assert mixing is not None
    average, seen = 123.0, []
    for value, rate in zip(values, mixing, strict=True):
        average += rate * (value - average)
        seen.append(average)
    return seen


def test_averages_are_of_the_weights_of_all_steps() -> None:
    values = np.random.default_rng(1).normal(size=50)
    assert mixing_rates(sgd.Options(), 50) is None
    mean = averaged(sgd.Options(average="mean"), values)
    np.testing.assert_allclose(mean, np.cumsum(values) / np.arange(1, 51))
    for decay in (0.5, 0.9, 0.9999):
        raw, wanted = 0.0, []
        for taken, value in enumerate(values, start=1):
            raw = decay * raw + (1 - decay) * value
            wanted.append(raw / (1 - decay**taken))
        actual = averaged(sgd.Options(average="ema", ema_decay=decay), values)
        # One average is 2e-6, the small difference of larger numbers.
        np.testing.assert_allclose(actual, wanted, rtol=1e-9, atol=1e-13)
    # Debiased, a constant is its own average from the first step on.
    np.testing.assert_allclose(averaged(sgd.Options(average="ema"), np.full(5, 3.0)), 3.0)
