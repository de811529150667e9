"""Gradients of a class's rows, against PyTorch's of each single row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpprobe.analyses.imbalance.clipped_gradients import class_gradients
from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalisation import L2, NoNormalisation
from dpprobe.heads.rows import Transform

GENERATOR = np.random.default_rng(1)


def heads(seeds: int, classes: int, dimension: int, *, unit: bool = False) -> Heads:
    weights = GENERATOR.normal(size=(seeds, classes, dimension + 1)).astype(np.float32)
    transform = Transform(L2() if unit else NoNormalisation())
    return Heads(
        weights=weights, seeds=tuple(range(seeds)), transforms=(transform,) * seeds, steps=0
    )


def single_gradients(
    weights: np.ndarray, rows: np.ndarray, label: int, *, sigmoid: bool
) -> np.ndarray:
    """Each row's gradient by automatic differentiation, [m, classes, d + 1]."""
    gradients = []
    for row in rows:
        parameters = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
        logits = parameters[:, :-1] @ torch.tensor(row, dtype=torch.float64) + parameters[:, -1]
        if sigmoid:
            target = torch.zeros_like(logits)
            target[label] = 1
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, target, reduction="sum"
            )
        else:
            loss = -torch.log_softmax(logits, 0)[label]
        loss.backward()
        assert parameters.grad is not None
        gradients.append(parameters.grad.numpy())
    return np.stack(gradients)


@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_numbers_are_those_of_single_rows_gradients(*, sigmoid: bool, unit: bool) -> None:
    trained, rows = heads(2, 3, 5, unit=unit), GENERATOR.normal(size=(40, 5)).astype(np.float32)
    result = class_gradients(trained, rows, 1, clip=1.5, sigmoid=sigmoid)
    normal = rows / np.linalg.norm(rows, axis=1, keepdims=True) if unit else rows
    for seed in range(2):
        each = single_gradients(trained.weights[seed], normal, 1, sigmoid=sigmoid).reshape(40, -1)
        norms = np.linalg.norm(each, axis=1)
        after = (each * np.minimum(1, 1.5 / norms)[:, None]).sum(axis=0)
        raw = each.sum(axis=0)
        lengths = np.linalg.norm(raw), np.linalg.norm(after)
        assert result.clipped[seed] == pytest.approx((norms > 1.5).mean())
        assert result.norm[seed] == pytest.approx(norms.mean(), rel=1e-5)
        assert result.cosine[seed] == pytest.approx(raw @ after / np.prod(lengths), rel=1e-5)
        assert result.kept[seed] == pytest.approx(lengths[1] / lengths[0], rel=1e-5)


def test_a_wide_bound_clips_nothing() -> None:
    result = class_gradients(heads(1, 3, 4), np.ones((3, 4), np.float32), 0, clip=1e9)
    assert result.clipped[0] == 0
    assert result.cosine[0] == pytest.approx(1)
    assert result.kept[0] == pytest.approx(1)


def test_rows_without_a_gradient_have_no_direction() -> None:
    """A head that is certain: the sum has length 0, and its cosine is no number."""
    trained = heads(1, 2, 1)
    trained.weights[:] = 0
    trained.weights[0, 0, -1] = 1000.0
    result = class_gradients(trained, np.ones((4, 1), np.float32), 0, clip=1.0)
    assert result.norm[0] == 0
    assert result.clipped[0] == 0
    assert np.isnan(result.cosine[0])
