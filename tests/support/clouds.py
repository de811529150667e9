"""Made-up features of well-separated classes, with groups and accepted labels."""

from __future__ import annotations

from typing import Any

import numpy as np


def clouds(
    rows: int,
    columns: int,
    classes: int,
    *,
    seed: int = 0,
    apart: float = 2.0,
    several: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns well-separated rows with labels: classes of unequal sizes, or several labels each."""
    generator = np.random.default_rng(seed)
    shares = np.arange(1, classes + 1) / sum(range(classes + 1))
    labels = generator.choice(classes, size=rows, p=shares)
    target = np.eye(classes)[labels]
    if several:
        target = (generator.random((rows, classes)) < 0.4).astype(np.float64)
        labels = target.astype(np.int8)
    moved = apart * target @ np.eye(classes, columns)
    return generator.normal(size=(rows, columns)) + moved, labels


def further_columns(labels: np.ndarray) -> dict[str, Any]:
    """Returns the groups of each row, and the accepted labels of rows with one label."""
    groups = {
        "group_sex": ["FM"[row % 7 > 2] for row in range(len(labels))],
        "group_age": [f"{10 * (row % 4)}" for row in range(len(labels))],
    }
    accepted = (
        [[int(label), 2][: 1 + (row % 4 == 0)] for row, label in enumerate(labels)]
        if labels.ndim == 1
        else None
    )
    return {"groups": groups, "accepted": accepted}
