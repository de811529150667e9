"""Counts and weights of units with several test examples, such as patients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def class_counts(labels: np.ndarray, num_classes: int) -> list[int]:
    """Counts the rows of each class, or of each label if rows have several labels."""
    counts = labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=num_classes)
    return [int(count) for count in counts]


def unit_codes(names: Sequence[str] | None) -> np.ndarray | None:
    """Numbers units by first appearance: int64 [rows]; None without names.

    Results contain these numbers instead of names. They do not reveal the names' order.
    """
    if names is None:
        return None
    _, first, codes = np.unique(np.asarray(names), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[codes].astype(np.int64)


def count_units(codes: np.ndarray | None) -> int | None:
    return None if codes is None else len(np.unique(codes))


def row_weights(codes: np.ndarray | None) -> np.ndarray | None:
    """Returns weights, float64 [rows]: 1 / m for each row of a unit with m rows.

    Returns None if all rows have equal weight, because each unit has one row.
    """
    if codes is None:
        return None
    sizes = np.bincount(codes)
    return None if sizes.max() == 1 else 1 / sizes[codes]
