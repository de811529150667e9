"""The tidy table of a dataset's cells."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.artifacts import read_json, sha256_file, write_json
from dpprobe.errors import DataError
from dpprobe.privacy.risk import budget_words, explain_risks, row_words
from dpprobe.results.best_private import best_private
from dpprobe.results.cell_record import read_cell
from dpprobe.results.cell_results import read_cell_results
from dpprobe.results.summary import SCHEMA, read_summaries, rounded_up, summarise_cells
from tests.support.cell_files import grid_of, write_cell, write_study


def test_no_edited_number_reaches_a_summary(tmp_path: Path) -> None:
    cells = write_study(tmp_path, backbones=["pixels"], methods=["sgd"], epsilons=["1"], seeds=1)
    statement = cells[0].with_name("privacy.json")
    files = {"privacy.json": sha256_file(statement)}
    read_cell(cells[0]).model_copy(update={"files": files}).write(cells[0], statement)
    summarise_cells(cells, tmp_path / "summary.parquet", study="s")
    record, promise = cells[0].read_text(), statement.read_text()
    cells[0].write_text(re.sub(r'"accuracy": 0\.\d+', '"accuracy": 0.999', record))
    for read in (
        lambda: summarise_cells(cells, tmp_path / "none.parquet", study="s"),
        lambda: read_cell_results(cells),
    ):
        with pytest.raises(DataError, match=r"metrics\.json"):
            read()
    cells[0].write_text(record)
    statement.write_text(promise.replace('"n": 1000', '"n": 9000'))
    assert statement.read_text() != promise
    with pytest.raises(DataError, match=r"privacy\.json"):
        summarise_cells(cells, tmp_path / "none.parquet", study="s")
    assert not (tmp_path / "none.parquet").exists()


NAMED = SCHEMA.get_field_index("accuracy")


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,  # of a file that is cut short
        SCHEMA.remove(NAMED),
        SCHEMA.append(pa.field("more", pa.float64())),
        SCHEMA.set(NAMED, pa.field("precision", pa.float64())),
        SCHEMA.set(NAMED, pa.field("accuracy", pa.string())),
    ],
)
def test_other_tables_are_refused_by_name(schema: pa.Schema, tmp_path: Path) -> None:
    path = tmp_path / "digits.parquet"
    pq.write_table(schema.empty_table(), path)
    if schema is SCHEMA:
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"digits\.parquet"):
        read_summaries([path])


def test_cells_that_show_different_metrics_are_refused(tmp_path: Path) -> None:
    cells = [
        write_cell(tmp_path, class_names=("no", "yes"), headline="auc"),
        write_cell(tmp_path, class_names=("no", "yes"), epsilon="2"),
    ]
    with pytest.raises(DataError, match="metric"):
        summarise_cells(cells, tmp_path / "summary.parquet", study="study")


@given(st.floats(1e-6, 1e6))
def test_a_privacy_loss_is_never_shown_smaller(loss: float) -> None:
    assert loss <= rounded_up(loss) <= 1.0011 * loss
    assert [rounded_up(each) for each in (0.12344999, 0.5, 9.99999)] == [0.1235, 0.5, 10.0]


def _write_risk(folder: Path, *realised: float, token: str = "advantage-0.1") -> list[Path]:
    """Writes a cell per realised epsilon, each of a method, whose budget is a risk."""
    paths = []
    for index, epsilon in enumerate(realised):
        path = write_cell(folder, method=f"sgd{index}", epsilon=f"{epsilon:g}", seeds=1)
        target = path.parents[1] / f"eps-{token}"
        path.parent.rename(target)
        record = read_json(target / "metrics.json")
        record["cell"]["epsilon"], record["realised_epsilon"] = token, epsilon
        write_json(target / "metrics.json", record)
        paths.append(target / "metrics.json")
    return paths


def test_a_permitted_risk_has_one_row_with_the_largest_epsilon_of_its_cells(tmp_path: Path) -> None:
    cells = [
        *_write_risk(tmp_path, 0.93171, 1.4),
        write_cell(tmp_path, method="sgd0", epsilon="1", seeds=1),
    ]
    grid = grid_of(tmp_path, *cells)
    assert grid.rows == (("digits", 1.0), ("digits", 1.4))
    assert row_words(grid.rows[1][1]) == "advantage 0.1 (ε ≤ 1.4)"
    told = "advantage 0.1 is ε 0.9318 to 1.4 (TPR at most 0.41% at 0.1% FPR)"
    assert explain_risks(grid.risks) == told
    own = [grid.get(("digits", 1.4), ("pixels", name)) for name in ("sgd0", "sgd1")]
    assert [entry and entry.epsilon for entry in own] == [0.9318, 1.4]
    assert own[0] is not None
    assert own[0].private
    assert {cell.epsilon for cell in read_cell_results(cells)} == {1.0, 1.4}
    best = [each for each in best_private(grid, {}) if each.epsilon == "advantage-0.1"]
    (own_words,) = [each.budget for each in best]
    assert own_words in ("0.9318 (advantage 0.1)", "1.4 (advantage 0.1)")
    assert own_words == budget_words(best[0].entry.epsilon or 0.0)


def test_a_risk_and_an_epsilon_that_agree_have_rows_of_their_own(tmp_path: Path) -> None:
    cells = [
        *_write_risk(tmp_path, 1.0),
        *_write_risk(tmp_path, 1.0, token="tpr-0.1-at-0.01"),
        write_cell(tmp_path, method="sgd0", epsilon="1", seeds=1),
    ]
    grid = grid_of(tmp_path, *cells)
    assert [epsilon for _, epsilon in grid.rows] == [1.0, 1.001, 1.002]
    assert len(grid.entries) == 3
