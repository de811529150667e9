"""Results of cells, as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from dpprobe.files.json_files import read_json, write_json
from dpprobe.results.cell_results import compare_means, read_cell_results
from tests.support.cell_files import write_cell


@pytest.mark.parametrize(
    ("base", "other"),
    [((0.5, 0.6, 0.7), (0.8, 0.85, 0.95, 0.9)), ((1, 2), (3, 5, 4)), ((0.1, 0.9), (0.5, 0.6))],
)
def test_a_difference_has_welch_s_interval(
    base: tuple[float, ...], other: tuple[float, ...]
) -> None:
    gap, half = compare_means(base, other)
    reference = stats.ttest_ind(other, base, equal_var=False).confidence_interval()
    assert half is not None
    assert (gap - half, gap + half) == pytest.approx((reference.low, reference.high))


def test_a_difference_without_spread_has_no_interval() -> None:
    assert compare_means((0.5,), (0.75,)) == (0.25, None)
    assert compare_means((0.5,), (0.5, 1.0)) == (0.25, None)
    assert compare_means((0.5, 1.0), (0.5,)) == (-0.25, None)
    assert compare_means((0.5, 0.5), (0.75, 0.75)) == (0.25, None)
    gap, half = compare_means((0.7, 0.7, 0.7), (0.9, 0.9, 0.9))  # variances round to 1e-32
    assert gap == pytest.approx(0.2)
    assert half is None
    assert compare_means((0.5, 0.5), (0.75, 0.76))[1] is not None


@pytest.mark.parametrize(
    ("options", "size", "epochs"),
    [
        ({"head": "sgd", "batch_size": "full", "steps": 10}, 250, 10.0),
        ({"head": "adam", "batch_size": 25, "steps": 10}, 25, 1.0),
        ({"head": "fine_tune", "tune": "all", "batch_size": 25, "steps": 10}, 25, None),
        ({"head": "least_squares"}, None, None),
        (
            {"head": "auto", "rule": 1, "chosen": {"head": "sgd", "batch_size": 50, "steps": 10}},
            50,
            2.0,
        ),
    ],
)
def test_batches_are_of_units_and_bring_all_their_rows(
    options: dict[str, Any], size: int | None, epochs: float | None, tmp_path: Path
) -> None:
    """Three seeds on 1,000 rows of 250 patients; networks do not count as heads."""
    path = write_cell(tmp_path, patients=50)
    write_json(path, read_json(path) | {"n": 250, "head": options["head"], "options": options})
    (cell,) = read_cell_results([path])
    assert (cell.batch_size, cell.n, cell.train_rows) == (size, 250, 1000)
    visited = None if epochs is None else pytest.approx(3 * 1000 * epochs)
    assert cell.visited_rows == visited
    assert cell.epochs == (None if epochs is None else pytest.approx(epochs))


def test_a_cell_result_has_the_values_of_its_record(tmp_path: Path) -> None:
    path = write_cell(tmp_path, dataset="d", backbone="b", method="m", epsilon="0.5")
    record = read_json(path)
    real = record["summary"]["accuracy"] | {"mean": 0.75}
    record["summary"]["real_accuracy"] = real
    write_json(path, record)
    (cell,) = read_cell_results([path])
    summary = record["summary"]["accuracy"]
    assert cell.place == ("d", "b", 0.5)
    assert cell.method == "m"
    assert cell.values == tuple(seed["accuracy"] for seed in record["seeds"])
    assert (cell.mean, cell.low, cell.high) == (summary["mean"], summary["low"], summary["high"])
    assert cell.percent == pytest.approx(
        (100 * cell.mean, 100 * summary["low"], 100 * summary["high"])
    )
    assert cell.real is not None
    assert cell.real.mean == 0.75
    assert (cell.private, cell.ceiling, cell.network, cell.unpriced) == (True, False, False, False)
    assert (cell.delta, cell.dimension, cell.seconds) == (1e-5, 64, 1.5)


@pytest.mark.parametrize(
    ("n", "above"), [(99_999, False), (100_000, False), (100_001, True), (200_000, True)]
)
def test_a_delta_is_above_one_over_the_units_or_not(n: int, above: bool, tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    write_json(path, read_json(path) | {"n": n})
    assert read_cell_results([path])[0].delta_above is above


def test_a_search_without_a_price_takes_the_guarantee_and_no_ceiling_had_one(
    tmp_path: Path,
) -> None:
    paths = [
        write_cell(tmp_path, method="found"),
        write_cell(tmp_path, method="found", epsilon="inf"),
        write_cell(tmp_path, method="nonprivate", epsilon="inf"),
    ]
    for path in paths[:2]:
        options = {"head": "fine_tune", "search": {"trials": 2}}
        changes = {"head": "fine_tune", "options": options, "private": True}
        write_json(path, read_json(path) | changes)
    paths.append(write_cell(tmp_path, method="free"))
    write_json(paths[3], read_json(paths[3]) | {"private": False})
    found, infinite, ceiling, free = read_cell_results(paths)
    assert (found.private, found.unpriced, found.network) == (False, True, True)
    assert (infinite.private, infinite.unpriced) == (False, False)
    assert (ceiling.private, ceiling.unpriced, ceiling.ceiling) == (False, False, True)
    assert (free.private, free.unpriced) == (False, False)
