"""Confusion matrices from a cell's predictions, also as CSV.

Each image counts once, even if patients are known and metrics count each patient once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dpprobe.results.cell_record import check_file
from dpprobe.shown_text import spreadsheet_text

LARGEST = 100  # classes; for more, neither counts nor a figure are made


def count_confusion(predictions: Path, num_classes: int) -> np.ndarray:
    """Counts images with one label, over all seeds: int64 [true class, predicted class]."""
    table = pq.read_table(check_file(predictions), columns=["label", "scores"])
    labels = table["label"].to_numpy()
    scores = _flatten_column(table["scores"]).reshape(len(labels), num_classes)
    pairs = labels * num_classes + scores.argmax(axis=1)
    counts = np.bincount(pairs, minlength=num_classes**2)
    return np.asarray(counts.reshape(num_classes, num_classes), dtype=np.int64)


def label_confusion(predictions: Path, num_classes: int, *, threshold: float) -> np.ndarray:
    """Counts TP, FP, FN and TN over all seeds, for several labels per image: int64 [label, 4].

    A label is predicted if its score is above the threshold.
    """
    table = pq.read_table(check_file(predictions), columns=["label", "scores"])
    rows = table.num_rows
    labels = _flatten_column(table["label"]).reshape(rows, num_classes) > 0
    predicted = _flatten_column(table["scores"]).reshape(rows, num_classes) > threshold
    return np.stack(
        [
            (labels & predicted).sum(0),
            (~labels & predicted).sum(0),
            (labels & ~predicted).sum(0),
            (~labels & ~predicted).sum(0),
        ],
        axis=1,
    )


def confusion_csv(counts: np.ndarray, names: Sequence[str]) -> str:
    return _write_csv(counts, names, "true \\ predicted", names)


def label_confusion_csv(counts: np.ndarray, names: Sequence[str]) -> str:
    kinds = ["true_positive", "false_positive", "false_negative", "true_negative"]
    return _write_csv(counts, names, "label", kinds)


def _flatten_column(column: pa.ChunkedArray) -> np.ndarray:
    arrays = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return np.concatenate(arrays) if arrays else np.empty(0)


def _write_csv(counts: np.ndarray, rows: Sequence[str], title: str, columns: Sequence[str]) -> str:
    names = [[spreadsheet_text(name) for name in group] for group in (rows, columns)]
    table = pd.DataFrame(counts, index=names[0], columns=names[1])
    return table.to_csv(index_label=title, lineterminator="\n")
