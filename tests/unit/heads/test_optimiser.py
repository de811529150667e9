"""Optimisers of privatised gradients equal PyTorch's and those of papers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from dpprobe.heads.adam import Adam
from dpprobe.heads.lamb import Lamb
from dpprobe.heads.momentum import Momentum
from dpprobe.heads.optimiser import Optimiser, Sgd

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


def test_a_zero_gradient_changes_no_weights() -> None:
    for optimiser in (Adam(beta1=0.9, beta2=0.9, eps=1e-8), Lamb(beta1=0.9, beta2=0.9, eps=1e-8)):
        weights = start()
        optimiser.step(weights, torch.zeros(SHAPE, dtype=torch.float64), 0.1)
        assert torch.equal(weights, start())


@pytest.mark.parametrize("make", [Sgd, MOMENTUM, ADAM, LAMB])
@pytest.mark.parametrize("taken", [0, 1, 5])
def test_an_optimiser_continues_from_a_state(make: Callable[[], Optimiser], taken: int) -> None:
    """The weights are bit-identical, even if another step was taken before restoring."""
    weights, first = start(), make()
    for gradient in gradients()[:taken]:
        first.step(weights, gradient.clone(), 0.1)
    state, other, again = first.copy_state(), weights.clone(), make()
    again.step(start(), gradients()[-1], 0.3)  # a step that restoring must undo
    for gradient in gradients()[taken:]:
        first.step(weights, gradient.clone(), 0.1)
    again.restore_state(state)
    for gradient in gradients()[taken:]:
        again.step(other, gradient.clone(), 0.1)
    assert torch.equal(weights, other)
