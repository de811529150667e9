"""Figures: what is drawn, and that equal inputs give equal files."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image

from dpprobe.artifacts import read_json, write_json, write_table
from dpprobe.errors import DataError
from dpprobe.reporting import figures, published
from dpprobe.reporting.colours import CIRCLES, CLASS_COLOURS, NAMED_CLASSES
from dpprobe.reporting.figures import (
    ceiling_gap,
    epsilon_accuracy,
    method_comparison,
    option_figure,
    tsne_figure,
    tsne_grid,
)
from dpprobe.results.cell_results import read_measured
from dpprobe.results.summary import read_grid, summarise_cells
from tests.support.cell_files import write_cell, write_study


def _summary(
    root: Path,
    *,
    backbones: Sequence[str] = ("pixels", "scattering"),
    methods: Sequence[str] = ("sgd", "sgd_full", "nonprivate"),
    epsilons: Sequence[str] = ("0.5", "1", "8", "inf"),
) -> Path:
    cells = write_study(root, backbones=backbones, methods=methods, epsilons=epsilons)
    summarise_cells(cells, root / "summary.parquet", study="study")
    return root / "summary.parquet"


def _axes(summary: Path) -> Any:
    axes = Figure().add_subplot()
    figures._draw_curves(axes, read_grid([summary]), "digits")
    return axes


def _embedding(path: Path, *, classes: int, rows: int = 300, **changes: Any) -> Path:
    generator = np.random.default_rng(0)
    labels = generator.integers(classes, size=rows)
    plane = generator.normal(size=(rows, 2)) + 8 * generator.normal(size=(classes, 2))[labels]
    facts = {
        "format": "dpprobe-embedding", "format_version": 1, "rows": 2 * rows, "points": rows,
        "class_names": [f"class {index}" for index in range(classes)], "perplexity": 30.0,
        "neighbours": 15, "components": 50, "pca_agreement": 0.973, "tsne_agreement": 0.614,
    }  # fmt: skip
    facts |= changes
    table = pa.table(
        {
            "id": [str(row) for row in range(rows)],
            "label": labels,
            "x": plane[:, 0].astype(np.float32),
            "y": plane[:, 1].astype(np.float32),
        }
    )
    write_table(path, table.replace_schema_metadata({b"dpprobe": json.dumps(facts).encode()}))
    return path


def test_accuracy_figure_is_two_files_that_can_be_opened(tmp_path: Path) -> None:
    svg, png = tmp_path / "a.svg", tmp_path / "a.png"
    epsilon_accuracy(_summary(tmp_path), svg=svg, png=png)
    with Image.open(png) as image:
        assert image.size == (1440, 860)
    text = svg.read_text()
    for name in ("pixels", "scattering", "sgd", "sgd_full", "non-private ceiling", "digits"):
        assert f"<!-- {name}" in text, name
    assert "nonprivate" not in text


def test_equal_summaries_give_equal_bytes(tmp_path: Path) -> None:
    summary = _summary(tmp_path)
    for name in ("a", "b"):
        epsilon_accuracy(summary, svg=tmp_path / f"{name}.svg", png=tmp_path / f"{name}.png")
    for kind in ("svg", "png"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert "<dc:date>" not in (tmp_path / "a.svg").read_text()


def test_curves_stand_at_the_logarithm_of_epsilon(tmp_path: Path) -> None:
    summary = _summary(tmp_path)
    grid = read_grid([summary])
    axes = _axes(summary)
    curves = [line for line in axes.get_lines() if len(line.get_xdata()) == 3]
    assert len(curves) == 4
    wanted = {
        tuple(grid.entries["digits", e, backbone, method].mean for e in (0.5, 1.0, 8.0))
        for backbone in ("pixels", "scattering")
        for method in ("sgd", "sgd_full")
    }
    for line in curves:
        assert np.allclose(line.get_xdata(), np.log10([0.5, 1, 8]))
        assert tuple(line.get_ydata()) in wanted
    assert [label.get_text() for label in axes.get_xticklabels()][:3] == ["0.5", "1", "8"]
    assert axes.get_xticklabels()[3].get_text().startswith("∞")
    assert axes.get_xticks()[3] > math.log10(8)


def test_each_backbone_has_its_ceiling_and_its_bands(tmp_path: Path) -> None:
    summary = _summary(tmp_path)
    grid = read_grid([summary])
    axes = _axes(summary)
    ceilings = {
        to_hex(line.get_color()): line.get_ydata()[0]
        for line in axes.get_lines()
        if list(line.get_xdata()) == [0, 1] and line.get_ydata()[0] == line.get_ydata()[1]
    }
    expected = [
        grid.entries["digits", math.inf, backbone, "nonprivate"].mean
        for backbone in ("pixels", "scattering")
    ]
    assert list(ceilings) == [colour.lower() for colour in figures.COLOURS[:2]]
    assert list(ceilings.values()) == expected
    bands = [item for item in axes.collections if len(item.get_paths()[0].vertices) > 6]
    entry = grid.entries["digits", 0.5, "pixels", "sgd"]
    heights = bands[0].get_paths()[0].vertices[:, 1]
    assert len(bands) == 4
    assert heights.min() == pytest.approx(entry.low)


def test_fifteen_curves_differ_in_colour_or_style(tmp_path: Path) -> None:
    backbones = ("a", "b", "c", "d", "e")
    methods = ("sgd", "adam", "least_squares")
    axes = _axes(
        _summary(tmp_path, backbones=backbones, methods=methods, epsilons=("0.1", "1", "10"))
    )
    looks = {(line.get_color(), line.get_marker()) for line in axes.get_lines()}
    assert len(looks) == 15


def test_with_one_backbone_methods_have_the_colours(tmp_path: Path) -> None:
    methods = tuple(f"method{number}" for number in range(10))
    axes = _axes(_summary(tmp_path, backbones=("a",), methods=methods, epsilons=("0.1", "1")))
    colours = [to_hex(line.get_color()) for line in axes.get_lines()]
    assert len(set(colours)) == 10
    figure = axes.get_figure()
    assert figure is not None
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[:2] == ["Backbone", "a"]


@pytest.mark.parametrize("epsilons", [("inf",), ("1",), ("0.001", "1000", "inf")])
def test_few_or_far_epsilons_are_drawn(tmp_path: Path, epsilons: Sequence[str]) -> None:
    summary = _summary(tmp_path, epsilons=epsilons)
    epsilon_accuracy(summary, svg=tmp_path / "a.svg", png=tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_the_accuracy_axis_ends_at_a_hundred_percent(tmp_path: Path) -> None:
    cells = [write_cell(tmp_path, epsilon=epsilon, quality=9.0) for epsilon in ("1", "8", "inf")]
    for cell in cells:
        record = read_json(cell)
        record["summary"]["accuracy"] |= {"low": 0.9, "high": 1.2}
        write_json(cell, record)
    summarise_cells(cells, tmp_path / "summary.parquet", study="study")
    assert _axes(tmp_path / "summary.parquet").get_ylim()[1] == figures.TOP


def test_many_cells_at_infinity_have_more_room(tmp_path: Path) -> None:
    def room(root: Path, backbones: Sequence[str]) -> float:
        ticks = _axes(_summary(root, backbones=backbones)).get_xticks()
        return float(ticks[-1] - ticks[-2])

    assert room(tmp_path / "many", "abcdefg") > 1.3 * room(tmp_path / "few", "ab")


def test_labels_that_would_overlap_are_left_out(tmp_path: Path) -> None:
    epsilons = ("0.01", "1", "1.1", "1.2", "10")
    axes = _axes(_summary(tmp_path, backbones=["pixels"], methods=["sgd"], epsilons=epsilons))
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["0.01", "1", "", "", "10"]


def test_two_datasets_in_one_figure_are_refused(tmp_path: Path) -> None:
    cells = [write_cell(tmp_path), write_cell(tmp_path, dataset="another")]
    summarise_cells(cells, tmp_path / "summary.parquet", study="study")
    with pytest.raises(DataError, match="2 datasets"):
        epsilon_accuracy(
            tmp_path / "summary.parquet", svg=tmp_path / "a.svg", png=tmp_path / "a.png"
        )


def test_tsne_figure_names_classes_and_says_what_it_keeps(tmp_path: Path) -> None:
    path = _embedding(tmp_path / "e.parquet", classes=10)
    for name in ("a", "b"):
        tsne_figure(
            path, svg=tmp_path / f"{name}.svg", png=tmp_path / f"{name}.png", title="digits, pixels"
        )
    text = (tmp_path / "a.svg").read_text()
    assert "digits, pixels" in text
    assert "PCA (50) 97 %, t-SNE 61 %" in text
    assert "300 of 600 rows, perplexity 30. Not private" in text
    assert all(f"<!-- class {index} -->" in text for index in range(10)), "not in the legend"
    for kind in ("svg", "png"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_a_class_is_named_at_one_of_its_own_points() -> None:
    # Two clusters of one class: the median lies between them, in another class.
    plane = np.array([[0.0, 0.0], [0.1, 0.0], [10.0, 0.0], [10.1, 0.0], [5.0, 0.0], [5.1, 0.0]])
    labels = np.array([0, 0, 0, 0, 1, 1])
    few = Figure().add_subplot()
    figures._draw_plane(few, plane, labels, ["split", "between", "absent"])
    assert not few.texts, "a name would hide one of six points"
    plane, labels = np.tile(plane, (10, 1)), np.tile(labels, 10)
    axes = Figure().add_subplot()
    figures._draw_plane(axes, plane, labels, ["split", "between", "absent"])
    places = {text.get_text(): text.get_position() for text in axes.texts}
    assert places.keys() == {"split", "between"}
    assert places["split"] in {tuple(point) for point in plane[labels == 0]}


def test_many_classes_share_a_colour_bar(tmp_path: Path) -> None:
    path = _embedding(tmp_path / "e.parquet", classes=21)
    tsne_figure(path, svg=tmp_path / "a.svg", png=tmp_path / "a.png")
    text = (tmp_path / "a.svg").read_text()
    assert "class index (of 21)" in text
    assert "<!-- class 3 -->" not in text


def test_principal_components_are_not_called_tsne(tmp_path: Path) -> None:
    note = "5 rows are too few for t-SNE: first two principal components (PCA)"
    path = _embedding(
        tmp_path / "e.parquet", classes=2, rows=5, method="PCA", note=note, perplexity=None,
        pca_agreement=None, tsne_agreement=None, components=2, neighbours=None,
    )  # fmt: skip
    tsne_figure(path, svg=tmp_path / "a.svg", png=tmp_path / "a.png", title="digits, pixels")
    text = (tmp_path / "a.svg").read_text()
    assert "<!-- digits, pixels (PCA, not t-SNE)" in text
    assert f"<!-- {note} -->" in text
    assert "5 of 10 rows. Not private" in text


def test_an_embedding_without_points_shows_its_note(tmp_path: Path) -> None:
    note = "no points: the features of all 40 rows are equal"
    path = _embedding(
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
def test_colours_that_are_no_class_are_named(tmp_path: Path, classes: int) -> None:
    path = _embedding(tmp_path / "e.parquet", classes=classes, legend="positive labels")
    tsne_figure(path, svg=tmp_path / "a.svg", png=tmp_path / "a.png")
    text = (tmp_path / "a.svg").read_text()
    assert "<!-- positive labels -->" in text
    assert "class index" not in text


def test_a_mean_that_rounding_puts_past_its_interval_is_drawn(tmp_path: Path) -> None:
    cell = write_cell(tmp_path, epsilon="inf")
    record = read_json(cell)
    mean = float(np.mean([100 * seed["accuracy"] for seed in record["seeds"]])) / 100
    record["summary"]["accuracy"] |= {"low": mean + 1e-12, "high": mean + 1e-12}
    write_json(cell, record)
    summarise_cells([cell], tmp_path / "summary.parquet", study="study")
    epsilon_accuracy(tmp_path / "summary.parquet", svg=tmp_path / "a.svg", png=tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_delta_is_written_as_a_power_of_ten() -> None:
    assert figures._power(1e-5) == "10⁻⁵"
    assert figures._power(8e-7) == "8 × 10⁻⁷"
    assert figures._power(1.25e-10) == "1.25 × 10⁻¹⁰"


# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as seen.
VISION = {
    "full": np.eye(3),
    "protan": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                        [-0.003882, -0.048116, 1.051998]]),
    "deutan": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                        [-0.011820, 0.042940, 0.968881]]),
    "tritan": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                        [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip


def lab(colours: Sequence[str], vision: np.ndarray) -> np.ndarray:
    """CIELAB (D65) of colours as somebody sees them, [n, 3]."""
    rgb = np.array([to_rgb(colour) for colour in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                       [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip
    xyz = np.clip(linear @ vision.T, 0, 1) @ to_xyz.T / (0.95047, 1.0, 1.08883)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = f.T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("first", [0, CIRCLES])
def test_classes_of_one_marker_differ_in_colour_to_everybody(vision: str, first: int) -> None:
    seen = lab(CLASS_COLOURS[first : first + CIRCLES], VISION[vision])
    distances = np.linalg.norm(seen[:, None] - seen, axis=2)[np.triu_indices(CIRCLES, 1)]
    assert len(seen) == CIRCLES
    assert distances.min() > 20
    assert seen[:, 0].max() < 88, "seen on white"


def test_classes_after_the_tenth_are_triangles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Figure] = []
    monkeypatch.setattr(figures, "_save", lambda figure, *_: saved.append(figure))
    path = _embedding(tmp_path / "e.parquet", classes=12)
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


def test_colours_are_distinct() -> None:
    assert len(set(figures.COLOURS)) == len(figures.COLOURS)
    assert len(set(CLASS_COLOURS)) == NAMED_CLASSES == 20
    assert len({repr(style) for style in figures.STYLES}) == len(figures.STYLES)


def test_the_axis_names_the_metric_that_is_drawn(tmp_path: Path) -> None:
    assert _axes(_summary(tmp_path / "a")).get_ylabel() == "test accuracy (%)"
    names = ("round", "even", "absent")
    cells = write_study(tmp_path / "b", methods=["sgd"], multi_label=True, class_names=names)
    summarise_cells(cells, tmp_path / "summary.parquet", study="study")
    axes = _axes(tmp_path / "summary.parquet")
    assert axes.get_ylabel() == "test mean AUC over 2 of 3 labels (%)"
    record = read_json(cells[0])
    drawn = [value for line in axes.get_lines() for value in line.get_ydata()]
    assert any(value == pytest.approx(100 * record["summary"]["auc"]["mean"]) for value in drawn)


def _titles(axes: Any) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def _figure(monkeypatch: pytest.MonkeyPatch, draw: Callable[[dict[str, Path]], None]) -> Any:
    """What a function would have saved."""
    saved: list[Figure] = []

    def save(figure: Figure, _svg: Path, _png: Path) -> None:
        saved.append(figure)

    monkeypatch.setattr(figures, "_save", save)
    draw({"svg": Path("unused.svg"), "png": Path("unused.png")})
    (figure,) = saved
    return figure


def test_published_points_stand_where_they_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = _summary(tmp_path)
    found = published.read()
    figure = _figure(
        monkeypatch,
        lambda files: epsilon_accuracy(summary, published=found, name="cifar10", **files),
    )
    (axes,) = figure.axes
    lines = axes.get_lines()
    circles = [line for line in lines if line.get_markersize() == 9.5]
    leads = {
        (line.get_xdata()[1], line.get_ydata()[1]): (line.get_xdata()[0], line.get_ydata()[0])
        for line in lines
        if line.get_markersize() == 3
    }
    places = [(line.get_xdata()[0], line.get_ydata()[0]) for line in circles]
    points = found.points("cifar10", "accuracy")
    # where one had to give way, a line leads to where it belongs
    assert sorted(leads.get(place, place) for place in places) == sorted(
        (math.log10(point.single_epsilon or 0), point.value) for point in points
    )
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "Published" in texts
    assert "1  Luo et al. 2021, CNN (ε 0.5)" in texts
    assert sum(text[0].isdigit() for text in texts if text) == len(points)
    low, high = axes.get_ylim()
    assert low < 44.3
    assert high >= 94


def test_numbered_circles_do_not_hide_each_other() -> None:
    size = (0.1, 1.0)
    placed: list[tuple[float, float]] = []
    for _ in range(9):
        placed.append(figures._free_place((1.0, 99.5), placed, size, top=100.0))
    assert placed[0] == (1.0, 99.5)
    for index, (x, y) in enumerate(placed):
        assert y <= 100
        for other_x, other_y in placed[:index]:
            assert abs(x - other_x) > 0.09 or abs(y - other_y) > 0.9
    assert max(abs(y - 99.5) for _, y in placed) <= 2


def test_unknown_datasets_have_no_published_points(tmp_path: Path) -> None:
    summary = _summary(tmp_path)
    for name, read in (("a", None), ("b", published.read())):
        epsilon_accuracy(
            summary, published=read, svg=tmp_path / f"{name}.svg", png=tmp_path / f"{name}.png"
        )
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_methods_are_compared_a_panel_a_backbone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = _summary(tmp_path)
    grid = read_grid([summary])
    figure = _figure(monkeypatch, lambda files: method_comparison(summary, **files))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["pixels", "scattering"]
    for axes, backbone in zip(figure.axes, ("pixels", "scattering"), strict=True):
        curves = [line for line in axes.get_lines() if len(line.get_xdata()) == 3]
        assert [tuple(line.get_ydata()) for line in curves] == [
            tuple(grid.entries["digits", e, backbone, method].mean for e in (0.5, 1.0, 8.0))
            for method in ("sgd", "sgd_full")
        ]
        assert len({line.get_color() for line in curves}) == 2
        assert _titles(axes) == ["0.5", "1", "8"]
        low, high = axes.get_ylim()
        assert all(low < y < high for line in curves for y in line.get_ydata())


def test_the_gap_is_what_the_ceiling_has_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = _summary(tmp_path)
    grid = read_grid([summary])
    figure = _figure(monkeypatch, lambda files: ceiling_gap(summary, **files))
    axes = figure.axes[1]
    ceiling = grid.entries["digits", math.inf, "scattering", "nonprivate"].mean
    curve = next(line for line in axes.get_lines() if len(line.get_xdata()) == 3)
    private = [grid.entries["digits", e, "scattering", "sgd"].mean for e in (0.5, 1.0, 8.0)]
    assert np.allclose(curve.get_ydata(), [ceiling - value for value in private])
    assert any(list(line.get_ydata()) == [0, 0] for line in axes.get_lines())


def test_many_methods_look_different_and_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = [f"method_{index:02}" for index in range(27)]
    summary = _summary(tmp_path, backbones=("pixels",), methods=methods, epsilons=("1", "8"))
    for draw in (method_comparison, epsilon_accuracy):
        figure = _figure(monkeypatch, functools.partial(_with_files, draw, summary))
        looks = {
            (line.get_color(), line.get_linestyle(), line.get_marker())
            for line in figure.axes[0].get_lines()
            if len(line.get_xdata()) == 2
        }
        assert len(looks) == len(methods)
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1 + 1


def _with_files(draw: Callable[..., None], summary: Path, files: dict[str, Path]) -> None:
    draw(summary, **files)


def test_without_a_ceiling_there_is_no_gap(tmp_path: Path) -> None:
    summary = _summary(tmp_path, methods=("sgd",))
    with pytest.raises(DataError, match="head: nonprivate"):
        ceiling_gap(summary, svg=tmp_path / "a.svg", png=tmp_path / "a.png")


def _varied(root: Path, option: str, values: Sequence[Any]) -> list[Any]:
    """Cells of methods that differ in one option alone, and of one that differs in two."""
    base: dict[str, Any] = {"head": "sgd", "batch_size": 64, "init": "zero", "init_scale": None}
    options = {}
    for index, value in enumerate(values):
        own = {"init": "scaled" if value else "zero"} if option == "init_scale" else {}
        options[f"m{index}"] = base | own | {option: value or None}
    options["other"] = base | {"batch_size": 17, "max_grad_norm": 3.0}
    paths: list[Path] = []
    for name, own in options.items():
        for epsilon in ("1", "8"):
            paths.append(write_cell(root, method=name, epsilon=epsilon, quality=1 + len(paths) / 9))
            record = read_json(paths[-1])
            record["options"] = own
            write_json(paths[-1], record)
    return read_measured(paths)


@pytest.mark.parametrize(
    ("option", "values", "places", "texts"),
    [
        ("batch_size", [64, 256, "full"], [64, 256, 1000], ["64", "256", "1,000\n(all)"]),
        ("init_scale", [0, 0.01, 1.0], [0.001, 0.01, 1.0], ["0", "0.01", "1"]),
    ],
)
def test_an_option_is_drawn_from_methods_that_differ_in_it_alone(
    option: str,
    values: Sequence[Any],
    places: list[float],
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = _varied(tmp_path, option, values)
    figure = _figure(
        monkeypatch, lambda files: option_figure(cells, option, dataset="digits", **files)
    )
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    curves = [line for line in axes.get_lines() if len(line.get_xdata()) == 3]
    assert len(curves) == 2, "a line an epsilon"
    for line, epsilon in zip(curves, (1.0, 8.0), strict=True):
        assert np.allclose(line.get_xdata(), places)
        own = [cell.mean for cell in cells if cell.epsilon == epsilon and cell.method != "other"]
        assert np.allclose(line.get_ydata(), [100 * value for value in own])
    assert _titles(axes) == texts
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ε = 1", "ε = 8"]


def test_an_option_in_which_no_methods_differ_is_an_error(tmp_path: Path) -> None:
    cells = _varied(tmp_path, "batch_size", [64])
    with pytest.raises(DataError, match="no two methods differ in batch_size alone"):
        option_figure(
            cells, "batch_size", dataset="digits", svg=tmp_path / "a.svg", png=tmp_path / "a.png"
        )


def test_the_grid_of_embeddings_says_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings = {
        (dataset, backbone): _embedding(
            tmp_path / f"{dataset}_{backbone}", classes=classes, seed=7, tsne_agreement=kept
        )
        for dataset, classes in (("few", 4), ("many", 100))
        for backbone, kept in (("clip", 0.614), ("vit", 0.5))
    }
    del embeddings["many", "vit"]
    figure = _figure(monkeypatch, lambda files: tsne_grid(embeddings, split="train", **files))
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes]
    assert [title for title in titles if title] == ["clip, 61 %", "vit, 50 %", "clip, 61 %"]
    assert [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()] == [
        "few train", "many train",
    ]  # fmt: skip
    below = [axes.get_xlabel() for axes in figure.axes]
    assert below.count("300 of 600 rows, sampled with seed 7") == 2
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    assert [[text.get_text() for text in legend.get_texts()] for legend in legends] == [
        [f"class {index}" for index in range(4)]
    ]


def test_every_new_figure_is_the_same_bytes_twice(tmp_path: Path) -> None:
    summary = _summary(tmp_path)
    cells = _varied(tmp_path / "v", "batch_size", [64, 256])
    grid = {("digits", "clip"): _embedding(tmp_path / "e", classes=4, seed=0)}
    found = published.read()
    for name in ("a", "b"):
        for kind, draw in {
            "points": lambda f: epsilon_accuracy(summary, published=found, name="mnist", **f),
            "methods": lambda f: method_comparison(summary, **f),
            "gap": lambda f: ceiling_gap(summary, **f),
            "option": lambda f: option_figure(cells, "batch_size", dataset="digits", **f),
            "grid": lambda f: tsne_grid(grid, split="test", **f),
        }.items():
            folder = tmp_path / kind
            draw({"svg": folder / f"{name}.svg", "png": folder / f"{name}.png"})
    for kind in ("points", "methods", "gap", "option", "grid"):
        for extension in ("svg", "png"):
            first, second = (tmp_path / kind / f"{name}.{extension}" for name in ("a", "b"))
            assert first.read_bytes() == second.read_bytes(), kind
