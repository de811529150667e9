"""Losses of rows, each with one or several views."""

from __future__ import annotations

import torch
from torch.nn import functional


def row_losses(scores: torch.Tensor, labels: torch.Tensor, *, sigmoid: bool) -> torch.Tensor:
    """Returns each row's loss, float32 [m]: the mean over views if rows have several.

    Args:
      scores: [m, K], or [m * v, K] with the v views of a row adjacent.
      labels: classes, int64 [m]; or numbers from 0 to 1 for each class, [m, K].
      sigmoid: True for a sum over classes of sigmoid cross-entropies.
    """
    views = len(scores) // len(labels)
    scores = scores.float()
    if labels.ndim == 1 and sigmoid:
        labels = labels.unsqueeze(1) == torch.arange(scores.shape[1], device=scores.device)
    if labels.ndim == 2:
        labels = labels.to(scores.dtype)
    if views > 1:
        labels = labels.repeat_interleave(views, 0)
    if sigmoid:
        losses = functional.binary_cross_entropy_with_logits(scores, labels, reduction="none").sum(
            1
        )
    else:
        losses = functional.cross_entropy(scores, labels, reduction="none")
    return losses if views == 1 else losses.view(-1, views).mean(1)
