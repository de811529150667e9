"""Confusion counts and their table."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import confusion_matrix, multilabel_confusion_matrix

from dpprobe.errors import DataError
from dpprobe.files.plain_files import sha256_file
from dpprobe.results import confusion
from dpprobe.results.cell_record import read_cell
from tests.support.cell_files import write_cell, write_predictions


def test_counts_are_scikit_learns_over_all_seeds(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(5, size=300)
    scores = generator.normal(size=(3, 300, 5)) + 2 * np.eye(5)[labels]
    path = tmp_path / "predictions.parquet"
    write_predictions(path, scores, labels)
    expected = sum(confusion_matrix(labels, seed.argmax(1), labels=range(5)) for seed in scores)
    np.testing.assert_array_equal(confusion.count_confusion(path, 5), expected)


@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_labels_counts_are_scikit_learns(tmp_path: Path, threshold: float) -> None:
    generator = np.random.default_rng(1)
    labels = (generator.random((200, 4)) < 0.3).astype(np.int8)
    scores = (generator.normal(size=(2, 200, 4)) + labels).round(1)  # some equal the threshold
    path = tmp_path / "predictions.parquet"
    write_predictions(path, scores, labels)
    pq.write_table(pq.read_table(path), path, row_group_size=90)
    every = np.concatenate([labels, labels])
    predicted = (np.concatenate(list(scores)) > threshold).astype(int)
    matrices = multilabel_confusion_matrix(every, predicted)
    expected = np.stack(
        [matrices[:, 1, 1], matrices[:, 0, 1], matrices[:, 1, 0], matrices[:, 0, 0]], axis=1
    )
    counts = confusion.label_confusion(path, 4, threshold=threshold)
    np.testing.assert_array_equal(counts, expected)
    rows = list(csv.DictReader(io.StringIO(confusion.label_confusion_csv(counts, list("abcd")))))
    assert int(rows[2]["false_negative"]) == counts[2, 2]


def test_the_confusion_csv_reads_back_and_contains_no_formula() -> None:
    counts = np.array([[3, 1], [0, 9]])
    rows = list(
        csv.reader(io.StringIO(confusion.confusion_csv(counts, ['a "quoted", name', "=1"])))
    )
    assert rows[0][1] == 'a "quoted", name'
    assert not rows[0][2].startswith("=")
    assert rows[1] == ['a "quoted", name', "3", "1"]
    assert rows[2][1:] == ["0", "9"]


def test_predictions_that_changed_after_the_record_are_refused(tmp_path: Path) -> None:
    path = write_cell(tmp_path, seeds=1)
    predictions = path.with_name("predictions.parquet")
    files = {predictions.name: sha256_file(predictions)}
    read_cell(path).model_copy(update={"files": files}).write(path, predictions)
    assert confusion.count_confusion(predictions, 4).sum() == 200
    pq.write_table(pq.read_table(predictions).slice(1), predictions)
    with pytest.raises(DataError, match=r"predictions\.parquet"):
        confusion.count_confusion(predictions, 4)
