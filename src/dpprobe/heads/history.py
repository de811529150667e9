"""The history of a fit: records at some steps on the way, only where somebody asks for them."""

from __future__ import annotations

from typing import Any

import torch

from dpprobe.heads.fitted import Record
from dpprobe.heads.rows import Rows
from dpprobe.heads.scoring import compute_scores

RECORDS = 20
LOSS_ROWS = 10_000


def record_steps(steps: int) -> list[int]:
    """Returns about twenty steps on the way, evenly spread, and the last one."""
    parts = min(steps, RECORDS)
    return [round(steps * part / parts) for part in range(1, parts + 1)]


class History:
    """The records of heads that descend a loss; nothing is computed where `record` is None.

    Attributes:
      records: one a seed and recorded step.
    """

    def __init__(
        self, rows: Rows, sample_rate: float, record: Record | None, *, sigmoid: bool = False
    ) -> None:
        self.records: list[dict[str, Any]] = []
        self._rows = rows
        self._sample_rate = sample_rate
        self._record = record
        self._sigmoid = sigmoid

    def add_record(self, step: int, weights: torch.Tensor) -> None:
        """Adds a record a seed: its loss on the first 10,000 training examples, `record`'s values.

        The loss is a mean with the rows' weights, where units of privacy have several rows.
        """
        if self._record is None:
            return
        losses = self._compute_losses(weights)
        epoch = step * self._sample_rate
        further = self._record(step, weights) or {}
        for index, loss in enumerate(losses):
            values = {name: float(values[index]) for name, values in further.items()}
            self.records.append(
                {"seed_index": index, "step": step, "epoch": epoch, "train_loss": loss, **values}
            )

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
        if self._sigmoid:
            targets = self._rows.make_targets(start, stop).unsqueeze(1).expand_as(logits)
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, targets, reduction="none"
            )
            return losses.sum(2)
        labels = self._rows.labels[start:stop].unsqueeze(1).expand(-1, logits.shape[1])
        return torch.nn.functional.cross_entropy(logits.movedim(2, 1), labels, reduction="none")


def history_without_loss(
    weights: torch.Tensor, record: Record | None, *, step: int, epoch: float
) -> list[dict[str, Any]]:
    """Returns a record a seed for heads [seeds, classes, d + 1] that descend no loss."""
    if record is None:
        return []
    further = record(step, weights) or {}
    return [
        {"seed_index": index, "step": step, "epoch": epoch}
        | {name: float(values[index]) for name, values in further.items()}
        for index in range(len(weights))
    ]
