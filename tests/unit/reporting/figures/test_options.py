"""Results against an option."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.reporting.figures.options import option_figure
from dpprobe.results.cell_results import read_cell_results
from tests.support.cell_files import write_cell
from tests.support.figures import legend_words, tick_texts, varied_cells


@pytest.mark.parametrize(
    ("option", "values", "places", "texts"),
    [
        ("batch_size", [64, 256, "full"], [64, 256, 1000], ["64", "256", "1,000\n(all)"]),
        ("init_scale", [0, 0.01, 1.0], [0.001, 0.01, 1.0], ["0", "0.01", "1"]),
    ],
)
def test_an_option_is_drawn_from_methods_that_differ_in_it_alone(
    option: str, values: Sequence[Any], places: list[float], texts: list[str], tmp_path: Path
) -> None:
    cells = varied_cells(tmp_path, option, values)
    figure: Any = option_figure(cells, option, dataset="digits")
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    curves = [line for line in axes.get_lines() if len(line.get_xdata()) == 3]
    assert len(curves) == 2, "a line an epsilon"
    for line, epsilon in zip(curves, (1.0, 8.0), strict=True):
        assert np.allclose(line.get_xdata(), places)
        means = [cell.mean for cell in cells if cell.epsilon == epsilon and cell.method != "other"]
        assert np.allclose(line.get_ydata(), [100 * value for value in means])
    assert tick_texts(axes) == texts
    assert legend_words(figure) == ["ε = 1", "ε = 8"]


def test_of_a_sweep_of_learning_rates_the_best_is_drawn_and_said_to_be(tmp_path: Path) -> None:
    paths = []
    base: dict[str, Any] = {"batch_size": 64, "init": "zero", "init_scale": None}
    for head in ("momentum", "lamb"):
        for rate, quality in ((0.1, 1.0), (0.2, 3.0), (0.3, 0.5)):
            path = write_cell(tmp_path, method=f"{head}_{rate}", quality=quality)
            options = base | {"head": head, "learning_rate": rate}
            write_json(path, read_json(path) | {"head": head, "options": options})
            paths.append(path)
    cells = read_cell_results(paths)
    figure: Any = option_figure(cells, "optimiser", dataset="digits")
    (axes,) = figure.axes
    assert tick_texts(axes) == ["momentum", "LAMB"]
    assert legend_words(figure) == ["ε = 1"]
    (bars,) = axes.containers
    best = [100 * max(c.mean for c in cells if c.head == head) for head in ("momentum", "lamb")]
    assert list(bars.lines[0].get_ydata()) == pytest.approx(best)
    assert "best of up to 3 at each point, by test result" in axes.texts[0].get_text()
