"""Figures of gaps: against epsilon and against quality, filled beyond chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.fairness import show
from dpprobe.analyses.fairness.fairness_record import FairnessRecord
from tests.support.fairness_records import APART, write_fairness
from tests.support.shown import curves_of, dots_of, legend_of, texts_of, title_of


def _read(folder: Path, **options: Any) -> FairnessRecord:
    return FairnessRecord.read(write_fairness(folder, **options))


def _marks(axes: Any) -> list[tuple[Any, float, float]]:
    """The marks of cells, without those of gaps by chance."""
    return [each for each in dots_of(axes) if each[0].get_marker() not in ("_", "None")]


def _heights(axes: Any) -> list[float]:
    return sorted(y for _, _, y in _marks(axes))


def test_a_panel_has_the_gaps_of_private_cells_and_a_band_for_the_reference(tmp_path: Path) -> None:
    record = _read(tmp_path)
    figure = show.gap_figure([record])
    assert [title_of(axes) for axes in figure.axes] == ["ink, 2 groups", "side, 3 groups"]
    for axes, attribute in zip(figure.axes, ("ink", "side"), strict=True):
        gaps: Any = {(c.method, c.epsilon): c.find_gap(attribute, "auc") for c in record.cells}
        private = [100 * gaps["sgd", epsilon].gap for epsilon in ("0.5", "2")]
        np.testing.assert_allclose(_heights(axes), sorted(private))
        level = 100 * gaps["nonprivate", "inf"].gap
        lines = [line for line in axes.lines if np.allclose(line.get_ydata(), level)]
        lines = [line for line in lines if line.is_dashed()]
        assert len(lines) == 1, "the gap without privacy, across the panel"
        band: Any = axes.patches[0]
        ends = band.get_y(), band.get_y() + band.get_height()
        free = gaps["nonprivate", "inf"]
        assert ends == pytest.approx((100 * free.low, 100 * free.high))
        chance = [line.get_ydata() for line in axes.lines if line.get_marker() == "_"]
        np.testing.assert_allclose(
            np.concatenate(chance),
            [100 * gaps["sgd", epsilon].chance_gap for epsilon in ("0.5", "2")],
        )
        assert axes.get_ylim()[0] <= 0
    assert legend_of(figure)[:3] == ["sgd", "beyond chance", "not beyond chance"]
    assert "gap without privacy,\nand its interval" in legend_of(figure)
    assert "95% intervals over test rows; not private" in str([t.get_text() for t in figure.texts])


@pytest.mark.parametrize("chance", [0.03, 0.1])
def test_a_mark_is_filled_where_chance_does_not_explain_the_gap(
    tmp_path: Path, chance: float
) -> None:
    figure = show.gap_figure([_read(tmp_path, gap=APART | {"chance_gap": chance})])
    for axes in figure.axes:
        marks = [line for line, _, _ in _marks(axes)]
        filled = [line.get_markerfacecolor() != "white" for line in marks]
        assert filled == [chance < APART["gap"]] * len(marks)
        assert marks


def test_without_a_reference_there_is_no_band(tmp_path: Path) -> None:
    figure = show.gap_figure([_read(tmp_path, reference=False)])
    assert not [name for name in legend_of(figure) if "without privacy" in name]
    # the non-private cell is then a method of its own
    assert "nonprivate" in legend_of(figure)


def test_where_nothing_is_compared_a_sentence_says_so(tmp_path: Path) -> None:
    for figure in show.plot_fairness([write_fairness(tmp_path, compared=False)]):
        (axes,) = figure.axes
        assert texts_of(axes) == ["No two groups are large enough to compare."]
        assert not axes.axison


def test_several_backbones_have_panels_with_their_names(tmp_path: Path) -> None:
    records = [_read(tmp_path, backbone=name, gap=APART, parity=True) for name in ("a", "b")]
    figure = show.gap_figure(records)
    titles = [f"{words}, {name}" for words in ("ink, 2 groups", "side, 3 groups") for name in "ab"]
    assert [title_of(axes) for axes in figure.axes[:4]] == titles
    ends = {tuple(y) for line, x, y in curves_of(figure.axes[0]) if x[0] == x[1]}
    assert ends == {(100 * APART["low"], 100 * APART["high"])}, "the interval of the gap itself"
    parity = [title_of(axes) for axes in show.gap_figure(records[:1], parity=True).axes]
    metrics = ("recall", "equalised odds", "demographic parity")
    assert parity[:3] == [f"ink, 2 groups: {metric}" for metric in metrics]


def test_quality_is_the_metric_on_all_rows(tmp_path: Path) -> None:
    record = _read(tmp_path)
    figure = show.quality_figure([record])
    for axes, attribute in zip(figure.axes, ("ink", "side"), strict=True):
        gaps: Any = filter(None, (cell.find_gap(attribute, "auc") for cell in record.cells))
        expected = sorted((100 * gap.overall, 100 * gap.gap) for gap in gaps)
        np.testing.assert_allclose(sorted((x, y) for _, x, y in _marks(axes)), expected)
        assert axes.get_xlabel() == "test mean AUC over labels (%)"
        texts: Any = axes.texts
        named = {text.get_text(): text.xy for text in texts}
        assert [*named] == ["∞", "0.5", "2"]
        gap: Any = record.cells[0].find_gap(attribute, "auc")
        assert named[record.cells[0].epsilon] == (100 * gap.overall, 100 * gap.gap)


def test_lines_rise_in_epsilon_and_have_names_at_their_ends_alone(tmp_path: Path) -> None:
    record = _read(tmp_path)
    half, two, free = record.cells
    cells = (two, free, half.model_copy(update={"epsilon": "1"}), half)
    mixed = record.model_copy(update={"cells": cells})
    for axes in show.quality_figure([mixed]).axes:
        assert texts_of(axes) == ["∞", "0.5", "2"]
    for axes in show.gap_figure([mixed]).axes:
        (line,) = [x for _, x, _ in curves_of(axes) if len(x) == 3 and x[0] != x[1]][:1]
        assert sorted(line) == [*line]
