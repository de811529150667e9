"""LAMB, against the paper's algorithm."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpprobe.heads.lamb import Lamb
from tests.support.gradients import SHAPE, gradients, start


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
