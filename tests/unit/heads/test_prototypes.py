"""Prototypes: class sums against brute force, and empty classes under noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpprobe.heads.fit import fit_heads
from dpprobe.heads.prototypes import Options
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from tests.support.linear_heads import plan_for
from tests.support.observers import Watching
from tests.support.second_order_data import classes_of, fit

pytestmark = pytest.mark.usefixtures("larger_blocks")


def test_without_noise_it_is_the_nearest_class_sum() -> None:
    features, labels = classes_of()
    fitted = fit(Options(normalize="none"), features, labels, 4)
    sums = torch.stack([features[labels == k].double().sum(0) for k in range(4)])
    expected = sums / sums.norm(dim=1, keepdim=True)
    np.testing.assert_allclose(fitted.weights[0][:, :-1], expected, atol=1e-6)
    assert (fitted.weights[..., -1] == 0).all()


def test_directions_are_as_long_as_their_rows_are_certain() -> None:
    """A class's direction is shortened if its noisy count is below two standard deviations."""
    features, labels = classes_of(2000, 12, 4)
    kept = (labels != 2) & ((labels != 1) | (torch.arange(2000) % 16 == 0))
    options, watching = Options(intercept=0.5), Watching(through=True)
    data = TrainingSet(features[kept].clone(), labels[kept], 4)
    plan = plan_for(options, data.n, 20.0)
    fitted = fit_heads(options, data, plan, [1], observer=watching)
    (output,) = watching.outputs["class_sums"]
    noisy = output.double().numpy()
    certain = (noisy[:, -1] / (2 * plan.mechanisms[-1].noise_scale)).clip(0, 1)
    assert certain.max() == 1
    assert 0 < sorted(certain)[1] < 1
    expected = noisy[:, :-1] / np.linalg.norm(noisy[:, :-1], axis=1)[:, None] * certain[:, None]
    np.testing.assert_allclose(fitted.weights[0][:, :-1], expected, rtol=1e-5, atol=1e-7)


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
