"""Scores feature rows with trained heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import DataError
from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalisation import Normalisation
from dpprobe.heads.transform import Transform

CHUNK_BYTES = 32 * 2**20  # working memory for a range of rows

Link = Literal["softmax", "sigmoid", "none"]


def score_rows(heads: Heads, features: torch.Tensor | npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Returns scores, float32 [seeds, n, classes], of feature rows [n, d] before normalisation.

    Raises DataError if the rows have another dimension than the heads.
    """
    features = torch.as_tensor(features)
    weights = torch.from_numpy(heads.weights).to(features.device)
    seeds, classes, columns = weights.shape
    if features.ndim != 2 or features.shape[1] != columns - 1:
        raise DataError(
            f"features {tuple(features.shape)}: the heads need dimension {columns - 1}; pass "
            "features of their backbone"
        )
    out = np.empty((seeds, len(features), classes), dtype=np.float32)
    with torch.inference_mode():
        for transform, indices in group_transforms(heads.transforms):
            group = weights[indices]
            for start, stop in chunk_rows(
                len(features), 4 * (3 * columns + group.shape[0] * classes)
            ):
                block = transform(features[start:stop].to(torch.float32))
                out[indices, start:stop] = compute_scores(group, block).cpu().numpy()
    return out


def one_head(
    weights: npt.NDArray[np.float32],
    arrays: Mapping[str, npt.NDArray[np.float32]],
    normalize: Normalisation,
) -> Heads:
    """Makes `Heads` of one head, from weights [classes, d + 1] and released statistics by name."""
    transform = Transform(normalize, {name: torch.from_numpy(one) for name, one in arrays.items()})
    return Heads(weights=weights[None], seeds=(0,), transforms=(transform,), steps=0)


def compute_probabilities(
    heads: Heads,
    features: npt.NDArray[np.float32],
    link: Link,
    rescale: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> npt.NDArray[np.float32]:
    """Returns the first head's probabilities, float32 [n, classes], for unnormalised rows.

    For link `none`, returns the scores. `rescale` is applied to scores before the link. Raises
    DataError if the rows have another dimension than the head.
    """
    scores = torch.from_numpy(score_rows(heads, features)[0]).to(torch.float64)
    return apply_link(rescale(scores) if rescale else scores, link).to(torch.float32).numpy()


def apply_link(scores: torch.Tensor, link: Link) -> torch.Tensor:
    """Converts scores [n, classes] to probabilities; returns the scores for link none."""
    if link == "softmax":
        return scores.softmax(dim=1)
    return scores.sigmoid() if link == "sigmoid" else scores


def compute_scores(weights: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Scores normalised rows [m, d] with heads [seeds, classes, d + 1]: [seeds, m, classes]."""
    flat = weights.flatten(0, 1)
    logits = torch.addmm(flat[:, -1], rows, flat[:, :-1].T)
    return logits.view(-1, *weights.shape[:2]).transpose(0, 1)


def group_transforms(transforms: Iterable[Transform]) -> list[tuple[Transform, list[int]]]:
    """Returns the distinct transforms, each with the indices of its heads."""
    groups: dict[int, tuple[Transform, list[int]]] = {}
    for position, transform in enumerate(transforms):
        groups.setdefault(id(transform), (transform, []))[1].append(position)
    return list(groups.values())


def chunk_rows(rows: int, bytes_per_row: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of rows that need about `CHUNK_BYTES` of working memory each."""
    size = max(1, CHUNK_BYTES // bytes_per_row)
    for start in range(0, rows, size):
        yield start, min(start + size, rows)
