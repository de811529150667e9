"""Tables, figure and the section of long tails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.long_tail.long_tail_record import LongTailRecord
from dpprobe.analyses.long_tail.long_tail_tables import (
    Gap,
    gap_table,
    private_gaps,
    sub_class_table,
)
from dpprobe.analyses.long_tail.show import plot_long_tail
from dpprobe.results.summary import Grid, read_grid, summarise_cells
from tests.support.cell_files import write_cell
from tests.support.long_tail_records import (
    FREQUENCIES,
    REFERENCE,
    SCORES,
    long_tail_record,
    write_long_tail,
)
from tests.support.report_page import Made


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two backbones with a ceiling and private cells, and one without a ceiling."""
    root = tmp_path_factory.mktemp("cells")
    cells = [
        write_cell(root, backbone=backbone, method=method, epsilon=epsilon)
        for backbone in ("pixels", "scattering", "other")
        for method, epsilon in (("sgd", "1"), ("sgd", "8"), ("newton", "1"), ("nonprivate", "inf"))
        if (backbone, method) != ("other", "nonprivate")
    ]
    summarise_cells(cells, root / "digits.parquet", study="study")
    return root / "digits.parquet"


@pytest.fixture(scope="module")
def grid(summary: Path) -> Grid:
    return read_grid([summary])


def test_a_gap_is_from_the_ceiling_to_the_best_private_head(grid: Grid) -> None:
    gaps = private_gaps(grid)
    assert [(gap.backbone, gap.epsilon) for gap in gaps] == [
        ("pixels", "1"), ("pixels", "8"), ("scattering", "1"), ("scattering", "8"),
    ]  # fmt: skip
    entries = grid.entries
    best = max(entries["digits", 1.0, "pixels", name].mean for name in ("sgd", "newton"))
    ceiling = entries["digits", float("inf"), "pixels", "nonprivate"].mean
    assert gaps[0].points == pytest.approx(ceiling - best)


def test_sub_classes_stand_beside_their_reference() -> None:
    table = sub_class_table([long_tail_record()])
    titles = [column.title for column in table.columns]
    rows = [dict(zip(titles, (cell.text for cell in row), strict=True)) for row in table.rows]
    assert [row["clusters a class"] for row in rows] == ["5", "20"]
    assert rows[0]["tail index"] == "", "none without two sub-classes"
    assert rows[1]["tail index"] == "0.82 (0.75 to 0.90)"
    assert rows[1]["reference index"] == "0.40 (0.33 to 0.46)"
    assert (rows[1]["≤ 1 row %"], rows[1]["≤ 5 rows %"]) == ("10.0", "35.0")
    assert (rows[1]["M"], rows[1]["ln N"], rows[1]["M ln N"]) == ("31.2", "6.91", "216")


def _points(values: dict[str, tuple[float, float]]) -> tuple[list[LongTailRecord], list[Gap]]:
    """Makes backbones of these shares and gaps."""
    records = [
        long_tail_record(backbone=name, memorisation=SCORES | {"share": share})
        for name, (share, _) in values.items()
    ]
    return records, [Gap("digits", name, "1", gap) for name, (_, gap) in values.items()]


def test_memorised_rows_stand_beside_gaps() -> None:
    records, gaps = _points({"pixels": (0.05, 7.0), "scattering": (0.01, 1.5)})
    gaps += [Gap("digits", "pixels", "8", 1.0), Gap("digits", "scattering", "8", 0.5)]
    records.append(long_tail_record(backbone="unscored", memorisation=None))
    table = gap_table(records, gaps)
    titles = [column.title for column in table.columns]
    rows = [dict(zip(titles, (cell.text for cell in row), strict=True)) for row in table.rows]
    assert [row["within 2 points at ε"] for row in rows] == ["8", "1", ""]
    assert [row["gap at ε 1"] for row in rows] == ["7.0", "1.5", ""]
    assert rows[0]["by chance %"] == "0.04"
    assert rows[2]["memorised %"] == rows[2]["rows scored"] == ""


def test_sub_classes_and_scores_stand_beside_their_references(tmp_path: Path) -> None:
    scored = write_long_tail(tmp_path)
    unscored = write_long_tail(tmp_path, backbone="scattering", memorisation=None)
    figure: Any = plot_long_tail([scored, unscored])
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


def test_long_tails_stand_in_a_section_that_says_they_are_not_private(made: Made) -> None:
    paths = [
        write_long_tail(made.results),
        write_long_tail(
            made.results,
            backbone="scattering",
            memorisation=None,
            notes=["no memorisation: 8 units, but at least 20 are needed"],
        ),
    ]
    page = made.page(records={"long_tail": paths})
    assert "long-tail" in {part.get("id") for part in page.all("section")}
    assert "0.82 (0.75 to 0.90)" in page.words
