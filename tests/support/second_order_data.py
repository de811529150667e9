"""Small data, plans and fits, for tests of the second-order heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.rows import Rows
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.training.public_file_check import SYNTHETIC_ROWS
from tests.support.linear_heads import plan_for

SEEDS = (11, 12)


def classes_of(
    rows: int = 400,
    dimension: int = 12,
    classes: int = 4,
    *,
    noise: float = 0.7,
    seed: int = 0,
    several: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns features with a large common mean, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % classes
    centres = torch.randn(classes, dimension, generator=generator)
    features = 3 + centres[labels] + noise * torch.randn(rows, dimension, generator=generator)
    if several:
        one = torch.nn.functional.one_hot(labels, classes)
        more = torch.rand(rows, classes, generator=generator) < 0.3
        return features, (one | more).to(torch.uint8)
    return features, labels


def rows_of(
    features: torch.Tensor, labels: torch.Tensor, classes: int, *, units: Units | None = None
) -> Rows:
    data = TrainingSet(features.clone(), labels, classes, units=units)
    return Rows(data, Transform(NoNormalisation()))


def fit(
    options: MethodOptions,
    features: Any,
    labels: torch.Tensor,
    classes: int,
    *,
    noise: float = 0.0,
    seeds: tuple[int, ...] = SEEDS,
    record: Any = None,
) -> Heads:
    if isinstance(features, torch.Tensor):
        features = features.clone()
    data = TrainingSet(features, labels, classes, public=SYNTHETIC_ROWS)
    return fit_heads(options, data, plan_for(options, data.rows, noise), seeds, record=record)


def with_unusable(
    features: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds rows of class 0 with NaN, infinity and huge values, at random positions."""
    bad = torch.full((4, features.shape[1]), 1.0)
    bad[0, 2], bad[1, 0], bad[2, 1], bad[3] = math.nan, math.inf, -math.inf, 1e30
    bad_labels = torch.zeros((4, *labels.shape[1:]), dtype=labels.dtype)
    order = torch.randperm(len(features) + 4, generator=torch.Generator().manual_seed(1))
    return torch.cat([features, bad])[order], torch.cat([labels, bad_labels])[order]


def accuracy(fitted: Heads, features: torch.Tensor, labels: torch.Tensor) -> float:
    scores = torch.from_numpy(score_rows(fitted, features))
    return float((scores.argmax(2) == labels).float().mean())


def check_logistic_regression(fitted: Heads, features: torch.Tensor, labels: torch.Tensor) -> None:
    """Compares a head with unpenalised scikit-learn regression, or one regression per label."""
    rows = features.double().numpy()
    regression = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000)
    if labels.ndim == 1:
        scores = torch.from_numpy(score_rows(fitted, features)[0].astype(np.float64))
        wanted = regression.fit(rows, labels.numpy()).predict_proba(rows)
        np.testing.assert_allclose(torch.softmax(scores, 1).numpy(), wanted, atol=2e-4)
        return
    for head, column in zip(fitted.weights[0], labels.numpy().T, strict=True):
        regression.fit(rows, column)
        np.testing.assert_allclose(head[:-1], regression.coef_[0], atol=2e-3)
        np.testing.assert_allclose(head[-1], regression.intercept_[0], atol=6e-3)
