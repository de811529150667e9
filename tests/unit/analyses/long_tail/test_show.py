"""The figures of long tails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpprobe.analyses.long_tail.show import gap_figure, long_tail_figure
from dpprobe.errors import DataError
from dpprobe.results.summary import Grid, read_grid, summarise_cells
from tests.support.cell_files import write_cell
from tests.support.figures import drawn_figure
from tests.support.long_tail_records import FREQUENCIES, REFERENCE, SCORES, long_tail_record


def test_sub_classes_and_scores_stand_beside_their_references(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = [long_tail_record(), long_tail_record(backbone="scattering", memorisation=None)]
    figure = drawn_figure(monkeypatch, lambda files: long_tail_figure(records, **files))
    ranks, scores = figure.axes
    lines = ranks.get_lines()
    assert len(lines) == 4
    assert list(lines[0].get_ydata()) == pytest.approx([100 * s for s in FREQUENCIES["shares"]])
    assert list(lines[1].get_ydata()) == pytest.approx([100 * s for s in REFERENCE["shares"]])
    curves = [line for line in scores.get_lines() if len(line.get_xdata()) == 3]
    assert len(curves) == 2, "one backbone was scored"
    drawn = np.asarray(curves[0].get_ydata(), dtype=float)
    assert drawn[:2] == pytest.approx([20, 5])
    assert np.isnan(drawn[2]), "no share has no place on a logarithm"
    assert "not private" in figure.get_suptitle()


def test_without_memorisation_there_is_one_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [long_tail_record(memorisation=None)]
    figure = drawn_figure(monkeypatch, lambda files: long_tail_figure(records, **files))
    assert len(figure.axes) == 1


def _grid(root: Path, epsilons: tuple[str, ...], *, ceiling: bool = True) -> Grid:
    cells = [
        write_cell(root, backbone=backbone, method=method, epsilon=epsilon)
        for backbone in ("pixels", "scattering")
        for method, epsilon in [
            *(("sgd", token) for token in epsilons),
            *([("nonprivate", "inf")] if ceiling else []),
        ]
    ]
    summarise_cells(cells, root / "digits.parquet", study="study")
    return read_grid([root / "digits.parquet"])


def test_gaps_stand_at_memorised_shares_a_panel_an_epsilon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epsilons = ("0.1", "0.5", "1", "2", "4", "8", "16")
    grid = _grid(tmp_path, epsilons)
    records = [
        long_tail_record(memorisation=SCORES | {"share": 0.02}),
        long_tail_record(backbone="scattering", memorisation=SCORES | {"share": 0.07}),
    ]
    figure = drawn_figure(monkeypatch, lambda files: gap_figure(records, grid, **files))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert len(titles) == 6
    assert (titles[0], titles[-1]) == ("ε = 0.1: 2 points", "ε = 16: 2 points")
    points = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 1]
    assert sorted(float(line.get_xdata()[0]) for line in points) == pytest.approx([2, 7])


def test_without_a_ceiling_there_is_no_gap_to_draw(tmp_path: Path) -> None:
    grid = _grid(tmp_path, ("1",), ceiling=False)
    with pytest.raises(DataError, match="a non-private ceiling"):
        gap_figure([long_tail_record()], grid, svg=tmp_path / "a.svg", png=tmp_path / "a.png")
