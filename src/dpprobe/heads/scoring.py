"""Scores of feature rows by trained heads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import DataError
from dpprobe.heads.fitted import Heads
from dpprobe.heads.rows import Transform
from dpprobe.heads.training_set import chunks


def score_rows(heads: Heads, features: torch.Tensor | npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Returns the scores of every head on [n, d] rows that are not yet normalised.

    Returns:
      float32 [seeds, n, classes].

    Raises:
      DataError: when the rows are not of the heads' dimension.
    """
    features = torch.as_tensor(features)
    weights = torch.from_numpy(heads.weights).to(features.device)
    seeds, classes, columns = weights.shape
    if features.ndim != 2 or features.shape[1] != columns - 1:
        raise DataError(
            f"features {tuple(features.shape)}: the heads were trained on dimension {columns - 1}"
        )
    out = np.empty((seeds, len(features), classes), dtype=np.float32)
    with torch.inference_mode():
        for transform, indices in together(heads.transforms):
            group = weights[indices]
            for start, stop in chunks(len(features), 4 * (3 * columns + group.shape[0] * classes)):
                block = transform(features[start:stop].to(torch.float32))
                out[indices, start:stop] = products(group, block).cpu().numpy()
    return out


def products(weights: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Returns the scores [seeds, m, classes] of heads [seeds, classes, d + 1] on normalised rows.

    Args:
      rows: [m, d].
    """
    flat = weights.flatten(0, 1)
    logits = torch.addmm(flat[:, -1], rows, flat[:, :-1].T)
    return logits.view(-1, *weights.shape[:2]).transpose(0, 1)


def together(transforms: Iterable[Transform]) -> list[tuple[Transform, list[int]]]:
    """Returns the different transforms, each with the positions of the heads that have it."""
    groups: dict[int, tuple[Transform, list[int]]] = {}
    for position, transform in enumerate(transforms):
        groups.setdefault(id(transform), (transform, []))[1].append(position)
    return list(groups.values())
