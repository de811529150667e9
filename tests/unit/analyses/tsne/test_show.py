"""t-SNE figures: classes, legends, notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dpprobe.analyses.tsne import show
from dpprobe.analyses.tsne.show import tsne_figure, tsne_grid
from tests.support.figures import legend_words, read_words, write_embedding


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
