"""t-SNE figures: classes, legends, notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from dpprobe.analyses.tsne import show
from dpprobe.analyses.tsne.show import tsne_figure, tsne_grid
from dpprobe.exhibits import style
from dpprobe.exhibits.class_colours import CLASS_COLOURS
from tests.support.figures import (
    drawn_figure,
    write_embedding,
)


def test_tsne_figure_names_classes_and_says_what_it_keeps(tmp_path: Path) -> None:
    path = write_embedding(tmp_path / "e.parquet", classes=10)
    for name in ("a", "b"):
        tsne_figure(
            path, svg=tmp_path / f"{name}.svg", png=tmp_path / f"{name}.png", title="digits, pixels"
        )
    text = (tmp_path / "a.svg").read_text()
    assert "digits, pixels" in text
    assert "PCA (50) 97%, t-SNE 61%" in text
    assert "300 of 600 rows, perplexity 30. Not private" in text
    assert all(f"<!-- class {index} -->" in text for index in range(10)), "not in the legend"
    for kind in ("svg", "png"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


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
    tsne_figure(path, svg=tmp_path / "a.svg", png=tmp_path / "a.png")
    text = (tmp_path / "a.svg").read_text()
    assert "class index (of 21)" in text
    assert "<!-- class 3 -->" not in text


def test_an_embedding_without_points_shows_its_note(tmp_path: Path) -> None:
    note = "no points: the features of all 40 rows are equal"
    path = write_embedding(
        tmp_path / "e.parquet", classes=2, rows=0, method=None, note=note, perplexity=None,
        pca_agreement=None, tsne_agreement=None, components=None, neighbours=None,
    )  # fmt: skip
    tsne_figure(path, svg=tmp_path / "a.svg", png=tmp_path / "a.png", title="digits, pixels")
    text = (tmp_path / "a.svg").read_text()
    assert f"<!-- {note} -->" in text
    assert "<!-- digits, pixels" in text
    assert "perplexity" not in text
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (1320, 1080)


@pytest.mark.parametrize("classes", [3, 25])
def test_class_colours_that_are_no_class_are_named(tmp_path: Path, classes: int) -> None:
    path = write_embedding(tmp_path / "e.parquet", classes=classes, legend="positive labels")
    tsne_figure(path, svg=tmp_path / "a.svg", png=tmp_path / "a.png")
    text = (tmp_path / "a.svg").read_text()
    assert "<!-- positive labels -->" in text
    assert "class index" not in text


def test_classes_after_the_tenth_are_triangles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Figure] = []
    monkeypatch.setattr(style, "save_figure", lambda figure, *_: saved.append(figure))
    path = write_embedding(tmp_path / "e.parquet", classes=12)
    tsne_figure(path, svg=tmp_path / "a.svg", png=tmp_path / "a.png")
    (axes,) = saved[0].get_axes()
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
    handles: list[Any] = saved[0].legends[0].legend_handles
    assert [line.get_marker() for line in handles] == ["o"] * 10 + ["^"] * 2


def test_the_grid_of_embeddings_says_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings = {
        (dataset, backbone): write_embedding(
            tmp_path / f"{dataset}_{backbone}", classes=classes, seed=7, tsne_agreement=kept
        )
        for dataset, classes in (("few", 4), ("many", 100))
        for backbone, kept in (("clip", 0.614), ("vit", 0.5))
    }
    del embeddings["many", "vit"]
    figure = drawn_figure(monkeypatch, lambda files: tsne_grid(embeddings, split="train", **files))
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
