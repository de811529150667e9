"""Results of cells as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.results.cell_results import compare_means, read_cell_results
from tests.support.cell_files import write_cell


def test_a_difference_has_welch_s_interval() -> None:
    from scipy import stats

    base, other = (0.5, 0.6, 0.7), (0.8, 0.85, 0.95, 0.9)
    gap, half = compare_means(base, other)
    reference = stats.ttest_ind(other, base, equal_var=False).confidence_interval()
    assert half is not None
    assert (gap - half, gap + half) == pytest.approx((reference.low, reference.high))
    assert compare_means((0.5,), (0.75,)) == (0.25, None)
    assert compare_means((0.5, 0.5), (0.75, 0.75)) == (0.25, None)


@pytest.mark.parametrize(
    ("options", "size", "visited"),
    [
        ({"head": "sgd", "batch_size": "full", "steps": 10}, 250, 3 * 10 * 1000),
        ({"head": "adam", "batch_size": 25, "steps": 10}, 25, 3 * 10 * 100),
        ({"head": "fine_tune", "tune": "all", "batch_size": 25, "steps": 10}, 25, None),
        ({"head": "least_squares"}, None, None),
    ],
)
def test_batches_are_of_units_and_bring_all_their_rows(
    options: dict[str, Any], size: int | None, visited: int | None, tmp_path: Path
) -> None:
    """Three seeds on 1,000 rows of 250 patients; networks are not counted among the heads."""
    path = write_cell(tmp_path, patients=50)
    write_json(path, read_json(path) | {"n": 250, "head": options["head"], "options": options})
    (cell,) = read_cell_results([path])
    assert (cell.batch_size, cell.n, cell.train_rows) == (size, 250, 1000)
    assert cell.visited_rows == visited
