"""The two data sets of a white-box audit: synthetic rows, with canaries or with null rows instead.

A guarantee holds for every pair of data sets that differ in one unit, so an audit may choose the
pair. No row of an audit is private. The data sets have the plan's n units, but most units have no
rows, and so add nothing to any sum, like null rows. A few rows have the canary's direction but
another label: no head learns to predict the canary, and its gradient stays at the clipping norm.

A group of k canaries is completely in or completely out. A plan with Gaussian privacy mu has k mu
for a group of k (Dong, Roth and Su 2022, theorem 2.14; for sampled releases: Ganesh 2024). A bound
for a group gives a bound for the plan, and needs far fewer runs at a small epsilon.

In two more pairs of data sets, one canary is unlike all other rows: the longest row, or alone in
  its class. Both pairs reveal a mechanism that uses statistics of all rows without noise, such as
  the largest norm or the set of classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.heads.patient_groups import Units
from dpprobe.heads.public_inputs import SYNTHETIC_ROWS
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.randomness import open_stream

# The number of training rows besides the canaries.
OTHERS = 64


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The public facts of a cell's training examples: n units, features per row, classes.

    A canary has `rows_per_unit` equal rows; other units have at most `rows_per_unit` rows.
    """

    n: int
    dimension: int
    num_classes: int
    multi_label: bool
    rows_per_unit: int = 1


@dataclass(frozen=True, kw_only=True)
class Worlds:
    """Two training sets that differ only in the canaries' rows.

    Attributes:
      absent, present: the training set with null rows in place of the canaries, and with canaries.
      canary: the features of one canary, float32 [1, d].
      label, other_label: the label of the canaries, and of the other rows in their direction.
    """

    absent: TrainingSet
    present: TrainingSet
    canaries: range
    canary: torch.Tensor
    label: int = 0
    other_label: int = 1

    def change_rows(self, change: Callable[[TrainingSet], TrainingSet]) -> Worlds:
        """Returns both data sets after a step that reads all rows of a training set together."""
        absent, present = change(self.absent), change(self.present)
        assert present.features is not None
        return replace(self, absent=absent, present=present, canary=present.features[-1:])


def make_worlds(
    shape: Shape,
    *,
    group: int,
    length: float,
    seed: int,
    label: int = 0,
    others_length: float = 1.0,
    alone: bool = False,
) -> Worlds:
    """Makes the two data sets.

    Args:
      group: the number of canaries, below n.
      length: a canary's norm before normalisation and clipping.
      label: the canaries' label; if rows have several labels, canaries have all labels.
      others_length: the largest norm of other rows, relative to a canary's.
      alone: True if no other row has a label of the canaries.
    """
    generator = open_stream(seed, "audit rows")
    others = min(OTHERS, shape.n - group)
    rows = generator.standard_normal((others, shape.dimension)).astype(np.float32)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
    direction = generator.standard_normal(shape.dimension).astype(np.float32)
    direction /= np.linalg.norm(direction)
    rows[: others // 2] = direction * length
    labels = np.arange(others) % shape.num_classes
    labels[: others // 2] = (label + 1) % shape.num_classes
    rows *= others_length
    if alone:
        labels[labels == label] = -1 if shape.multi_label else (label + 1) % shape.num_classes
    features = np.concatenate([rows, np.tile(direction * length, (group, 1))])
    return worlds_of(shape, features, np.concatenate([labels, [label] * group]), group)


def make_unusual_worlds(shape: Shape, *, length: float, seed: int) -> tuple[Worlds, Worlds]:
    """Makes data sets where one canary is the longest row, and where it is alone in its class."""
    return (
        make_worlds(shape, group=1, length=length, seed=seed, others_length=0.5),
        make_worlds(shape, group=1, length=length, seed=seed, alone=True),
    )


def alike_worlds(shape: Shape, *, group: int, seed: int) -> Worlds:
    """Makes data sets of equal rows, and of canaries that are the negative of these rows.

    Centring by the exact mean turns all rows to 0 if canaries are absent, but none if present.
    """
    direction = open_stream(seed, "audit rows").standard_normal(shape.dimension).astype(np.float32)
    direction /= np.linalg.norm(direction)
    others = min(OTHERS, shape.n - group)
    labels = np.array([1 % shape.num_classes] * others + [0] * group)
    features = np.concatenate([np.tile(direction, (others, 1)), np.tile(-direction, (group, 1))])
    return worlds_of(shape, features, labels, group)


def worlds_of(shape: Shape, features: np.ndarray, labels: np.ndarray, group: int) -> Worlds:
    """Makes the two data sets from rows, of which the last `group` are the canaries."""
    others = len(features) - group
    label = int(labels[-1])
    most = shape.rows_per_unit
    sizes = np.concatenate([1 + np.arange(others) % most, np.full(group, most)])
    absent, present = features[:others], features
    return Worlds(
        absent=_training_set(shape, absent, labels[:others], sizes[:others], label),
        present=_training_set(shape, present, labels, sizes, label),
        canaries=range(others, len(features)),
        canary=torch.from_numpy(present[-1:].copy()),
        label=label,
        other_label=(label + 1) % shape.num_classes,
    )


def _training_set(
    shape: Shape,
    features: np.ndarray,
    labels: np.ndarray,
    sizes: npt.NDArray[np.int64],
    canary: int,
) -> TrainingSet:
    """Returns a training set of n units: one of `sizes` equal rows per line of `features`, then
    units without rows."""
    numbered = Units.number_units([f"{unit:06}" for unit in np.arange(len(sizes)).repeat(sizes)])
    features, labels = features.repeat(sizes, axis=0), labels.repeat(sizes)
    rows = len(features)
    missing = np.full(shape.n - len(sizes), rows)
    units = replace(numbered, starts=np.concatenate([numbered.starts, missing]))
    if shape.multi_label:  # canaries have all labels, the other rows in their direction none
        hot = np.zeros((rows, shape.num_classes), dtype=np.uint8)
        hot[labels == canary] = 1
        targets = torch.from_numpy(hot)
    else:
        targets = torch.from_numpy(labels.astype(np.int64))
    return TrainingSet(
        torch.from_numpy(features.copy()),
        targets,
        shape.num_classes,
        units=units,
        public=SYNTHETIC_ROWS,
    )
