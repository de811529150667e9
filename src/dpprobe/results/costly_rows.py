"""The test examples that privacy costs most: the right label's probability without privacy less
with.

Not private: it is computed from test examples and their labels, without noise. A row's seeds of the
  two
cells are compared in pairs, and rows are ranked by the mean difference. The largest of many noisy
means is too large on average, so that the same rows' drop on a seed that did not choose them stands
beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from scipy.special import expit, softmax

from dpprobe.errors import DataError
from dpprobe.heads.registry import method_options
from dpprobe.results.best_private import best_private_cells
from dpprobe.results.cell_record import PREDICTIONS_FILE, CellRecord, check_file
from dpprobe.results.metrics import Link

READ_ROWS = 8192  # rows of a cell's predictions in memory at a time

CellFile = tuple[Path, CellRecord]  # metrics.json and what it says


@dataclass(frozen=True, kw_only=True)
class RowProbabilities:
    """The probabilities that every seed of a cell gives to what is right, a test example.

    With several labels per example, what is right of a label is its presence or its absence.

    Attributes:
      ids: of the rows, m of them.
      labels: int64 [m], or bool [m, K] where a row may have several.
      right: float64 [S, m], or [S, m, K].
      predicted: int64 [S, m], the most probable class; None with several labels.
    """

    ids: Sequence[str]
    labels: np.ndarray
    right: np.ndarray
    predicted: np.ndarray | None


@dataclass(frozen=True, kw_only=True)
class CostlyRow:
    """A test example with what privacy costs it; probabilities are means over seeds.

    Attributes:
      classes: the row's class, or all its labels.
      judged: the class, or the label, that the probabilities are of.
      reference, private: of what is right.
      error: the standard error of their difference over seeds; None with one.
      reference_right, private_right: seeds that classify it correctly.
      taken_for: the class that most private seeds predict; None where it is the right one, and with
        several labels.
    """

    id: str
    classes: tuple[int, ...]
    judged: int
    reference: float
    private: float
    error: float | None
    reference_right: int
    private_right: int
    taken_for: int | None

    @property
    def drop(self) -> float:
        return self.reference - self.private


@dataclass(frozen=True, kw_only=True)
class CostlyRows:
    """The rows that a private cell costs most, the costliest first.

    Attributes:
      average: the drop of all rows and labels.
      unseen: the mean drop of rows so chosen on a seed that took no part in the choice; None with
        one seed.
    """

    seeds: int
    average: float
    unseen: float | None
    rows: tuple[CostlyRow, ...]


def compared_cells(cells: Sequence[CellFile]) -> list[tuple[CellFile, CellFile | None]]:
    """Returns the best private cell of each finite epsilon, rising, beside one without privacy.

    Cells whose scores are no logits have no probabilities and are left out. The other one is the
    non-private ceiling on the same backbone, where there is none the same method at epsilon inf;
    None where there is neither.
    """
    usable = [(path, cell) for path, cell in cells if link_of(cell) != "none"]
    best = sorted(best_private_cells(usable), key=lambda item: item[1].cell.epsilon_value)
    return [((path, cell), _find_reference(cell, usable)) for path, cell in best]


def _find_reference(private: CellRecord, cells: Sequence[CellFile]) -> CellFile | None:
    beside = [
        (path, cell)
        for path, cell in cells
        if cell.cell.backbone == private.cell.backbone and not cell.guaranteed
    ]
    ceilings = [item for item in beside if item[1].is_ceiling]
    same = [item for item in beside if item[1].cell.method == private.cell.method]
    return max(ceilings or same, key=lambda item: item[1].mean, default=None)


def link_of(record: CellRecord) -> Link:
    """Returns the function that makes probabilities of a cell's scores; none for no logits."""
    return method_options(record.options).link_on(record.multi_label)


