"""Small data, plans and runs for the tests of the second-order heads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.public_inputs import SYNTHETIC_ROWS
from dpprobe.heads.rows import Rows, Transform
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from tests.support.mechanisms import made_plan

SEEDS = (11, 12)


class Stream:
    """Rows that are read in blocks."""

    def __init__(self, features: torch.Tensor) -> None:
        self._features = features.numpy()
        self.rows, self.dimension = self._features.shape

    def read_blocks(self, rows: int) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        for start in range(0, self.rows, min(rows, 37)):
            yield start, self._features[start : start + min(rows, 37)].copy()


def classes_of(
    rows: int = 400,
    dimension: int = 12,
    classes: int = 4,
    *,
    noise: float = 0.7,
    seed: int = 0,
    several: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features with a large mean in common, and labels."""
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


def plan_of(options: MethodOptions, rows: int, noise: float, epsilon: float = 1.0) -> Plan:
    """A plan of the options' mechanisms at so many times their relative noise; 0 for none."""
    own = {} if noise == 0 else {"epsilon": epsilon}
    return made_plan(options.list_mechanisms(rows), rows, noise, **own)


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
    return fit_heads(options, data, plan_of(options, data.rows, noise), seeds, record=record)


def with_unusable(
    features: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of NaN, infinity and huge values among the others, of class 0."""
    bad = torch.full((4, features.shape[1]), 1.0)
    bad[0, 2], bad[1, 0], bad[2, 1], bad[3] = math.nan, math.inf, -math.inf, 1e30
    bad_labels = torch.zeros((4, *labels.shape[1:]), dtype=labels.dtype)
    order = torch.randperm(len(features) + 4, generator=torch.Generator().manual_seed(1))
    return torch.cat([features, bad])[order], torch.cat([labels, bad_labels])[order]


def accuracy(fitted: Heads, features: torch.Tensor, labels: torch.Tensor) -> float:
    scores = torch.from_numpy(score_rows(fitted, features))
    return float((scores.argmax(2) == labels).float().mean())
