"""Results by the value of an option."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from dpprobe.errors import NothingToShow
from dpprobe.reporting.figures.options import option_figure
from dpprobe.results.cell_results import CellResult
from tests.support.figures import drawn_bars, drawn_curves, legend_texts, tick_texts, title_of
from tests.support.made_grids import made_result

BASE: dict[str, Any] = {"head": "sgd", "batch_size": 64, "init": "zero", "init_scale": None}


def _cells(
    methods: Mapping[str, tuple[float, Mapping[str, Any]]], **changes: Any
) -> list[CellResult]:
    """Returns two cells per method, from a mean and options; epsilon 8 is 10 points better."""
    return [
        made_result(
            mean + 0.1 * (epsilon > 1),
            epsilon,
            method=name,
            options=BASE | dict(options),
            **{"head": options.get("head", "sgd")} | changes,
        )
        for name, (mean, options) in methods.items()
        for epsilon in (1.0, 8.0)
    ]


def test_batch_sizes_are_drawn_from_methods_that_differ_only_in_them() -> None:
    cells = _cells(
        {
            "m256": (0.6, {"batch_size": 256}),
            "m64": (0.5, {}),
            "full": (0.7, {"batch_size": "full"}),
            "other": (0.9, {"batch_size": 17, "max_grad_norm": 3.0}),
        },
        n=900,  # patients, fewer than rows
    )
    figure = option_figure(cells, "batch_size", dataset="digits")
    (axes,) = figure.axes
    expected = [[(64, 50 + more), (256, 60 + more), (900, 70 + more)] for more in (0, 10)]
    assert drawn_curves(axes, 3) == [[pytest.approx(point) for point in line] for line in expected]
    assert tick_texts(axes.xaxis) == ["64", "256", "900\n(all)"]
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "expected batch size (log scale)"
    assert axes.get_ylabel() == "test accuracy (%)"
    assert axes.get_title(loc="left") == "pixels, sgd"
    assert axes.texts[0].get_text() == "m256 … full"
    assert legend_texts(figure) == ["ε = 1", "ε = 8"]
    assert title_of(figure) == "digits: batch size mean of 3 seeds; bands: 95% CI"


def test_a_scale_of_zero_is_left_of_the_axis_behind_a_line() -> None:
    scaled = {"init": "scaled"}
    cells = _cells(
        {
            "zero": (0.5, {}),
            "some": (0.6, scaled | {"init_scale": 0.1}),
            "usual": (0.55, scaled),
            "lecun": (0.7, {"init": "lecun_normal"}),
        }
    )
    (axes,) = option_figure(cells, "init_scale", dataset="digits").axes
    # 0.01 is the default scale; 1 / sqrt(64) is 0.125
    places = [x for x, _ in drawn_curves(axes, 4)[0]]
    assert places == pytest.approx([0.001, 0.01, 0.1, 0.125])
    assert [y for _, y in drawn_curves(axes, 4)[0]] == pytest.approx([50, 55, 60, 70])
    assert tick_texts(axes.xaxis) == ["0", "0.01", "0.1", "\n1/√d"]
    (split,) = [line for line in drawn_curves(axes, 2) if line[0][0] == line[1][0]]
    assert split[0][0] == pytest.approx(0.001 * math.sqrt(10))
    without = _cells({"a": (0.5, scaled | {"init_scale": 0.1}), "b": (0.6, scaled)})
    (axes,) = option_figure(without, "init_scale", dataset="digits").axes
    assert len(drawn_curves(axes, 2)) == 2, "two epsilons, and no line before zero"


def test_of_a_sweep_of_learning_rates_the_best_is_drawn_and_said_to_be() -> None:
    rates = ((0.1, 0.5), (0.2, 0.7), (0.3, 0.6))
    cells = _cells(
        {
            f"{head}_{rate}": (mean + more, {"head": head, "learning_rate": rate})
            for head, more in (("lamb", 0.05), ("momentum", 0.0))
            for rate, mean in rates
        }
    )
    figure = option_figure(cells, "optimiser", dataset="digits")
    (axes,) = figure.axes
    assert tick_texts(axes.xaxis) == ["momentum", "LAMB"]
    bars = [(round(place), mean, low, high) for place, mean, low, high in drawn_bars(axes)]
    assert bars == [
        pytest.approx(each)
        for each in ((0, 70, 68, 72), (1, 75, 73, 77), (0, 80, 78, 82), (1, 85, 83, 87))
    ]
    assert "best of up to 3 at each point, by test result" in axes.texts[0].get_text()
    assert axes.get_title(loc="left") == "pixels"
    assert "bars: 95% CI" in title_of(figure)


def test_no_figure_is_drawn_for_an_option_in_which_no_methods_differ() -> None:
    with pytest.raises(NothingToShow, match="digits: batch size"):
        option_figure(_cells({"a": (0.5, {})}), "batch_size", dataset="digits")
