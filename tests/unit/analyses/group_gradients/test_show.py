"""Table, figure and section of subgroups' gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.group_gradients import show
from dpprobe.analyses.group_gradients.gradients_record import GradientsRecord
from tests.support.report_page import section_page
from tests.support.shown import curves_of, legend_of, rows_of, title_of


def _spread(mean: float, width: float = 0.125) -> dict[str, float]:
    return {"mean": mean, "low": mean - width, "high": mean + width}


def _group(attribute: str, group: str, **changes: Any) -> dict[str, Any]:
    values = {"median": 0.5, "p90": 1.25, "clipped": 0.25, "alignment": 0.75}
    spreads = {name: _spread(value) for name, value in values.items()}
    return {
        "attribute": attribute,
        "group": group,
        "rows": 1094 if group == "all" else 60,
        **spreads,
        "unclipped_alignment": None,
        **changes,
    }


def _cell(epsilon: str, *groups: dict[str, Any], **changes: Any) -> dict[str, Any]:
    cell = {"method": "sgd", "epsilon": epsilon, "epsilon_at_delta": None, "max_grad_norm": 0.7}
    given = [_group("all", "all"), *(groups or [_group("sex", "F"), _group("sex", "M")])]
    return {**cell, "private": epsilon != "inf", "seeds": 2, "groups": given, **changes}


def write_record(folder: Path, *cells: dict[str, Any], **changes: Any) -> Path:
    rows = [("F", 60, None), ("M", 1030, None), ("X", 4, "4 rows, 30 needed")]
    groups = [{"group": g, "rows": n, "units": n, "left_out": why} for g, n, why in rows]
    values = {
        "dataset": "digits",
        "backbone": "pixels",
        "rows": 1094,
        "unusable": 1,
        "minimum": 30,
        "attributes": [{"attribute": "sex", "groups": groups}],
        "cells": cells or [_cell("1"), _cell("4"), _cell("inf")],
        "skipped": {"ours": "head least_squares clips no gradients of examples"},
    }
    path = folder / "record.json"
    GradientsRecord.model_validate(values | changes).write(path)
    return path


def test_the_gradient_table_has_one_row_per_group_and_notes_on_missing_rows(tmp_path: Path) -> None:
    even = _group("sex", "M", clipped=_spread(0.5, 0), alignment=_spread(-0.5, 0.25))
    path = write_record(tmp_path, _cell("1", _group("sex", "F"), even))
    table = show.make_gradients_table([path])
    whole, first, second = rows_of(table)
    assert (whole["attribute"], whole["group"], whole["rows"]) == ("all", "all", "1,094")
    assert first == {
        "backbone": "pixels",
        "method": "sgd",
        "epsilon": "1",
        "C": "0.7",
        "attribute": "sex",
        "group": "F",
        "rows": "60",
        "median norm": "0.5 (0.38 to 0.62)",
        "90% norm": "1.2 (1.1 to 1.4)",
        "longer than C": "25.0 (12.5 to 37.5)",
        "alignment": "0.75 (0.62 to 0.88)",
        "unclipped alignment": "undefined",
    }
    assert (second["longer than C"], second["alignment"]) == ("50.0", "-0.50 (-0.75 to -0.25)")
    assert table.rows[2][9].ends == (50, 50), "CSV has the ends of every range"
    assert "Not private, and not for publication" in table.notes[0]
    assert table.notes[1:] == [
        "pixels: left out of sex: X (4 rows, 30 needed).",
        "pixels: 1 row without usable features.",
        "pixels: ours is not measured: head least_squares clips no gradients of examples.",
    ]


def test_a_line_of_panels_draws_the_groups_of_an_attribute(tmp_path: Path) -> None:
    lost = _cell("4", _group("sex", "F", alignment=None), _group("sex", "M"))
    figure = show.plot_group_gradients(
        record=write_record(tmp_path, _cell("1"), lost, _cell("inf")), method="sgd"
    )
    clipped, alignment = figure.axes
    assert title_of(clipped) == "sex: longer than C (%)"
    assert title_of(alignment) == "sex: alignment (cosine)"
    assert [y.tolist() for _, _, y in curves_of(clipped)][:2] == [[25, 25, 25]] * 2
    (f, m) = [x for _, x, y in curves_of(alignment) if y[0] == 0.75]
    assert (len(f), len(m)) == (2, 3), "an undefined cosine is no point"
    np.testing.assert_allclose(m[:2], np.log10([1, 4]))
    (legend,) = [legend for axes in figure.axes if (legend := axes.get_legend())]
    assert [text.get_text() for text in legend.get_texts()] == ["F", "M"]
    title = " ".join(figure.get_suptitle().split())
    assert "gradients of training examples (not private)" in title
    assert "C = 0.7; mean and range over 2 seeds" in title
    assert legend_of(figure) == []


def test_of_many_groups_the_largest_are_drawn(tmp_path: Path) -> None:
    groups = [
        {"group": str(size), "rows": size, "units": size, "left_out": None}
        for size in range(40, 60)
    ]
    cell = _cell("1", *(_group("site", str(size)) for size in range(40, 60)))
    attributes = [{"attribute": "site", "groups": groups}]
    path = write_record(tmp_path, cell, attributes=attributes)
    figure = show.plot_group_gradients(record=path, method="sgd")
    (legend,) = [legend for axes in figure.axes if (legend := axes.get_legend())]
    assert [text.get_text() for text in legend.get_texts()] == [str(n) for n in range(48, 60)]
    assert len(rows_of(show.make_gradients_table([path]))) == 21


@pytest.mark.parametrize(
    ("method", "reason"),
    [("ours", "head least_squares clips no gradients"), ("sgd", "no group has 30 training units")],
)
def test_a_figure_without_groups_says_why(tmp_path: Path, method: str, reason: str) -> None:
    few = [{"group": "F", "rows": 9, "units": 9, "left_out": "9 rows, 30 needed"}]
    path = write_record(
        tmp_path,
        _cell("1", _group("all", "all")),
        attributes=[{"attribute": "sex", "groups": few}],
    )
    figure = show.plot_group_gradients(record=path, method=method)
    assert reason in " ".join(figure.texts[0].get_text().split())


def test_a_section_has_the_records_of_each_dataset(tmp_path: Path) -> None:
    path = write_record(tmp_path)
    (part,) = show.make_section([path], section_page("empty", "digits"))
    assert (part["dataset"], part["rows"]) == ("digits", 9)
