"""Figures of t-SNE: points have the colour and marker of their class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from dpprobe.analyses.tsne.measure import read_embedding
from dpprobe.analyses.tsne.show import plot_tsne
from dpprobe.exhibits.class_colours import CIRCLES, CLASS_COLOURS
from tests.support.figures import write_embedding


def _plot(path: Path) -> Any:
    return plot_tsne(embedding=path, dataset="digits", backbone="clip", split="test")


def _colours_by_place(path: Path) -> dict[tuple[float, float], Any]:
    table, _ = read_embedding(path)
    rows = zip(*(table[name].to_pylist() for name in ("x", "y", "label")), strict=True)
    return {(x, y): to_rgba(CLASS_COLOURS[label], 0.75) for x, y, label in rows}


def test_each_point_has_the_colour_and_marker_of_its_class(tmp_path: Path) -> None:
    path = write_embedding(tmp_path / "t.parquet", classes=20)
    (points,) = _plot(path).axes[0].collections
    expected = _colours_by_place(path)
    offsets = np.asarray(points.get_offsets(), dtype=np.float32)
    places = [(float(x), float(y)) for x, y in offsets]
    assert set(places) == set(expected)
    for place, colour in zip(places, points.get_facecolors(), strict=True):
        assert tuple(colour) == pytest.approx(expected[place]), place
    table, _ = read_embedding(path)
    triangles = sum(len(each.vertices) < 10 for each in points.get_paths())
    assert triangles == sum(label >= CIRCLES for label in table["label"].to_pylist())
