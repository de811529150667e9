"""Small training sets, plans, and float64 references for clipped sums in gradient heads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.heads.normalisation import KINDS, Centred
from dpprobe.heads.normalised_rows import normalise_rows
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.rows import Rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.releases import Releases
from tests.support.mechanisms import made_plan

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Source:
    """Stored rows, read in blocks of at most `most` rows."""

    features: npt.NDArray[np.float32]
    most: int = 7

    @property
    def rows(self) -> int:
        return len(self.features)

    @property
    def dimension(self) -> int:
        return self.features.shape[1]

    def read_blocks(self, rows: int) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        step = max(1, min(rows, self.most))
        for start in range(0, self.rows, step):
            yield start, self.features[start : start + step].copy()


def training_set(
    rows: int = 120, dimension: int = 7, classes: int = 4, *, multi_label: bool = False
) -> TrainingSet:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(rows, dimension, generator=generator) * 2
    if multi_label:
        several = torch.randint(0, 2, (rows, classes), generator=generator).to(torch.uint8)
        return TrainingSet(features, several, classes)
    return TrainingSet(features, torch.randint(0, classes, (rows,), generator=generator), classes)


def with_units(rows: int = 120) -> TrainingSet:
    """Returns `training_set` with non-contiguous units of 1, 2, 3, 7 and 20 rows."""
    data, names = training_set(rows), np.repeat(np.arange(5 * rows), [1, 2, 3, 7, 20] * rows)
    order = np.random.default_rng(0).permutation(rows)
    units = Units.number_units([f"{name}" for name in names[:rows][order]])
    return TrainingSet(features_of(data), data.labels, data.num_classes, units=units)


def features_of(data: TrainingSet) -> torch.Tensor:
    assert data.features is not None
    return data.features


def plan_for(method: MethodOptions, n: int, noise: float = 0.8) -> Plan:
    """Returns a plan of the method's releases with relative noise `noise`; 0 for no noise."""
    mechanisms, selection = method.list_mechanisms(n), method.priced_selection(n)
    return made_plan(mechanisms, n, noise, selection=selection)


def no_privacy(options: MethodOptions, n: int) -> Plan:
    return plan_for(options, n, noise=0.0)


def rows_of(data: TrainingSet, kind: str = "none") -> Rows:
    """Returns the rows after a normalisation that uses no privacy budget."""
    plan = Plan(mechanisms=(), n=data.rows, epsilon=math.inf, delta=1e-5, accountant="pld")
    make: Any = KINDS[kind]
    return normalise_rows(data, make(), Releases(plan, [1], data.device))


def normalised(data: TrainingSet, kind: str) -> Rows:
    """Returns the rows after a normalisation; "centred" uses a fixed centre."""
    if kind != "centred":
        return rows_of(data, kind)
    return Rows(data, Transform(Centred(), {"centre": torch.linspace(-0.2, 0.1, data.dimension)}))


def whole(rows: Rows) -> torch.Tensor:
    """Returns all normalised rows, [n, d]."""
    return torch.cat([block.features.clone() for block in rows.read_blocks()])


def oracle_residual(
    logits: npt.NDArray[np.float64], targets: npt.NDArray[np.float64], *, sigmoid: bool
) -> npt.NDArray[np.float64]:
    if sigmoid:
        return 1 / (1 + np.exp(-logits)) - targets
    powers = np.exp(logits - logits.max())
    return powers / powers.sum() - targets


def oracle_sum(
    rows: Rows,
    weights: npt.NDArray[Any],
    index: npt.NDArray[np.int64],
    clip: float,
    *,
    sigmoid: bool = False,
    constant: float = 1.0,
) -> npt.NDArray[np.float64]:
    """Returns the sum of clipped gradients, computed row by row in float64."""
    features = whole(rows).double().numpy()
    targets = rows.make_targets(0, rows.n).double().numpy()
    total = np.zeros(weights.shape)
    for row in index:
        x = np.append(features[row], constant)
        residual = oracle_residual(weights.astype(np.float64) @ x, targets[row], sigmoid=sigmoid)
        gradient = np.outer(residual, x)
        length = np.linalg.norm(gradient)
        total += gradient * (min(1.0, clip / length) if length else 1.0)
    return total


def relative(actual: Any, wanted: Any) -> float:
    actual, wanted = np.asarray(actual, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    return float(np.linalg.norm(actual - wanted) / np.linalg.norm(wanted))
