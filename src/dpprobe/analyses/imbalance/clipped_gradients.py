"""Gradients of each class's training examples at a trained head, and what clipping leaves of them.

Not private: the numbers are means over training examples, without noise. With x a normalised row
  with a
1 appended and r the residual of its cross-entropy, the row's gradient is r x^T, of norm |r| |x|
(see `heads.clipping`). A head clips it to C: rows of a rare class, which it gets wrong, are longer
than others, and clipping takes away more of what they say. At the weights that training ended with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.heads.fitted import Heads
from dpprobe.heads.scoring import compute_scores

_BLOCK_ROWS = 2048


@dataclass(frozen=True, kw_only=True)
class ClassGradients:
    """The effect of clipping on the gradients of one class's rows, one entry per seed.

    Attributes:
      clipped: share of the rows whose gradient is longer than C.
      norm: mean length of the examples' gradients.
      cosine: between the sums of the examples' gradients before and after clipping; NaN where one
        is 0.
      kept: length of the sum after clipping over that before; NaN where that is 0.
    """

    clipped: npt.NDArray[np.float64]
    norm: npt.NDArray[np.float64]
    cosine: npt.NDArray[np.float64]
    kept: npt.NDArray[np.float64]


def class_gradients(
    heads: Heads,
    features: npt.NDArray[np.float32],
    label: int,
    *,
    clip: float,
    sigmoid: bool = False,
) -> ClassGradients:
    """Computes the gradients of rows of one class, at each head.

    Args:
      heads: of S seeds.
      features: [m, d] rows that are not yet normalised, all of the class, m >= 1.
      clip: C.
      sigmoid: True if the loss is a sum over classes of sigmoid cross-entropies.
    """
    weights = torch.from_numpy(heads.weights)
    seeds, classes, columns = weights.shape
    sums = np.zeros((2, seeds, classes, columns))
    clipped, length = np.zeros(seeds), np.zeros(seeds)
    with torch.inference_mode():
        for seed in range(seeds):
            for rows in _read_blocks(features):
                normal = heads.transforms[seed](rows)
                logits = compute_scores(weights[seed : seed + 1], normal)[0].double()
                residuals = logits.sigmoid() if sigmoid else logits.softmax(dim=1)
                residuals[:, label] -= 1
                extended = torch.cat([normal.double(), torch.ones(len(normal), 1).double()], dim=1)
                norms = residuals.norm(dim=1) * extended.norm(dim=1)
                clipped[seed] += float((norms > clip).sum())
                length[seed] += float(norms.sum())
                factors = (clip / norms).clamp_(max=1)
                sums[0, seed] += (residuals.T @ extended).numpy()
                sums[1, seed] += ((residuals * factors[:, None]).T @ extended).numpy()
    raw, after = sums.reshape(2, seeds, -1)
    lengths = np.linalg.norm(raw, axis=1), np.linalg.norm(after, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return ClassGradients(
            clipped=clipped / len(features),
            norm=length / len(features),
            cosine=np.einsum("sj,sj->s", raw, after) / (lengths[0] * lengths[1]),
            kept=lengths[1] / lengths[0],
        )


def _read_blocks(features: npt.NDArray[np.float32]) -> Iterator[torch.Tensor]:
    for start in range(0, len(features), _BLOCK_ROWS):
        yield torch.from_numpy(features[start : start + _BLOCK_ROWS])
