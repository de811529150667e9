"""Figures of t-SNE: points with the colours of their classes, and what was kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from dpprobe.analyses.tsne.measure import read_embedding
from dpprobe.analyses.tsne.show import plot_tsne, plot_tsne_grid
from dpprobe.exhibits.class_colours import CIRCLES, CLASS_COLOURS
from tests.support.figures import write_embedding
from tests.support.shown import legend_of, texts_of, title_of

EMPTY: dict[str, Any] = {"method": None, "note": "no points: 9 rows", "points": 0}


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


def test_what_was_kept_and_drawn_is_told(tmp_path: Path) -> None:
    names = ["whale", "cat", "dog", "ant"]
    path = write_embedding(tmp_path / "t.parquet", classes=4, seed=3, class_names=names)
    figure = _plot(path)
    axes = figure.axes[0]
    classes = _colours_by_place(path)
    named = {text.get_text(): classes.get(text.get_position()) for text in axes.texts}
    for name, colour in zip(names, CLASS_COLOURS, strict=False):  # at a point of its class
        assert named[name] == to_rgba(colour, 0.75)
    words = str([axes.xaxis.label.get_text(), *texts_of(axes), title_of(axes)])
    assert "300 of 600 rows, sampled with seed 3, perplexity 30." in words
    assert "15 nearest neighbours kept: PCA (50) 97%, t-SNE 61%" in words
    assert "digits test, clip" in words
    whole: dict[str, Any] = {"points": 600, "seed": 3}
    axes = _plot(write_embedding(tmp_path / "w.parquet", classes=4, **whole)).axes[0]
    assert axes.xaxis.label.get_text().startswith("600 of 600 rows, perplexity 30.")


def test_an_embedding_without_points_shows_its_note(tmp_path: Path) -> None:
    figure = _plot(write_embedding(tmp_path / "t.parquet", classes=4, rows=0, **EMPTY))
    assert "no points: 9 rows" in texts_of(figure.axes[0])
    assert legend_of(figure) == []


def test_a_grid_has_a_row_for_each_dataset_and_a_column_for_each_backbone(tmp_path: Path) -> None:
    places = {"digits/pixels": 0.6, "digits/vit": 0.7, "wide/clip": 0.5, "wide/vit": 0.4}
    sizes = {"digits": {"classes": 4, "rows": 300}, "wide": {"classes": 12, "rows": 200}}
    embeddings = [
        write_embedding(tmp_path / place / "t", tsne_agreement=share, **sizes[place.split("/")[0]])
        for place, share in places.items()
    ]
    figure: Any = plot_tsne_grid(embeddings=embeddings, split="train")
    titles = ["pixels, 60%", "vit, 70%", "", "", "vit, 40%", "clip, 50%"]
    assert [title_of(axes) for axes in figure.axes] == titles
    assert [axes.get_subplotspec().colspan.start for axes in figure.axes] == [0, 1, 2] * 2
    rows = [figure.axes[0], figure.axes[3]]
    assert [axes.get_ylabel() for axes in rows] == ["digits train", "wide train"]
    drawn = [axes.xaxis.label.get_text() for axes in rows]
    assert drawn == ["300 of 600 rows", "200 of 400 rows"]
    ends = [axes.get_legend() for axes in (figure.axes[2], figure.axes[5])]
    assert [len(legend.get_texts()) for legend in ends] == [4, 12]
    assert figure.axes[5].xaxis.label.get_text() == "12 classes"
