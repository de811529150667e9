"""The two data sets of a white-box audit: synthetic rows, with canaries or with null rows instead.

A guarantee holds for every pair of data sets that differ in one unit, so an audit may choose the
pair. No row is private. The data sets have the plan's n units, but most units have no rows, and so
add nothing to any sum, like null rows. A few rows have the canary's direction but another label. So
no head learns to predict the canary, and the canary's gradient stays at the clipping norm.

A group of k canaries is completely in or completely out. A plan with Gaussian privacy mu has k mu
for a group of k (Dong, Roth and Su 2022, theorem 2.14; for sampled releases: Ganesh 2024). So a
bound for the group gives a bound for the plan, and needs far fewer runs at a small epsilon.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dpprobe.heads.patient_groups import Units
from dpprobe.heads.public_inputs import SYNTHETIC_ROWS
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.randomness import open_stream

# The number of rows besides the canaries.
OTHERS = 64


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The public facts of a cell's training examples: n units, features per row, classes.

    If a unit has several rows, they are equal, and each is weighted by one over their number.
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
      absent, present: the training set with null rows for the canaries, and with the canaries.
      canary: the features of one canary, float32 [1, d].
      label, other_label: the label of the canaries, and of the other rows in their direction.
    """

    absent: TrainingSet
    present: TrainingSet
    canaries: range
    canary: torch.Tensor
    label: int = 0
    other_label: int = 1


def make_worlds(shape: Shape, *, group: int, length: float, seed: int, label: int = 0) -> Worlds:
    """Makes the two data sets.

    Args:
      group: the number of canaries, below n.
      length: a canary's norm before normalisation and clipping.
      label: the canaries' label; if rows have several labels, canaries have all labels.
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
    features = np.concatenate([rows, np.tile(direction * length, (group, 1))])
    return worlds_of(shape, features, np.concatenate([labels, [label] * group]), group)


def alike_worlds(shape: Shape, *, group: int, seed: int) -> Worlds:
    """Makes data sets of equal rows; each is centred by its exact mean, then rows get unit norm.

    This is a centring that epsilon does not cover. Without the canaries all rows become 0; with the
    canaries each row has norm 1.
    """
    direction = open_stream(seed, "audit rows").standard_normal(shape.dimension).astype(np.float32)
    direction /= np.linalg.norm(direction)
    others = min(OTHERS, shape.n - group)
    labels = np.array([1 % shape.num_classes] * others + [0] * group)
    features = np.concatenate([np.tile(direction, (others, 1)), np.tile(-direction, (group, 1))])
    return worlds_of(shape, features, labels, group, centre=True)


def worlds_of(
    shape: Shape,
    features: np.ndarray,
    labels: np.ndarray,
    group: int,
    *,
    centre: bool = False,
) -> Worlds:
    """Makes the two data sets from rows, of which the last `group` are the canaries."""
    others = len(features) - group
    label = int(labels[-1])
    absent, present = features[:others], features
    if centre:
        absent, present = _centre_rows(absent), _centre_rows(present)
    return Worlds(
        absent=_training_set(shape, absent, labels[:others], label),
        present=_training_set(shape, present, labels, label),
        canaries=range(others, len(features)),
        canary=torch.from_numpy(present[-1:].copy()),
        label=label,
        other_label=(label + 1) % shape.num_classes,
    )


def _centre_rows(features: np.ndarray) -> np.ndarray:
    """Returns rows minus their exact mean, then scaled to unit norm; zero rows stay zero."""
    shifted = features - features.mean(axis=0, dtype=np.float64)
    lengths = np.linalg.norm(shifted, axis=1, keepdims=True)
    scaled: np.ndarray = np.where(lengths > 1e-6, shifted / np.maximum(lengths, 1e-6), 0 * shifted)
    return scaled.astype(np.float32)


def _training_set(
    shape: Shape, features: np.ndarray, labels: np.ndarray, canary: int
) -> TrainingSet:
    """Returns a training set of n units, of which the first have rows: one line of `features`."""
    each = shape.rows_per_unit
    features, labels = features.repeat(each, axis=0), labels.repeat(each)
    rows = len(features)
    units = Units(
        members=np.arange(rows),
        starts=np.minimum(np.arange(shape.n + 1) * each, rows),
        weights=np.full(rows, 1 / each, dtype=np.float32),
    )
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
