"""Backbones compared: with and without privacy, and by the size of images."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpprobe.errors import NothingToShow
from dpprobe.exhibits import published
from dpprobe.reporting.figures.backbones import (
    backbone_figure,
    resolution_figure,
)
from dpprobe.results.cell_results import CellResult
from tests.support.figures import drawn_bars, drawn_curves, legend_texts, tick_texts
from tests.support.made_grids import made_ceiling, made_result


def _cells() -> list[CellResult]:
    """Returns cells: `large` lacks epsilon 0.5, and another non-private head beats its ceiling."""
    return [
        made_result(0.5, 0.5, backbone="small"),
        made_result(0.6, 0.5, backbone="small", method="b"),
        made_result(0.7, 8.0, backbone="small"),
        made_ceiling(0.75, backbone="small"),
        made_result(0.9, 8.0, backbone="large", low=None, high=None),
        made_result(0.97, math.inf, backbone="large"),
        made_ceiling(0.95, backbone="large"),
        made_result(0.4, 8.0, backbone="alone"),
    ]


def _hollow(axes: Any) -> list[tuple[float, float]]:
    """Returns percent and position of each published result."""
    lines = [line for line in axes.get_lines() if line.get_color() == "none"]
    return [(float(x), float(y)) for line in lines for x, y in line.get_xydata()]


def test_each_backbone_has_its_best_with_and_without_privacy_and_the_gap() -> None:
    figure = backbone_figure(_cells(), dataset="digits")
    (axes,) = figure.axes
    bars = drawn_bars(axes, across=True)
    found = [(round(place), mean, low, high) for place, mean, low, high in bars]
    assert found == [
        pytest.approx(each)
        for each in (
            (0, 60, 58, 62),
            (0, 70, 68, 72),
            (0, 75, 73, 77),
            (1, 90, 90, 90),  # without an interval
            (1, 97, 95, 99),
            (2, 40, 38, 42),
        )
    ]
    rows = [place for place, *_ in bars[:3]]
    assert rows == sorted(rows), "smaller epsilons above"
    assert len(set(rows)) == 3
    texts = [(text.get_text(), text.get_position()[1]) for text in axes.texts[-3:]]
    assert ("-5.0", 0) in texts
    assert ("-7.0", 1) in texts
    assert not [text for text, place in texts if place == 2], "nothing to compare `alone` with"
    assert tick_texts(axes.yaxis) == ["small", "large", "alone"]
    assert axes.get_xlabel() == "test accuracy (%)"
    assert legend_texts(figure) == ["without privacy", "ε = 0.5", "ε = 8"]


def test_published_models_are_drawn_below_the_cells_with_their_best_results() -> None:
    """Mehta et al. 2022's largest model has 81.4 (table 4) on imagenet; 86.9 without privacy."""
    cells = _cells()
    figure = backbone_figure(
        cells, dataset="mine", published=published.read_published(), name="imagenet"
    )
    (axes,) = figure.axes
    ticks = tick_texts(axes.yaxis)
    assert len(ticks) == 3 + 6
    assert ticks[-1] == "ViT-H/14-4B,\nMehta et al. 2022"
    hollow = _hollow(axes)
    assert {percent for percent, _ in hollow} == {70.6, 68.8, 72.9, 77.3, 80.0, 81.4}
    assert {place for _, place in hollow} == {3, 4, 5, 6, 7, 8}
    assert "-5.5" in {text.get_text() for text in axes.texts}
    assert legend_texts(figure)[-1] == "hollow: published"
    assert "ε = 10" in legend_texts(figure)
    own = backbone_figure(cells, dataset="mine", published=published.read_published())
    assert len(tick_texts(own.axes[0].yaxis)) == 3, "nobody published it"


def _timm(size: int | None, **changes: Any) -> dict[str, Any]:
    preprocessing = {"size": size, "crop_pct": None, "crop": "centre"} | changes
    return {"family": "timm", "model": "vit", "preprocessing": preprocessing}


BACKBONES = {
    "native": _timm(None),
    "b256": _timm(256, crop_pct=0.667),
    "other": _timm(512, crop="inception"),
}
SIZES = {"native": 384, "b256": 256, "other": 512}
SIZED = [
    made_result(mean, epsilon, backbone=backbone, method=method)
    for backbone, means in (("native", (0.5, 0.9)), ("b256", (0.6, 0.4)), ("other", (0.8, 0.8)))
    for method, mean in zip(("sgd", "adam"), means, strict=True)
    for epsilon in (1.0, 8.0)
] + [made_ceiling(0.99, backbone=name) for name in BACKBONES]


@pytest.mark.parametrize(
    ("base", "method", "points"),
    [
        (None, "adam", [(256, 40), (384, 90)]),  # the best on average: 65% against 55%
        ("sgd", "sgd", [(256, 60), (384, 50)]),
        ("absent", "adam", [(256, 40), (384, 90)]),
    ],
)
def test_sizes_of_images_equal_those_of_the_features_and_one_method_is_drawn(
    base: str | None, method: str, points: list[tuple[float, float]]
) -> None:
    figure = resolution_figure(SIZED, backbones=BACKBONES, sizes=SIZES, dataset="digits", base=base)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == f"native, {method}"
    assert drawn_curves(axes, 2) == [[pytest.approx(point) for point in points]] * 2
    assert tick_texts(axes.xaxis) == ["256", "384"]
    assert axes.get_xlabel() == "pixels per side (log scale)"
    assert legend_texts(figure) == ["ε = 1", "ε = 8"]


def test_no_figure_is_drawn_for_a_single_image_size() -> None:
    one = {name: BACKBONES[name] for name in ("native", "other")}
    with pytest.raises(NothingToShow, match="digits: size of images"):
        resolution_figure(SIZED, backbones=one, sizes=SIZES, dataset="digits")
    same = dict.fromkeys(SIZES, 384)  # three settings, but one actual size
    with pytest.raises(NothingToShow):
        resolution_figure(SIZED, backbones=BACKBONES, sizes=same, dataset="digits")
