"""Figures of gaps by epsilon and by quality; filled marks are beyond chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.fairness import show
from dpprobe.analyses.fairness.fairness_record import FairnessRecord
from tests.support.fairness_records import write_fairness
from tests.support.shown import dots_of, legend_of, title_of


def _read(folder: Path, **options: Any) -> FairnessRecord:
    return FairnessRecord.read(write_fairness(folder, **options))


def _marks(axes: Any) -> list[tuple[Any, float, float]]:
    """Returns the marks of cells, without the marks of gaps by chance."""
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
