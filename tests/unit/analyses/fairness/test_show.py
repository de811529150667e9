"""The figures of subgroups: gaps against epsilon and against quality."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dpprobe.analyses.fairness.fairness_record import FairnessRecord
from dpprobe.analyses.fairness.show import gap_figure, quality_figure
from dpprobe.privacy.risk import RiskEpsilon
from tests.support.fairness_records import APART, NO_INTERVAL, RECORD, gap_of, write_fairness
from tests.support.figures import save_bytes, tick_texts


def records(root: Path, *backbones: str, **options: Any) -> list[FairnessRecord]:
    names = backbones or ("pixels",)
    return [FairnessRecord.read(write_fairness(root, backbone=name, **options)) for name in names]


def marks(axes: Any) -> list[tuple[float, bool]]:
    """The height of each mark, and True for a filled one."""
    lines = [line for line in axes.get_lines() if line.get_marker() in "os"]
    lines = [line for line in lines if line.get_linestyle() == "None"]
    return [(line.get_ydata()[0], line.get_markerfacecolor() != "white") for line in lines]


def test_marks_are_filled_where_chance_does_not_explain_the_gap(tmp_path: Path) -> None:
    # the first gap of `ink` stands apart; the second is one that chance shows too
    gaps = [gap_of("sgd", epsilon, "ink").model_dump() | APART for epsilon in ("0.5", "2")]
    gaps[1]["chance_gap"] = 0.07
    changes = {f"cells.{k}.attributes.0.gaps.auc": gap for k, gap in enumerate(gaps)}
    read = records(tmp_path, changes=changes)
    figure: Any = gap_figure(read)
    ink, side = figure.axes
    assert [height for height, _ in marks(ink)] == pytest.approx([6, 6])
    assert [filled for _, filled in marks(ink)] == [True, False]
    expected = [100 * gap_of("sgd", epsilon, "side").gap for epsilon in ("0.5", "2")]
    assert [height for height, _ in marks(side)] == pytest.approx(expected)
    assert tick_texts(ink)[:2] == ["0.5", "2"]
    budget = {"cells.0.epsilon": "advantage-0.1", "cells.0.epsilon_at_delta": 0.46}
    path = write_fairness(tmp_path, changes=budget)
    assert path.read_text().count("epsilon_at_delta") == 1
    places = [cell.place for cell in FairnessRecord.read(path).cells]
    assert (places, type(places[0])) == ([0.46, 2, math.inf], RiskEpsilon)


def test_quality_stands_below_each_gap() -> None:
    figure: Any = quality_figure([RECORD])
    axes = figure.axes[0]
    points = sorted(
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in axes.get_lines()
        if line.get_linestyle() == "None"
    )
    cells = (("sgd", "0.5"), ("sgd", "2"), ("nonprivate", "inf"))
    gaps = [gap_of(*cell, "ink") for cell in cells]
    expected = sorted((100 * gap.overall, 100 * gap.gap) for gap in gaps)
    assert points == [(pytest.approx(x), pytest.approx(y)) for x, y in expected]
    assert {text.get_text() for text in axes.texts} == {"0.5", "2", "∞"}


@pytest.mark.parametrize("draw", [gap_figure, quality_figure])
def test_ugly_records_are_drawn(draw: Any, tmp_path: Path) -> None:
    many = RECORD.model_dump()
    for part in (many, *many["cells"]):
        first = part["attributes"][0]
        part["attributes"] = [first | {"attribute": f"a{i} $x$"} for i in range(7)]
    ugly = {
        "nothing": records(tmp_path, compared=False),
        "no_interval": records(tmp_path, gap=NO_INTERVAL, reference=False),
        "no_private": [RECORD.model_copy(update={"cells": RECORD.cells[2:]})],
        "many": [FairnessRecord.model_validate(many)],
    }
    for name, read in ugly.items():
        save_bytes(draw(read), tmp_path / name)
