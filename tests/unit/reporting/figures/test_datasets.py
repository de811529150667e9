"""Datasets, deltas and ReaL labels compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpprobe.reporting.figures.datasets import datasets_figure, delta_figure, real_labels_figure
from dpprobe.results.cell_record import Measure, MetricSummary
from dpprobe.results.cell_results import CellResult
from tests.support.figures import drawn_curves, drawn_levels, legend_texts, tick_texts, title_of
from tests.support.made_grids import made_ceiling, made_result

EPSILONS = (0.5, 2.0, 8.0)
DP_FC = {"head": "feature_covariance", "method": "dp_fc"}


def _line(means: Sequence[float], **changes: Any) -> list[CellResult]:
    return [
        made_result(mean, epsilon, **changes) for mean, epsilon in zip(means, EPSILONS, strict=True)
    ]


def _heights(axes: Any) -> list[list[float]]:
    return [[round(y, 9) for _, y in curve] for curve in drawn_curves(axes, 3)]


def test_datasets_share_a_panel_and_show_dp_fc() -> None:
    cells = [
        *_line([0.9, 0.9, 0.9], dataset="cifar10"),  # better, but another method
        *_line([0.5, 0.6, 0.7], dataset="cifar10", **DP_FC),
        *_line([0.4, 0.5, 0.6], dataset="imagenet", values=(0.5,) * 5, **DP_FC)[::-1],
        *_line([0.3, 0.2, 0.1], dataset="cifar10", backbone="large", **DP_FC)[:2],
        made_result(0.1, 16.0, dataset="cifar10", backbone="large", **DP_FC),
        made_ceiling(0.8, dataset="cifar10"),
        made_ceiling(0.85, dataset="cifar10"),
    ]
    figure = datasets_figure(cells)
    small, large = figure.axes
    assert _heights(small) == [[50, 60, 70], [40, 50, 60]]
    assert _heights(large) == [[30, 20, 10]]
    places = [x for x, _ in drawn_curves(small, 3)[0]]
    assert places == pytest.approx([math.log10(e) for e in EPSILONS])
    assert drawn_levels(small) == [85.0], "the best non-private baseline of cifar10 on pixels"
    assert drawn_levels(large) == []
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["pixels", "large"]
    assert [tick_texts(axes.xaxis) for axes in figure.axes] == [["0.5", "2", "8", "16"]] * 2
    assert "Datasets against epsilon, DP-FC mean of 3 to 5 seeds" in title_of(figure)
    assert legend_texts(figure) == ["cifar10", "imagenet", "non-private baseline"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["test accuracy (%)", ""]


def test_without_dp_fc_on_each_dataset_the_best_method_is_shown_and_said_to_be_chosen() -> None:
    cells = [
        *_line([0.5, 0.6, 0.7], dataset="a", **DP_FC),
        *_line([0.4, 0.7, 0.6], dataset="a", method="m"),
        *_line([0.2, 0.3, 0.4], dataset="b", method="m", measure=Measure(headline="auc")),
    ]
    figure = datasets_figure(cells)
    assert _heights(figure.axes[0]) == [[50, 70, 70], [20, 30, 40]]
    assert "best private method at each ε, by test result" in title_of(figure)
    assert legend_texts(figure) == ["a", "b"], "no ceiling, and no line of one"
    assert figure.axes[0].get_ylabel() == "test accuracy or AUC (%)"
    several = [*cells[:3], *_line([0.6, 0.5, 0.8], dataset="a", **DP_FC | {"method": "other"})]
    chosen = datasets_figure(several)
    assert _heights(chosen.axes[0]) == [[60, 60, 80]]
    assert "best DP-FC at each ε, by test result" in title_of(chosen)


def test_the_same_images_at_two_deltas_have_a_line_each() -> None:
    cells = [
        *_line([0.5, 0.6, 0.7], dataset="a", delta=1e-6),
        *_line([0.4, 0.5, 0.6], dataset="a_8e7", delta=8e-7),
    ]
    one = delta_figure([["a", "a_8e7"]], cells)
    assert legend_texts(one) == ["δ = 1e-06", "δ = 8e-07"]
    assert _heights(one.axes[0]) == [[50, 60, 70], [40, 50, 60]]
    assert "a at several deltas, sgd" in title_of(one)
    two = delta_figure([["a"], ["a_8e7"]], cells)
    assert legend_texts(two) == ["a, δ = 1e-06", "a_8e7, δ = 8e-07"]
    assert "Deltas, sgd" in title_of(two)


def test_real_labels_have_a_line_next_to_the_dataset_s() -> None:
    ends = dict.fromkeys(("std", "rows_low", "rows_high", "both_low", "both_high"))
    words = dict.fromkeys(("interval", "rows_interval", "both_interval"))
    made = [
        MetricSummary(mean=mean, low=mean - 0.1, high=mean + 0.1, count=3, **ends, **words)
        for mean in (0.55, 0.65, 0.75)
    ]
    cells = [
        replace(cell, real=real) for cell, real in zip(_line([0.5, 0.6, 0.7]), made, strict=True)
    ]
    better = _line([0.9, 0.9, 0.9], method="no labels of ReaL")
    figure = real_labels_figure([*cells, *better, made_ceiling(0.95)], dataset="imagenet")
    assert _heights(figure.axes[0]) == [[50, 60, 70], [55, 65, 75]]
    assert legend_texts(figure) == ["accuracy, the dataset's labels", "accuracy, ReaL's labels"]
    paths = [band.get_paths()[0] for band in figure.axes[0].collections]
    bands = [np.asarray(path.vertices)[:, 1] for path in paths]
    assert [(min(band), max(band)) for band in bands] == [
        pytest.approx((48, 72)),
        pytest.approx((45, 85)),
    ]
    assert figure.axes[0].get_ylabel() == "test result (%)"
