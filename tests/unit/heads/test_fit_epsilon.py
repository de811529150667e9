"""More epsilon never lowers any head's accuracy, on three kinds of features."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits

from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.registry import method_options
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.target import Target
from dpprobe.training.public_file_check import SYNTHETIC_ROWS

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 2.0, 8.0, math.inf)
SEEDS = tuple(range(4))
# Accuracy may fall by this many standard errors of a difference, over seeds and test rows.
ERRORS = 2.5
HEADS: dict[str, dict[str, Any]] = {
    "newton": {"head": "newton"},
    "newton sigmoid": {"head": "newton", "loss": "sigmoid"},
    "feature covariance": {"head": "feature_covariance"},
    "least squares": {"head": "least_squares"},
    "prototypes": {"head": "prototypes"},
    "momentum": {"head": "momentum"},
    "momentum whitened": {"head": "momentum", "normalize": "whitened"},
    "adam": {"head": "adam"},
    "lamb": {"head": "lamb"},
    "sgd": {"head": "sgd"},
    "auto": {"head": "auto"},
    "auto, public head": {"head": "auto", "public_head": "head.safetensors"},
}


class Features(NamedTuple):
    train: torch.Tensor
    labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor


def made_features(
    dimension: int,
    classes: int,
    rows: int,
    *,
    power: float,
    signal: float,
    strong: int,
    length: float,
    mean: float = 1.5,
) -> Features:
    """Draws Gaussian classes whose means differ in the `strong` strongest directions.

    The covariance's eigenvalue j is 1 / j^power. Rows have a mean norm of `length`.
    """
    generator = np.random.default_rng(0)
    scale = np.arange(1, dimension + 1) ** (-power / 2)
    scale /= np.linalg.norm(scale)
    basis = np.linalg.qr(generator.normal(size=(dimension, dimension)))[0]
    centres = signal * generator.normal(size=(classes, dimension)) * scale
    centres[:, strong:] = 0
    labels = generator.integers(classes, size=rows + 2000)
    x = centres[labels] + generator.normal(size=(len(labels), dimension)) * scale
    x = x @ basis + mean * basis[-1]
    x *= length / np.linalg.norm(x, axis=1).mean()
    features, answers = torch.from_numpy(x).float(), torch.from_numpy(labels)
    return Features(features[:rows], answers[:rows], features[rows:], answers[rows:])


@cache
def features_of(kind: str) -> Features:
    if kind == "cnn":  # the effective dimension is a seventh of the dimension
        return made_features(512, 5, 3000, power=0.6, signal=1.0, strong=8, length=32.0)
    if kind == "vit":  # a few strong directions, and long rows
        return made_features(96, 10, 2000, power=1.5, signal=0.45, strong=96, length=42.0)
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    rows, labels = torch.from_numpy(x[order] / 16).float(), torch.from_numpy(y[order]).long()
    return Features(rows[:1347], labels[:1347], rows[1347:], labels[1347:])


def correct_of(head: str, kind: str, epsilon: float, cache: Path) -> np.ndarray[Any, Any]:
    """Returns 100 for each correct prediction and 0 for each wrong one, [seeds, test rows]."""
    data = features_of(kind)
    (n, dimension), classes = data.train.shape, int(data.labels.max()) + 1
    facts = DataFacts(
        n=n,
        dimension=dimension,
        classes=classes,
        multi_label=False,
        epsilon=epsilon,
        delta=DELTA,
        unit="image",
    )
    options = HEADS[head]
    if "public_head" in options:  # class means of 10 rows per class that are not training rows
        path = str(cache / options["public_head"])
        means = [data.test[data.test_labels == k][:10].mean(0) for k in range(classes)]
        save_file({"weights": torch.stack(means) - torch.stack(means).mean(0)}, path)
        options = options | {"public_head": path}
    method = method_options(options).resolve_choice(facts)
    target = Target(n=n, epsilon=epsilon, delta=DELTA)
    plan = calibrate(method.list_mechanisms(n), target, cache=cache)
    rows = TrainingSet(data.train, data.labels, classes, public=SYNTHETIC_ROWS)
    heads = fit_heads(method, rows, plan, SEEDS)
    return np.asarray(100.0 * (score_rows(heads, data.test).argmax(2) == data.test_labels.numpy()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cnn", "vit", "digits"])
@pytest.mark.parametrize("head", HEADS)
def test_more_epsilon_is_never_worse(head: str, kind: str, tmp_path: Path) -> None:
    best = correct_of(head, kind, EPSILONS[0], tmp_path)
    for epsilon in EPSILONS[1:]:
        each = correct_of(head, kind, epsilon, tmp_path)
        by_row, seeds = (each - best).mean(0), [one.mean(1) for one in (each, best)]
        variance = sum(one.var(ddof=1) for one in seeds) / len(SEEDS) + by_row.var() / len(by_row)
        assert by_row.mean() >= -ERRORS * math.sqrt(variance), (epsilon, *seeds)
        best = max(best, each, key=np.mean)
