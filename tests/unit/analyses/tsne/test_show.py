"""t-SNE figures: classes, legends, notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from dpprobe.analyses.tsne import show
from dpprobe.analyses.tsne.show import tsne_figure, tsne_grid
from dpprobe.exhibits.class_colours import CLASS_COLOURS
from tests.support.figures import legend_words, read_words, save_bytes, write_embedding


def test_tsne_figure_names_classes_and_says_what_it_keeps(tmp_path: Path) -> None:
    path = write_embedding(tmp_path / "e.parquet", classes=10)
    figure: Any = tsne_figure(path, title="digits, pixels")
    words = read_words(figure)
    assert "digits, pixels" in words
    assert "PCA (50) 97%, t-SNE 61%" in words
    assert "300 of 600 rows, perplexity 30. " in words
    assert legend_words(figure) == [f"class {index}" for index in range(10)]


def test_a_class_is_named_at_one_of_its_own_points() -> None:
    # Two clusters of one class: the median lies between them, in another class.
    plane = np.array([[0.0, 0.0], [0.1, 0.0], [10.0, 0.0], [10.1, 0.0], [5.0, 0.0], [5.1, 0.0]])
    labels = np.array([0, 0, 0, 0, 1, 1])
    few = Figure().add_subplot()
    show._draw_plane(few, plane, labels, ["split", "between", "absent"], legend="class")
    assert not few.texts, "a name would hide one of six points"
    plane, labels = np.tile(plane, (10, 1)), np.tile(labels, 10)
    axes = Figure().add_subplot()
    show._draw_plane(axes, plane, labels, ["split", "between", "absent"], legend="class")
    places = {text.get_text(): text.get_position() for text in axes.texts}
    assert places.keys() == {"split", "between"}
    assert places["split"] in {tuple(point) for point in plane[labels == 0]}


def test_many_classes_share_a_colour_bar(tmp_path: Path) -> None:
    path = write_embedding(tmp_path / "e.parquet", classes=21)
    words = read_words(tsne_figure(path))
    assert "class index (of 21)" in words
    assert "class 3" not in words
    for classes in (3, 25):
        path = write_embedding(tmp_path / "e.parquet", classes=classes, legend="positive labels")
        words = read_words(tsne_figure(path))
        assert "positive labels" in words
        assert "class index" not in words


def test_an_embedding_without_points_shows_its_note(tmp_path: Path) -> None:
    note = "no points: the features of all 40 rows are equal"
    path = write_embedding(
        tmp_path / "e.parquet", classes=2, rows=0, method=None, note=note, perplexity=None,
        pca_agreement=None, tsne_agreement=None, components=None, neighbours=None,
    )  # fmt: skip
    figure: Any = tsne_figure(path, title="digits, pixels")
    words = read_words(figure)
    assert note in words
    assert "digits, pixels" in words
    assert "perplexity" not in words
    save_bytes(figure, tmp_path / "a")


def test_classes_after_the_tenth_are_triangles(tmp_path: Path) -> None:
    figure: Any = tsne_figure(write_embedding(tmp_path / "e.parquet", classes=12))
    (axes,) = figure.get_axes()
    (points,) = axes.collections
    faces: Any = points.get_facecolor()
    colours = {
        to_hex(face[:3]).upper(): np.shape(path.vertices)
        for face, path in zip(faces, points.get_paths(), strict=True)
    }
    assert set(colours) == set(CLASS_COLOURS[:12])
    triangle = {colours[colour] for colour in CLASS_COLOURS[10:12]}
    circle = {colours[colour] for colour in CLASS_COLOURS[:10]}
    assert len(triangle) == len(circle) == 1
    assert triangle != circle
    handles: list[Any] = figure.legends[0].legend_handles
    assert [line.get_marker() for line in handles] == ["o"] * 10 + ["^"] * 2


def test_the_grid_of_embeddings_says_what_it_shows(tmp_path: Path) -> None:
    embeddings = {
        (dataset, backbone): write_embedding(
            tmp_path / f"{dataset}_{backbone}", classes=classes, seed=7, tsne_agreement=kept
        )
        for dataset, classes in (("few", 4), ("many", 100))
        for backbone, kept in (("clip", 0.614), ("vit", 0.5))
    }
    del embeddings["many", "vit"]
    figure: Any = tsne_grid(embeddings, split="train")
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes]
    assert [title for title in titles if title] == ["clip, 61%", "vit, 50%", "clip, 61%"]
    assert [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()] == [
        "few train", "many train",
    ]  # fmt: skip
    below = [axes.get_xlabel() for axes in figure.axes]
    assert below.count("300 of 600 rows, sampled with seed 7") == 2
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    assert [[text.get_text() for text in legend.get_texts()] for legend in legends] == [
        [f"class {index}" for index in range(4)]
    ]
