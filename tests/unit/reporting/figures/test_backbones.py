"""Backbones beside each other: with and without privacy, and by the size of images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import NothingToShow
from dpprobe.exhibits import published
from dpprobe.reporting.figures.backbones import (
    backbone_figure,
    image_side,
    resolution_figure,
    spread_values,
)
from tests.support.comparison_cells import compared_cells
from tests.support.figures import legend_words, tick_texts


def test_each_backbone_has_its_best_with_and_without_privacy_and_the_gap(tmp_path: Path) -> None:
    cells = compared_cells(tmp_path)
    figure: Any = backbone_figure(cells, dataset="digits")
    (axes,) = figure.axes
    drawn = sorted(float(bar.lines[0].get_ydata()[0]) for bar in axes.containers)
    best = [
        100 * max(c.mean for c in cells if (c.backbone, c.epsilon) == (backbone, epsilon))
        for backbone in ("small", "large")
        for epsilon in (0.1, 1.0, 8.0, math.inf)
    ]
    assert drawn == pytest.approx(sorted(best))
    gaps = [best[2] - best[3], best[6] - best[7]]
    assert tick_texts(axes) == [f"small\n{gaps[0]:+.1f}", f"large\n{gaps[1]:+.1f}"]
    texts = legend_words(figure)
    assert texts == ["without privacy", "ε = 0.1", "ε = 1", "ε = 8"]


def test_a_paper_s_models_stand_beside_them_with_their_best_numbers(tmp_path: Path) -> None:
    cells = compared_cells(tmp_path)
    figure: Any = backbone_figure(
        cells, dataset="mine", published=published.read_published(), name="imagenet"
    )
    (axes,) = figure.axes
    ticks = tick_texts(axes)
    assert len(ticks) == 2 + 6
    assert ticks[-1] == "ViT-H/14-4B,\nMehta et al. 2022\n-5.5", "81.4 of table 4 beside 86.9"
    hollow = {line.get_ydata()[0] for line in axes.get_lines() if line.get_color() == "none"}
    assert hollow == {70.6, 68.8, 72.9, 77.3, 80.0, 81.4}


def test_of_many_values_the_ends_stay() -> None:
    assert spread_values([1, 2, 3], 5) == [1, 2, 3]
    assert spread_values([float(value) for value in range(15)], 5) == [0, 4, 7, 10, 14]


def _timm(size: int | None, **changes: Any) -> dict[str, Any]:
    preprocessing = {"size": size, "crop_pct": None, "crop": "centre"} | changes
    return {"family": "timm", "model": "vit", "preprocessing": preprocessing}


def test_resolutions_are_those_of_the_features_and_one_method_is_drawn(tmp_path: Path) -> None:
    cells = compared_cells(tmp_path, backbones=["native", "b256", "other"])
    backbones = {
        "native": _timm(None),
        "b256": _timm(256, crop_pct=0.667),
        "other": _timm(512, crop="inception"),
    }
    sizes = {"native": 384, "b256": 256, "other": 512}

    def draw(base: str | None = None) -> Any:
        return resolution_figure(
            cells, backbones=backbones, sizes=sizes, dataset="digits", base=base
        )

    (axes,) = draw().axes
    assert axes.get_title(loc="left") == "native, feature_covariance", "the better one"
    assert tick_texts(axes) == ["256", "384"]
    (axes,) = draw(base="sgd").axes
    (line, *_) = [line for line in axes.get_lines() if len(line.get_xdata()) == 2]
    means = {
        cell.backbone: 100 * cell.mean
        for cell in cells
        if (cell.method, cell.epsilon) == ("sgd", 0.1)
    }
    assert list(line.get_ydata()) == [means["b256"], means["native"]]
    del backbones["b256"]
    with pytest.raises(NothingToShow, match="no two values"):
        draw()


@pytest.mark.parametrize(
    "preprocessing", [{"input_size": [3, 224, 224]}, {"size": [224, 224]}, {"size": 224}]
)
def test_every_family_says_the_size_of_its_images(preprocessing: dict[str, Any]) -> None:
    assert image_side({"preprocessing": preprocessing}) == 224
