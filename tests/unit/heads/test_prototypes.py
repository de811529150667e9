"""Prototypes: class sums by brute force, and empty classes under noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpprobe.heads.prototypes import Options
from dpprobe.heads.scoring import score_rows
from tests.support.second_order_data import classes_of, fit

pytestmark = pytest.mark.usefixtures("larger_blocks")


def test_without_noise_it_is_the_nearest_class_sum() -> None:
    features, labels = classes_of()
    fitted = fit(Options(normalize="none"), features, labels, 4)
    sums = torch.stack([features[labels == k].double().sum(0) for k in range(4)])
    expected = sums / sums.norm(dim=1, keepdim=True)
    np.testing.assert_allclose(fitted.weights[0][:, :-1], expected, atol=1e-6)
    assert (fitted.weights[..., -1] == 0).all()


def test_a_class_without_rows_is_hardly_ever_chosen() -> None:
    features, labels = classes_of(2000, 12, 4)
    kept = labels != 2
    options = Options(intercept=0.5)
    chosen = 0.0
    for seed in range(5):
        fitted = fit(options, features[kept], labels[kept], 4, noise=20.0, seeds=(seed,))
        scores = torch.from_numpy(score_rows(fitted, features[kept]))
        chosen += float((scores.argmax(2) == 2).float().mean()) / 5
    assert chosen < 0.1
