"""The history of a fit: records at some of the training steps, if requested."""

from __future__ import annotations

from typing import Any

import torch

from dpprobe.heads.fitted import Record
from dpprobe.heads.rows import Rows
from dpprobe.heads.scoring import Link, compute_scores

RECORDS = 20
LOSS_ROWS = 10_000


def record_steps(steps: int) -> list[int]:
    """Returns about twenty evenly spaced steps, including the last."""
    parts = min(steps, RECORDS)
    return [round(steps * part / parts) for part in range(1, parts + 1)]


class History:
    """Records of heads during training, one per seed and recorded step; none without `record`.

    Heads with link `none` have no loss, so their records have no train_loss.
    """

    def __init__(
        self, rows: Rows, sample_rate: float, record: Record | None, link: Link = "softmax"
    ) -> None:
        self.records: list[dict[str, Any]] = []
        self._rows, self._record = rows, record
        self._sample_rate, self._link = sample_rate, link

    def add_record(self, step: int, weights: torch.Tensor) -> None:
        """Adds one record per seed: the mean loss on the first rows, and values from `record`."""
        if self._record is None:
            return
        further: dict[str, Any] = {}
        if self._link != "none":
            further["train_loss"] = self._compute_losses(weights)
        further.update(self._record(step, weights) or {})
        epoch = step * self._sample_rate
        for index in range(len(weights)):
            values = {name: float(values[index]) for name, values in further.items()}
            self.records.append({"seed_index": index, "step": step, "epoch": epoch, **values})

    def _compute_losses(self, weights: torch.Tensor) -> list[float]:
        total = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
        counted = 0.0
        for start, stop, block in self._rows.read_blocks(12 * len(weights.flatten(0, 1))):
            if start >= LOSS_ROWS:
                break
            logits = compute_scores(weights, block).transpose(0, 1)
            losses = self._cross_entropy(logits, start, stop)
            if self._rows.weights is None:
                counted += stop - start
            else:
                row_weights = self._rows.weights[start:stop]
                counted += float(row_weights.sum(dtype=torch.float64))
                losses *= row_weights[:, None]
            total += losses.sum(0)
        return [float(value) for value in total / counted]

    def _cross_entropy(self, logits: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        if self._link == "sigmoid":
            targets = self._rows.make_targets(start, stop).unsqueeze(1).expand_as(logits)
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, targets, reduction="none"
            )
            return losses.sum(2)
        labels = self._rows.labels[start:stop].unsqueeze(1).expand(-1, logits.shape[1])
        return torch.nn.functional.cross_entropy(logits.movedim(2, 1), labels, reduction="none")
