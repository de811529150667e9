"""Datasets, deltas and ReaL labels beside each other."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from dpprobe.reporting.figures.datasets import datasets_figure, delta_figure, real_labels_figure
from dpprobe.results.cell_results import CellResult
from tests.support.comparison_cells import compared_cells
from tests.support.figures import legend_words

LONG = "a_hospital_with_a_very_long_name_of_sixty_characters_or_more"


def _curves(axes: object) -> list[list[float]]:
    lines = axes.get_lines()  # type: ignore[attr-defined]
    return [[float(y) for y in line.get_ydata()] for line in lines if len(line.get_xdata()) == 3]


def _means(cells: list[CellResult], **wanted: object) -> list[float]:
    same = [c for c in cells if all(getattr(c, key) == value for key, value in wanted.items())]
    epsilons = sorted({cell.epsilon for cell in same if cell.private})
    return [100 * max(c.mean for c in same if c.epsilon == epsilon) for epsilon in epsilons]


def test_datasets_share_a_panel_and_show_dp_fc(tmp_path: Path) -> None:
    cells = compared_cells(tmp_path, datasets=("cifar10", "imagenet"))
    figure = datasets_figure(cells)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["small", "large"]
    assert _curves(figure.axes[0]) == [
        pytest.approx(_means(cells, dataset=name, backbone="small", method="feature_covariance"))
        for name in ("cifar10", "imagenet")
    ]
    assert "DP-FC" in figure.get_suptitle()
    texts = legend_words(figure)
    assert texts == ["cifar10", "imagenet", "non-private baseline"]


def test_without_dp_fc_the_best_method_is_shown_and_said_to_be_chosen(tmp_path: Path) -> None:
    cells = compared_cells(
        tmp_path, datasets=("a", LONG), backbones=["b"], methods=[f"m{i}" for i in range(40)],
        epsilons=("1",),
    )  # fmt: skip
    figure = datasets_figure(cells)
    title = " ".join(figure.get_suptitle().split())
    assert "best private method at each ε, by test result" in title


def test_what_auto_chose_is_auto_s_line(tmp_path: Path) -> None:
    made = compared_cells(tmp_path, datasets=("a", "b"), methods=["auto"])
    heads = {0.1: "prototypes", 1.0: "feature_covariance", 8.0: "feature_covariance"}
    cells = [
        replace(cell, options={"head": "auto", "chosen": {"head": heads[cell.epsilon]}})
        if cell.private
        else cell
        for cell in made
    ]
    figure = datasets_figure(cells)
    assert "DP-FC" not in figure.get_suptitle()
    assert "auto" in figure.get_suptitle()
    assert _curves(figure.axes[0]), "lines have a point at each of three epsilons"


def test_the_same_images_at_two_deltas_have_a_line_each(tmp_path: Path) -> None:
    deltas = {"imagenet": {"delta": 1e-6}, "imagenet_8e7": {"delta": 8e-7}}
    cells = compared_cells(tmp_path, datasets=tuple(deltas), backbones=["b"], changes=deltas)
    groups = [["imagenet", "imagenet_8e7"]]
    figure = delta_figure(groups, cells)
    texts = legend_words(figure)
    assert texts[:2] == ["δ = 1e-06", "δ = 8e-07"]
    assert len(_curves(figure.axes[0])) == 2


def test_real_labels_have_a_line_beside_the_dataset_s(tmp_path: Path) -> None:
    cells = compared_cells(tmp_path, backbones=["b"], real=0.05)
    figure = real_labels_figure(cells, dataset="imagenet")
    own_labels, real = _curves(figure.axes[0])
    assert own_labels == pytest.approx(_means(cells))
    assert real == pytest.approx([value + 5 for value in own_labels])
    assert math.isclose(cells[0].real.mean, cells[0].mean + 0.05)  # type: ignore[union-attr]
