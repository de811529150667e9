"""Tables of long tails: gaps by a plain loop, correlations by SciPy, and expected cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr

from dpprobe.analyses.long_tail.long_tail_record import read_long_tails
from dpprobe.analyses.long_tail.long_tail_tables import (
    Gap,
    describe_correlations,
    make_long_tail_tables,
    private_gaps,
)
from dpprobe.results.cell_record import read_cell
from tests.support.cell_files import grid_of, write_cell
from tests.support.long_tail_records import SCORES, long_tail_record, write_long_tail
from tests.support.shown import rows_of


def test_a_gap_is_the_best_non_private_result_minus_the_best_private_one(tmp_path: Path) -> None:
    cells = [
        write_cell(
            tmp_path,
            dataset=dataset,
            backbone=backbone,
            method=method,
            epsilon=epsilon,
            quality=1 + n / 3,
        )
        for n, (dataset, backbone) in enumerate(
            (("digits", "vit"), ("digits", "clip"), ("digits", "other"), ("apples", "vit"))
        )
        for method, epsilon in (
            ("sgd", "1"),
            ("newton", "1"),
            ("sgd", "10"),
            ("nonprivate", "inf"),
            ("sgd", "inf"),
        )
        if (backbone, method) != ("other", "nonprivate")
    ]
    means = {(c := read_cell(path)).cell.key: 100 * c.mean for path in cells}
    found = private_gaps(grid_of(tmp_path, *cells))
    assert [(gap.dataset, gap.backbone, gap.epsilon) for gap in found] == [
        (dataset, backbone, epsilon)
        for dataset, backbone in (("apples", "vit"), ("digits", "clip"), ("digits", "vit"))
        for epsilon in ("1", "10")
    ], "`other` has no ceiling, and inf alone has no gap"
    for gap in found:
        place = gap.dataset, gap.backbone
        best = max(v for (*p, _, e), v in means.items() if (*p, e) == (*place, gap.epsilon))
        ceiling = means[*place, "nonprivate", "inf"]
        assert gap.points == pytest.approx(ceiling - best), gap


def _gaps(**points: list[float]) -> list[Gap]:
    return [
        Gap("digits", backbone, epsilon, value)
        for backbone, values in points.items()
        for epsilon, value in zip(("1", "10"), values, strict=True)
    ]


def _scored(backbone: str, share: float) -> Any:
    return long_tail_record(backbone=backbone, memorisation=SCORES | {"share": share})


def test_a_correlation_is_scipy_s_over_four_points_or_more() -> None:
    shares = {"a": 0.1, "b": 0.3, "c": 0.2, "d": 0.05}
    records = [_scored(name, share) for name, share in shares.items()]
    gaps = _gaps(a=[1.0, 4.0], b=[5.0, 4.0], c=[2.0, 4.0], d=[3.0, 4.0], gone=[7.0, 1.0])
    points = [gap.points for gap in gaps if gap.epsilon == "1" and gap.backbone in shares]
    value = spearmanr([*shares.values()], points).statistic
    told = describe_correlations(records, gaps)
    assert f"{value:.2f} at ε 1 (4 points)." in told, "gaps at 10 are all alike"
    assert "10" not in told
    assert "does not prove a cause" in told
    assert describe_correlations(records[:3], gaps) == "", "three points"
    alike = [_scored(name, 0.1) for name in shares]
    assert describe_correlations(alike, gaps) == ""
    unscored = [long_tail_record(backbone=name, memorisation=None) for name in shares]
    assert describe_correlations(unscored, gaps) == ""
    more = gaps + [Gap("digits", name, "2", share) for name, share in shares.items()]
    assert f"{value:.2f} at ε 1 (4 points), 1.00 at ε 2 (4 points)." in describe_correlations(
        records, more
    )


def test_both_tables_are_made_of_files_in_order(tmp_path: Path) -> None:
    paths = [
        write_long_tail(tmp_path, **place)
        for place in ({"backbone": "pixels"}, {"backbone": "clip"}, {"dataset": "apples"})
    ]
    cells = [
        write_cell(tmp_path, method=method, epsilon=epsilon)
        for method, epsilon in (("sgd", "1"), ("nonprivate", "inf"))
    ]
    grid_of(tmp_path, *cells)
    first, second = make_long_tail_tables(paths, [tmp_path / "summary.parquet"])
    places = [("apples", "pixels"), ("digits", "clip"), ("digits", "pixels")]
    assert [(row["dataset"], row["backbone"]) for row in rows_of(second)] == places
    assert [(row["dataset"], row["backbone"]) for row in rows_of(first)[::2]] == places
    for table in (first, second):
        assert "Not private" in table.notes[0]
    assert [each.backbone for each in read_long_tails(paths[:2])] == ["clip", "pixels"]
