"""The two data sets of a white-box audit: synthetic rows, with canaries and with null rows instead.

A guarantee holds for every pair of data sets that differ in one unit, so an audit may choose them.
None of their rows is private. They have the plan's n units; most of these have no rows, which adds
to every sum what null rows add: nothing. A few rows lie in the canary's direction with another
label, so that no head learns to expect the canary: its gradient stays at the clipping norm.

A group of k canaries is in as a whole, or not at all. A plan of privacy mu (Gaussian) is one of k
mu to a group of k (Dong, Roth and Su 2022, theorem 2.14; of sampled releases: Ganesh 2024), and a
bound on the latter is one on the plan: at a small epsilon it takes far fewer runs to find.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dpprobe.heads.patient_groups import Units
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.randomness import open_stream

# Rows beside the canaries.
OTHERS = 64


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The public facts of a cell's training examples: n units, features per row, classes.

    A unit of several rows has them alike, each weighted by one over their number.
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
      absent, present: with null rows in the canaries' place, and with the canaries.
      canary: one's features, float32 [1, d].
      label, other_label: the canaries', and that of the rows in their direction.
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
      label: of the canaries; with several labels per row, canaries have all.
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
    """Makes data sets of equal rows, each set minus its exact mean, then each row to unit norm.

    It is what a centring does that nobody priced. Without the canaries nothing is left of the
    rows; with them every row has norm 1.
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
    """Makes the data sets of given rows, whose last `group` are the canaries."""
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
    """Returns rows minus their exact mean, each then scaled to unit norm; a zero row stays."""
    shifted = features - features.mean(axis=0, dtype=np.float64)
    lengths = np.linalg.norm(shifted, axis=1, keepdims=True)
    scaled: np.ndarray = np.where(lengths > 1e-6, shifted / np.maximum(lengths, 1e-6), 0 * shifted)
    return scaled.astype(np.float32)


def _training_set(
    shape: Shape, features: np.ndarray, labels: np.ndarray, canary: int
) -> TrainingSet:
    """Returns a training set of n units; only the first have rows, one line of `features` each."""
    each = shape.rows_per_unit
    features, labels = features.repeat(each, axis=0), labels.repeat(each)
    rows = len(features)
    units = Units(
        members=np.arange(rows),
        starts=np.minimum(np.arange(shape.n + 1) * each, rows),
        weights=np.full(rows, 1 / each, dtype=np.float32),
    )
    if shape.multi_label:  # a canary has every label, the rows against it none
        hot = np.zeros((rows, shape.num_classes), dtype=np.uint8)
        hot[labels == canary] = 1
        targets = torch.from_numpy(hot)
    else:
        targets = torch.from_numpy(labels.astype(np.int64))
    return TrainingSet(torch.from_numpy(features.copy()), targets, shape.num_classes, units=units)
