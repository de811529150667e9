"""The test rows that privacy costs most: against a loop over rows and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.special import expit, softmax

from dpprobe.artifacts import read_json, write_json
from dpprobe.errors import DataError
from dpprobe.results.cell_record import CellRecord, read_cell
from dpprobe.results.costly_rows import (
    RowProbabilities,
    compared_cells,
    costly_rows,
    row_probabilities,
)
from tests.support.cell_files import TEST_ROWS, write_cell

CellFile = tuple[Path, CellRecord]


def changed(path: Path, **options: Any) -> CellFile:
    """A cell whose record has other options of its method."""
    values = read_json(path)
    write_json(path, values | {"options": values["options"] | options})
    return path, read_cell(path)


def probabilities(right: np.ndarray, ids: list[str] | None = None) -> RowProbabilities:
    """Made-up probabilities of rows of class 0, [S, m]."""
    rows = right.shape[1]
    return RowProbabilities(
        ids=ids or [f"row-{i}" for i in range(rows)],
        labels=np.zeros(rows, np.int64),
        right=right,
        predicted=np.where(right > 0.5, 0, 1),
    )


def test_the_drop_of_every_row_is_what_a_loop_finds(tmp_path: Path) -> None:
    cells = {
        name: changed(write_cell(tmp_path, method=name, epsilon=epsilon, seeds=3))
        for name, epsilon in (("sgd", "1"), ("nonprivate", "inf"))
    }
    found = costly_rows(
        row_probabilities(*cells["nonprivate"]), row_probabilities(*cells["sgd"]), count=7
    )
    right: dict[str, np.ndarray] = {}
    for name, (path, _) in cells.items():
        rows = pq.read_table(path.with_name("predictions.parquet")).to_pylist()
        right[name] = np.array([softmax(row["scores"])[row["label"]] for row in rows])
    drops = (right["nonprivate"] - right["sgd"]).reshape(3, TEST_ROWS)
    order = sorted(range(TEST_ROWS), key=lambda row: -drops[:, row].mean())[:7]
    assert [row.id for row in found.rows] == [f"test-{row}" for row in order]
    for row, place in zip(found.rows, order, strict=True):
        assert row.drop == pytest.approx(drops[:, place].mean(), abs=1e-7)
        assert row.error == pytest.approx(np.std(drops[:, place], ddof=1) / np.sqrt(3), abs=1e-7)
    assert found.average == pytest.approx(drops.mean(), abs=1e-7)


def test_of_several_labels_the_one_that_loses_most_is_judged(tmp_path: Path) -> None:
    names = ("a", "b", "absent")
    cells = [
        changed(
            write_cell(
                tmp_path, method=method, epsilon=epsilon, class_names=names, multi_label=True
            ),
            loss="sigmoid",
        )
        for method, epsilon in (("sgd", "1"), ("sgd", "inf"))
    ]
    private, other = (row_probabilities(*cell) for cell in cells)
    table = pq.read_table(cells[0][0].with_name("predictions.parquet"))
    labels = np.array(table["label"].to_pylist())[:TEST_ROWS]
    chances = expit(np.array(table["scores"].to_pylist(), np.float64)).reshape(3, TEST_ROWS, 3)
    assert private.right == pytest.approx(np.where(labels == 1, chances, 1 - chances))
    first = costly_rows(other, private, count=1).rows[0]
    drops = (other.right - private.right).mean(axis=0)
    row, label = np.unravel_index(drops.argmax(), drops.shape)
    assert (first.id, first.judged, first.taken_for) == (f"test-{row}", label, None)
    assert first.classes == tuple(np.flatnonzero(labels[row]))
    assert first.private_right == int(np.sum(private.right[:, row, label] > 0.5))


def test_rows_chosen_by_chance_alone_drop_nothing_on_an_unseen_seed() -> None:
    generator = np.random.default_rng(0)
    noise = [generator.normal(0.5, 0.1, (5, 4000)) for _ in range(2)]
    found = costly_rows(probabilities(noise[0]), probabilities(noise[1]), count=50)
    assert found.rows[0].drop > 0.15
    # the mean of 5 x 50 differences, each of standard deviation 0.14
    assert found.unseen == pytest.approx(0, abs=4 * 0.14 / np.sqrt(250))


def test_a_planted_cost_is_shown_whole_on_an_unseen_seed() -> None:
    before = np.full((4, 100), 0.9)
    after = before.copy()
    after[:, [17, 42]] = 0.2, 0.3
    found = costly_rows(probabilities(before), probabilities(after), count=2)
    assert [row.id for row in found.rows] == ["row-17", "row-42"]
    assert found.unseen == pytest.approx(0.65)
    first = found.rows[0]
    assert (first.reference_right, first.private_right, first.taken_for) == (4, 0, 1)
    assert first.error == pytest.approx(0)


def test_one_seed_has_no_error_and_fewer_rows_than_asked_for_are_all_shown() -> None:
    found = costly_rows(
        probabilities(np.full((1, 3), 0.9)), probabilities(np.full((1, 3), 0.9)), count=20
    )
    assert [row.id for row in found.rows] == ["row-0", "row-1", "row-2"]
    assert found.unseen is None
    assert found.rows[0].error is None


def test_cells_of_other_rows_are_refused() -> None:
    right = np.full((2, 3), 0.5)
    with pytest.raises(DataError, match="tested on different rows"):
        costly_rows(probabilities(right), probabilities(right, ["a", "b", "c"]), count=1)


def test_scores_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    file = path.with_name("predictions.parquet")
    table = pq.read_table(file)
    scores = table["scores"].to_pylist()
    scores[3][0] = float("nan")
    column = pa.array(scores, pa.list_(pa.float32()))
    pq.write_table(table.set_column(table.schema.get_field_index("scores"), "scores", column), file)
    with pytest.raises(DataError, match="3 seeds of 200 finite rows; run the cell again"):
        row_probabilities(path, read_cell(path))


def test_the_best_private_cell_is_compared_on_its_backbone(tmp_path: Path) -> None:
    def cell(backbone: str, method: str, epsilon: str, quality: float) -> CellFile:
        path = write_cell(
            tmp_path, backbone=backbone, method=method, epsilon=epsilon, quality=quality
        )
        return path, read_cell(path)

    cells = [
        cell("pixels", "sgd", "1", 1.0),
        cell("pixels", "nonprivate", "inf", 5.0),
        cell("scattering", "sgd", "1", 3.0),
        cell("scattering", "sgd", "inf", 4.0),
        cell("scattering", "other", "2", 3.0),
        cell("pixels", "sgd", "2", 1.0),
    ]
    ((_, first), reference), (second, missing) = compared_cells(cells)
    assert first.cell.key[1:] == ("scattering", "sgd", "1")
    assert reference is not None
    assert reference[1].cell.key[1:] == ("scattering", "sgd", "inf")
    assert second[1].cell.key[1:] == ("scattering", "other", "2")
    assert missing is None


def test_a_cell_without_probabilities_is_not_compared(tmp_path: Path) -> None:
    path = write_cell(tmp_path, quality=9.0)
    values = read_json(path)
    write_json(path, values | {"options": {"head": "prototypes"}})
    assert compared_cells([(path, read_cell(path))]) == []
