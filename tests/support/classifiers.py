"""Small data of separable classes, and classifiers that fit it in milliseconds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpprobe.estimator.budget import Budget
from dpprobe.estimator.private_classifier import PrivateClassifier

ROWS, DIMENSION, CLASSES = 240, 6, (0, 1, 2)
FAST = {"head": "momentum", "normalize": "l2", "steps": 4}
DELTA = 1e-4


class Rows(NamedTuple):
    X: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]


def make_rows(seed: int = 0, rows: int = ROWS) -> Rows:
    """Returns rows of three classes, each around its own axis."""
    generator = np.random.default_rng(seed)
    labels = np.arange(rows) % len(CLASSES)
    features = generator.normal(size=(rows, DIMENSION))
    features[np.arange(rows), labels] += 3.0
    return Rows(features.astype(np.float32), labels)


def make_benchmark(**changes: Any) -> PrivateClassifier:
    """Returns a seeded classifier."""
    values: dict[str, Any] = {"head": FAST, "delta": DELTA, "benchmark": True, "random_state": 7}
    return PrivateClassifier(**values | changes)


def make_private(**changes: Any) -> PrivateClassifier:
    """Returns a private classifier with an in-memory budget for one fit."""
    values: dict[str, Any] = {"head": FAST, "classes": CLASSES, "budget": make_budget()}
    return PrivateClassifier(**values | changes)


def make_budget(folder: Any = None, **changes: Any) -> Budget:
    return Budget(folder, **{"max_epsilon": 1.0, "delta": DELTA} | changes)
