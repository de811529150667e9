"""Confusion counts and their table."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, multilabel_confusion_matrix

from dpprobe.results.confusion import (
    confusion_csv,
    count_confusion,
    label_confusion,
    label_confusion_csv,
)
from tests.support.cell_files import write_predictions


def test_counts_are_scikit_learns_over_all_seeds(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(5, size=300)
    scores = generator.normal(size=(3, 300, 5)) + 2 * np.eye(5)[labels]
    path = tmp_path / "predictions.parquet"
    write_predictions(path, scores, labels)
    expected = sum(confusion_matrix(labels, seed.argmax(1), labels=range(5)) for seed in scores)
    np.testing.assert_array_equal(count_confusion(path, 5), expected)


@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_labels_counts_are_scikit_learns(tmp_path: Path, threshold: float) -> None:
    generator = np.random.default_rng(1)
    labels = (generator.random((200, 4)) < 0.3).astype(np.int8)
    scores = generator.normal(size=(2, 200, 4)) + labels
    path = tmp_path / "predictions.parquet"
    write_predictions(path, scores, labels)
    every = np.concatenate([labels, labels])
    predicted = (np.concatenate(list(scores)) > threshold).astype(int)
    matrices = multilabel_confusion_matrix(every, predicted)
    expected = np.stack([matrices[:, 1, 1], matrices[:, 0, 1], matrices[:, 1, 0],
                         matrices[:, 0, 0]], axis=1)  # fmt: skip
    counts = label_confusion(path, 4, threshold=threshold)
    np.testing.assert_array_equal(counts, expected)
    rows = list(csv.DictReader(io.StringIO(label_confusion_csv(counts, list("abcd")))))
    assert int(rows[2]["false_negative"]) == counts[2, 2]


def test_the_table_reads_back() -> None:
    counts = np.array([[3, 1], [0, 9]])
    rows = list(csv.reader(io.StringIO(confusion_csv(counts, ['a "quoted", name', "b"]))))
    assert rows[0][1:] == ['a "quoted", name', "b"]
    assert rows[1] == ['a "quoted", name', "3", "1"]
