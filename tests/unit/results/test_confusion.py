"""Confusion counts, their table and their picture."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, multilabel_confusion_matrix

from dpprobe.results.confusion import (
    confusion,
    confusion_csv,
    confusion_svg,
    label_confusion,
    label_confusion_csv,
)
from tests.support.cell_files import _write_predictions

SVG = "{http://www.w3.org/2000/svg}"


def test_counts_are_scikit_learns_over_all_seeds(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(5, size=300)
    scores = generator.normal(size=(3, 300, 5)) + 2 * np.eye(5)[labels]
    path = tmp_path / "predictions.parquet"
    _write_predictions(path, scores, labels)
    expected = sum(confusion_matrix(labels, own.argmax(1), labels=range(5)) for own in scores)
    np.testing.assert_array_equal(confusion(path, 5), expected)


@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_labels_counts_are_scikit_learns(tmp_path: Path, threshold: float) -> None:
    generator = np.random.default_rng(1)
    labels = (generator.random((200, 4)) < 0.3).astype(np.int8)
    scores = generator.normal(size=(2, 200, 4)) + labels
    path = tmp_path / "predictions.parquet"
    _write_predictions(path, scores, labels)
    every = np.concatenate([labels, labels])
    found = (np.concatenate(list(scores)) > threshold).astype(int)
    matrices = multilabel_confusion_matrix(every, found)
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


@pytest.mark.parametrize("classes", [2, 10, 20, 21, 60, 100])
def test_the_picture_is_whole_and_within_its_frame(classes: int) -> None:
    counts = np.random.default_rng(2).integers(0, 50, size=(classes, classes))
    counts[1] = 0
    names = [f"<class & {k}>" * (1 + k % 3) for k in range(classes)]
    root = ET.fromstring(confusion_svg(counts, names, title="a < b"))
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    squares = [s for s in root.iter(f"{SVG}rect") if s.get("fill", "").startswith("#")]
    assert len(squares) == 1 + (counts > 0).sum()
    for square in squares:
        assert float(square.get("x", 0)) + float(square.get("width", 0)) <= width
        assert float(square.get("y", 0)) + float(square.get("height", 0)) <= height
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert "a < b" in texts
    assert ("100" in texts or any(t.isdigit() for t in texts)) == (classes <= 20)


def test_darker_is_more() -> None:
    root = ET.fromstring(confusion_svg(np.array([[9, 1], [5, 5]]), ["a", "b"], title=""))
    fills = [s.get("fill", "") for s in root.iter(f"{SVG}rect")][2:]
    red = [int(fill[1:3], 16) for fill in fills]
    assert red[0] < red[2] == red[3] < red[1]
