"""Corrects a trained head's biases by one more release: the training rows' mean scores.

With few units, the noise of the weights and of a released centre moves all scores of a class up or
down, so a head that ranks rows well may predict the same class almost always. The shift depends on
the drawn noise, so it cannot be computed from class frequencies (`balance`).

**class_offsets** [K]: for each row x, let t be the row's scores minus their mean over classes,
divided by a width B, and clipped to norm 1. The release is the sum of u w_y t over the rows, where
u is the row's weight in its unit (1 / m for a row of a unit with m rows) and w_y, at most 1, is the
weight of its class. A unit adds a vector of norm at most 1, and a null row adds nothing, so the
sensitivity is 1. The released sum divided by n, times B, is subtracted from the biases. B and w
follow from earlier releases (the weights and the priors), and composition is adaptive.

- B is 1.5 |W| / sqrt(d), for weights W minus their mean over the classes: 1.5 times the norm that
  scores would have if the weights were pure noise. A small B needs little budget; the shift is at
  most B.
- w_k is sqrt(p_min / p_k) with the priors p. With equal weights, the target would be the median
  score of all rows, so a rare class would be predicted as often as other classes. With weights
  p_min / p_k, the target would be the middle between the classes, but few units would count.
  bench/results/few_patients.md compares them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from dpprobe.heads.options import CLASS_OFFSETS
from dpprobe.heads.second_order import Design, UnitRows
from dpprobe.privacy.grid import Grid, GridSum

if TYPE_CHECKING:
    import numpy.typing as npt

    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases

OFFSET_HEAD, OFFSET_CLASSES = "offset_head", "offset_classes"
# B divided by the norm that scores would have if the weights were pure noise.
_WIDTH = 1.5
# Float64 rounding may lengthen a vector of norm 1 by _MARGIN, so vectors are shortened by it.
_MARGIN = 2.0**-40


def release_offsets(
    weights: npt.NDArray[np.float32],
    priors: npt.NDArray[np.float32],
    rows: Rows,
    releases: Releases,
) -> npt.NDArray[np.float32]:
    """Releases the mean score of each class, float32 [seeds, K], to subtract from the biases.

    Args:
      weights: float32 [seeds, K, d + 1], heads on `rows`, with log priors already subtracted.
      priors: [seeds, K].
      rows: rows of norm 1, with one label each.
    """
    heads = torch.from_numpy(weights).double()
    heads = (heads - heads.mean(1, keepdim=True)).to(rows.device)
    sizes = torch.linalg.vector_norm(heads[..., :-1], dim=(1, 2))
    widths = _WIDTH / math.sqrt(rows.dimension) * sizes
    heads /= torch.where(widths > 0, widths, 1.0)[:, None, None]
    frequencies = torch.from_numpy(priors).double()
    of_class = frequencies.rsqrt()
    of_class /= of_class.amax(1, keepdim=True)
    releases.show_values(OFFSET_HEAD, heads)
    releases.show_values(OFFSET_CLASSES, of_class)
    grid = releases.make_grid(1.0, rows.n)
    design = Design(UnitRows(), rows, private=releases.plan.private)
    sums = _sum_scores(design, heads, of_class.to(rows.device), grid)
    released = releases.release_gaussian(CLASS_OFFSETS, GridSum(sums, grid.step)).cpu()
    counted = rows.n * (frequencies * of_class).sum(1)
    return (released * (widths.cpu() / counted)[:, None]).to(torch.float32).numpy()


def _sum_scores(
    design: Design, heads: torch.Tensor, of_class: torch.Tensor, grid: Grid
) -> torch.Tensor:
    """Sums the rows' clipped scores per head, in steps: float64 [seeds, K]."""
    rows, factors = design.rows, [design.make_factors(head) for head in heads]
    totals = heads.new_zeros(heads.shape[:2])
    for piece, block in design.read_blocks():
        window = slice(piece.start, piece.stop)
        usable = rows.lengths[window].isfinite()
        for total, each, weights in zip(totals, factors, of_class, strict=True):
            scores = design.compute_logits(block, each)
            norms = torch.linalg.vector_norm(scores, dim=1)
            shares = design.unit_shares(piece) * weights[rows.labels[window]]
            shares *= (1 - _MARGIN) / norms.clamp(min=1)
            scores *= torch.where(usable, shares, 0.0)[:, None]
            total += grid.round_to_steps(scores).sum(0)
    return totals
