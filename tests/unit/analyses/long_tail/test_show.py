"""The figure and the section of long tails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpprobe.analyses.analysis import Page
from dpprobe.analyses.long_tail import show
from tests.support.cell_files import grid_of, write_cell
from tests.support.long_tail_records import FREQUENCIES, REFERENCE, SCORES, write_long_tail
from tests.support.shown import curves_of, legend_of


def test_lines_are_shares_by_rank_and_scores_by_threshold(tmp_path: Path) -> None:
    part = {"clusters": 7, "measured": REFERENCE, "reference": FREQUENCIES, "m_ln_n": 1.0}
    paths = [
        write_long_tail(tmp_path, backbone="pixels", memorisation=None, sub_classes=[part]),
        write_long_tail(tmp_path, backbone="scored"),
    ]
    figure = show.plot_long_tail(paths)
    left, right = figure.axes
    found = [y.tolist() for _, _, y in curves_of(left)]
    measured, reference = (np.array(each["shares"]) * 100 for each in (FREQUENCIES, REFERENCE))
    np.testing.assert_allclose(found, [reference, measured, measured, reference])
    assert all(x.tolist() == [1, 2, 3, 4] for _, x, _ in curves_of(left))
    styles = [line.get_linestyle() for line, _, _ in curves_of(left)]
    assert styles[0] == "-" != styles[1], "the reference is dashed"
    assert "at most 20 per class" in left.get_xlabel(), "the finest clustering of all"
    above: Any = SCORES["above"]
    scores = [(x, y) for line, x, y in curves_of(right) if len(set(x)) > 1]
    np.testing.assert_allclose([x for x, _ in scores], [above["thresholds"]] * 2)
    np.testing.assert_allclose(
        [y for _, y in scores], [[20, 5, np.nan], [10, np.nan, np.nan]]
    )  # 0 has no position on a logarithmic axis
    assert {axes.get_yscale() for axes in (left, right)} == {"log"}
    assert legend_of(figure) == ["pixels", "scored", "reference, chance"]
    assert "digits: long tail of the features" in str([t.get_text() for t in figure.texts])


def test_without_scores_there_is_one_panel(tmp_path: Path) -> None:
    figure = show.plot_long_tail([write_long_tail(tmp_path, memorisation=None)])
    assert len(figure.axes) == 1


def test_a_section_has_both_tables_and_the_notes_of_all_records(tmp_path: Path) -> None:
    cells = [write_cell(tmp_path), write_cell(tmp_path, method="nonprivate", epsilon="inf")]
    page = Page(grid=grid_of(tmp_path, *cells), names={}, folder=tmp_path)
    paths = [
        write_long_tail(tmp_path, backbone="b", notes=["8 units", "another"]),
        write_long_tail(tmp_path, backbone="a"),
    ]
    section = show.make_section(paths, page)
    assert section is not None
    assert section["notes"] == ["digits, b: 8 units", "digits, b: another"]
    assert len(section["tables"]) == 2
    assert show.make_section([], page) is None