def row_probabilities(path: Path, record: CellRecord) -> RowProbabilities:
    """Reads a cell's predictions, a block at a time.

    Args:
      path: metrics.json of a cell whose scores are logits.

    Raises:
      DataError: when the predictions cannot be read, are not all of the cell, or not finite.
    """
    path, rows = check_file(path.with_name(PREDICTIONS_FILE)), record.rows.test
    several, softened = record.multi_label, link_of(record) == "softmax"
    ids: list[str] = []
    labels, right, predicted = [], [], []
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(READ_ROWS, columns=["id", "label", "scores"]):
                if len(ids) < rows:
                    ids += batch["id"].to_pylist()
                scores = _read_matrix(batch["scores"], len(record.class_names)).astype(np.float64)
                chances = softmax(scores, axis=1) if softened else expit(scores)
                if several:
                    label = _read_matrix(batch["label"], len(record.class_names)) != 0
                    right.append(np.where(label, chances, 1 - chances))
                else:
                    label = batch["label"].to_numpy()
                    right.append(chances[np.arange(len(label)), label])
                    predicted.append(scores.argmax(axis=1))
                labels.append(label)
    except (OSError, ValueError) as error:
        line = str(error).splitlines()[0]
        raise DataError(f"{path}: unreadable ({line}); delete the cell and run again") from None
    joined = np.concatenate(right) if right else np.empty(0)
    seeds = len(record.seeds)
    if len(joined) != seeds * rows or not np.isfinite(joined).all():
        raise DataError(f"{path}: not {seeds} seeds of {rows} finite rows; run the cell again")
    return RowProbabilities(
        ids=ids[:rows],
        labels=np.concatenate(labels)[:rows],
        right=joined.reshape(seeds, rows, *joined.shape[1:]),
        predicted=np.concatenate(predicted).reshape(seeds, rows) if predicted else None,
    )


def _read_matrix(column: object, width: int) -> np.ndarray:
    """Returns a column of lists as [rows, width]."""
    values = column.flatten().to_numpy(zero_copy_only=False)  # type: ignore[attr-defined]
    return np.asarray(values).reshape(-1, width)


def costly_rows(
    reference: RowProbabilities, private: RowProbabilities, *, count: int
) -> CostlyRows:
    """Finds the rows whose right label loses most probability, means over pairs of seeds.

    With several labels per example, a row is ranked by the label that loses most. Ties keep their
    order.

    Raises:
      DataError: when the two cells were tested on different rows.
    """
    if reference.ids != private.ids or not np.array_equal(reference.labels, private.labels):
        raise DataError("two cells of a dataset were tested on different rows; run the study again")
    seeds = min(len(reference.right), len(private.right))
    # [S, m, K]: with one label per example there is one to judge
    before = reference.right[:seeds].reshape(seeds, len(private.ids), -1)
    after = private.right[:seeds].reshape(before.shape)
    drops = before - after
    rows, judged = _find_largest(drops.mean(axis=0), count)
    errors = drops.std(axis=0, ddof=1) / np.sqrt(seeds) if seeds > 1 else None
    made = []
    for row, label in zip(rows.tolist(), judged.tolist(), strict=True):
        several = private.labels.ndim == 2
        known = np.flatnonzero(private.labels[row]) if several else [private.labels[row]]
        made.append(
            CostlyRow(
                id=private.ids[row],
                classes=tuple(int(value) for value in known),
                judged=label if several else int(private.labels[row]),
                reference=float(before[:, row, label].mean()),
                private=float(after[:, row, label].mean()),
                error=None if errors is None else float(errors[row, label]),
                reference_right=_seeds_right(reference, row, label, seeds),
                private_right=_seeds_right(private, row, label, seeds),
                taken_for=_taken_for(private, row, seeds),
            )
        )
    return CostlyRows(
        seeds=seeds,
        average=float(drops.mean()),
        unseen=_unseen_drop(drops, count) if seeds > 1 else None,
        rows=tuple(made),
    )


def _find_largest(drops: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of [m, K] with the largest values, and the column of each one's largest."""
    rows = np.argsort(-drops.max(axis=1), kind="stable")[:count]
    return rows, drops[rows].argmax(axis=1)


def _unseen_drop(drops: np.ndarray, count: int) -> float:
    """Returns the mean drop, in each seed, of the rows and labels that the other seeds choose."""
    total, seeds = drops.sum(axis=0), len(drops)
    means = []
    for left_out in drops:
        rows, judged = _find_largest((total - left_out) / (seeds - 1), count)
        means.append(left_out[rows, judged].mean())
    return float(np.mean(means))


def _seeds_right(cell: RowProbabilities, row: int, label: int, seeds: int) -> int:
    if cell.predicted is None:
        return int(np.sum(cell.right[:seeds, row, label] > 0.5))
    return int(np.sum(cell.predicted[:seeds, row] == cell.labels[row]))


def _taken_for(cell: RowProbabilities, row: int, seeds: int) -> int | None:
    if cell.predicted is None:
        return None
    most = int(np.bincount(cell.predicted[:seeds, row]).argmax())
    return None if most == int(cell.labels[row]) else most
