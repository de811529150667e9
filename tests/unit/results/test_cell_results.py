"""Results of cells as numbers."""

from __future__ import annotations

from pathlib import Path

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


def test_batches_are_of_units_and_bring_all_their_rows(tmp_path: Path) -> None:
    path = write_cell(tmp_path, patients=50)  # 1,000 training rows
    record = read_json(path)
    options = record["options"] | {"batch_size": "full", "steps": 10, "epochs": None}
    write_json(path, record | {"n": 250, "options": options})
    (cell,) = read_cell_results([path])
    assert (cell.batch_size, cell.n, cell.train_rows) == (250, 250, 1000)
    assert cell.visited_rows == 3 * 10 * 1000, "three seeds, ten steps over all rows"
