"""The private rows that heads train on, with what the methods of a job share; trained heads."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import DataError

logger = logging.getLogger("dpprobe")

# A row longer than this counts as not finite: its square would overflow float32.
LONGEST_ROW = 1e18
_CHUNK_BYTES = 32 * 2**20


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Linear classifiers, one a seed.

    Attributes:
      weights: float32 [seeds, classes, d + 1]; the last column is the bias.
      seeds: what each head was trained with.
      normalize: what is done to a feature row before the product, as in `MethodOptions`.
      steps: noisy steps taken (0 for a method without).
      history: one record a seed and recorded step: seed_index, step, epoch, train_loss, ...
        Training losses are not private.
    """

    weights: npt.NDArray[np.float32]
    seeds: tuple[int, ...]
    normalize: str
    steps: int
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Rows:
    """Feature rows after a normalisation.

    Attributes:
      features: float32 [n, d], finite; rows that were not are zeros.
      norms: float64 [n], the L2 norm of each row with a 1 appended; infinite for such rows.
    """

    features: torch.Tensor
    norms: torch.Tensor


class TrainingSet:
    """Features and labels on the device that trains, and what methods share, computed once.

    Args:
      features: float32 [n, d].
      labels: int64 [n], from 0 to num_classes - 1.
      num_classes: public.

    Raises:
      DataError: when shapes, types or labels are not these.
    """

    def __init__(self, features: torch.Tensor, labels: torch.Tensor, num_classes: int) -> None:
        if features.ndim != 2 or features.dtype != torch.float32 or 0 in features.shape:
            raise DataError(
                f"training features: {features.dtype} {tuple(features.shape)}; "
                "float32 [rows, dimension] is needed, neither of them 0"
            )
        if labels.shape != features.shape[:1] or labels.dtype != torch.int64:
            raise DataError(
                f"training labels: {labels.dtype} {tuple(labels.shape)}; "
                f"int64 [{len(features)}] is needed"
            )
        lowest, highest = int(labels.min()), int(labels.max())
        if lowest < 0 or highest >= num_classes:
            raise DataError(
                f"training labels: from {lowest} to {highest}; with {num_classes} classes they "
                f"go from 0 to {num_classes - 1}"
            )
        self.features = features
        self.labels = labels.to(features.device)
        self.num_classes = num_classes
        self._rows: dict[str, Rows] = {}

    @property
    def rows(self) -> int:
        return self.features.shape[0]

    @property
    def dimension(self) -> int:
        return self.features.shape[1]

    @property
    def device(self) -> torch.device:
        return self.features.device

    def normalised(self, normalize: str) -> Rows:
        """The rows after a normalisation that looks at each row alone; computed once."""
        if normalize not in self._rows:
            self._rows[normalize] = self._normalise(normalize)
        return self._rows[normalize]

    def _normalise(self, normalize: str) -> Rows:
        features = self.features
        if normalize != "none":
            features = torch.empty_like(features)
        norms = torch.empty(self.rows, dtype=torch.float64, device=self.device)
        for start, stop in chunks(self.rows, 8 * self.dimension):
            block = normalise_rows(self.features[start:stop], normalize)
            squares = torch.linalg.vector_norm(block, dim=1, dtype=torch.float64).square_()
            norms[start:stop] = squares.add_(1).sqrt_()
            if normalize != "none":
                features[start:stop] = block
        unusable = ~(norms <= LONGEST_ROW)
        count = int(unusable.sum())
        if count:
            logger.warning("%d training rows hold NaN, infinity or huge values: left out", count)
            features = features.clone() if normalize == "none" else features
            features[unusable] = 0.0
            norms[unusable] = math.inf
        return Rows(features, norms)


def normalise_rows(features: torch.Tensor, normalize: str) -> torch.Tensor:
    """Each row of [n, d] by itself: as it is, to unit L2 norm (a zero row stays), or LayerNorm."""
    if normalize == "none":
        return features
    if normalize == "l2":
        norms = torch.linalg.vector_norm(features, dim=1, keepdim=True, dtype=torch.float64)
        scale = torch.where(norms > 0, norms, 1.0)
        return (features / scale).to(torch.float32)
    if normalize == "layer_norm":
        return torch.nn.functional.layer_norm(features, features.shape[1:])
    raise ValueError(f"unknown normalisation {normalize!r}")


def chunks(rows: int, bytes_per_row: int) -> Iterator[tuple[int, int]]:
    """Row ranges whose working memory stays near 32 MiB."""
    size = max(1, _CHUNK_BYTES // bytes_per_row)
    for start in range(0, rows, size):
        yield start, min(start + size, rows)


def scores(heads: Heads, features: torch.Tensor | npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """The logits of every head on [n, d] rows that are not yet normalised.

    Returns:
      float32 [seeds, n, classes].
    """
    features = torch.as_tensor(features)
    weights = torch.from_numpy(heads.weights).to(features.device)
    seeds, classes, columns = weights.shape
    if features.ndim != 2 or features.shape[1] != columns - 1:
        raise DataError(
            f"features {tuple(features.shape)}: the heads were trained on dimension {columns - 1}"
        )
    flat = weights.view(seeds * classes, columns)
    out = np.empty((seeds, len(features), classes), dtype=np.float32)
    with torch.inference_mode():
        for start, stop in chunks(len(features), 4 * (3 * columns + seeds * classes)):
            block = normalise_rows(features[start:stop].to(torch.float32), heads.normalize)
            logits = torch.addmm(flat[:, -1], block, flat[:, :-1].T)
            out[:, start:stop] = logits.view(-1, seeds, classes).transpose(0, 1).cpu().numpy()
    return out
