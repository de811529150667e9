"""The figure of rare classes shows each recall at the right position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.imbalance.show import make_section, plot_imbalance
from dpprobe.errors import NothingToShow
from tests.support.imbalance_records import imbalance_record, rare_cell
from tests.support.report_page import section_page
from tests.support.shown import curves_of, title_of


def _draw(folder: Path, *cells: Any) -> Any:
    path = folder / "record.json"
    imbalance_record(cells).write(path)
    return plot_imbalance(record=path)


def test_a_panel_has_images_by_epsilons_and_the_reference_last(tmp_path: Path) -> None:
    figure = _draw(
        tmp_path,
        rare_cell(0.1, fraction=0.01, class_rows=50, epsilon="10"),
        rare_cell(0.3, fraction=0.1, class_rows=500, epsilon="1"),
        rare_cell(0.7, fraction=0.1, class_rows=500, epsilon="inf", reference=None),
        rare_cell(0.6, fraction=0.1, class_rows=500, method="newton"),
        rare_cell(0.9, fraction=0.1, class_rows=500, method="nonprivate", epsilon="inf"),
        rare_cell(0.2, class_name="ant", method="late", never_predicted=2),
        rare_cell(0.4, class_name="ant", method="late", epsilon="10"),  # half of the reference
    )
    panels = figure.axes[:6]
    names = [f"{name}, {method}" for name in ("cat", "ant") for method in ("sgd", "newton", "late")]
    assert [title_of(axes) for axes in panels] == names
    columns = [axes.get_subplotspec().colspan.start for axes in panels]
    assert columns == [0, 1, 2] * 2, "a row for each class"
    first, last = panels[0], panels[5]
    seeds = [(t.get_position()[0], t.get_text()) for t in last.texts if "/" in t.get_text()]
    assert seeds == [(0, "2/5")]
    edges = [(sorted(x), sorted(y)) for _, x, y in curves_of(last) if len(set(x) | set(y)) > 1]
    around = [([0.5, 1.5], [-0.5] * 2), ([0.5, 1.5], [0.5] * 2)]
    around += [([0.5] * 2, [-0.5, 0.5]), ([1.5] * 2, [-0.5, 0.5])]
    assert sorted(each for each in edges if each in around) == sorted(around)
    assert len(edges) == len(around) + 1, "one more is before the reference"
    assert [text.get_text() for text in first.get_xticklabels()] == ["1", "10", "∞", "ref."]
    assert [text.get_text() for text in first.get_yticklabels()] == ["500", "50"]
    shown = np.ma.filled(first.images[0].get_array(), np.nan)
    expected = [[30, np.nan, 70, 80], [np.nan, 10, np.nan, 80]]
    np.testing.assert_allclose(shown, expected)
    written = {
        (round(t.get_position()[0]), round(t.get_position()[1])): t.get_text() for t in first.texts
    }
    assert written == {(0, 0): "30", (2, 0): "70", (3, 0): "80", (1, 1): "10", (3, 1): "80"}
    assert "mean of 5 seeds" in str([text.get_text() for text in figure.texts])


def test_no_figure_is_drawn_without_a_private_cell(tmp_path: Path) -> None:
    with pytest.raises(NothingToShow, match="digits, pixels: no private cell to draw"):
        _draw(tmp_path, rare_cell(0.7, epsilon="inf"))


def test_a_section_has_a_part_for_each_dataset_with_records(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record = imbalance_record([rare_cell(0.5), rare_cell(0.3, method="other")])
    record.write(path)
    second = tmp_path / "second.json"
    imbalance_record([rare_cell(0.5)]).model_copy(update={"backbone": "clip"}).write(second)
    (part,) = make_section([path, second], section_page("digits", "other"))
    assert part["dataset"] == "digits"
    assert [(each["method"], each["class"], each["backbone"]) for each in part["break_downs"]] == [
        ("sgd", "cat", "pixels"),
        ("other", "cat", "pixels"),
        ("sgd", "cat", "clip"),
    ]
    assert part["break_downs"][0]["words"].startswith("from 100")
    assert "50.0 sgd" in part["best"]
