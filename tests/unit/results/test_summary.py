"""The tidy table of a dataset's cells."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.artifacts import read_json, sha256_file, write_json, write_text
from dpprobe.errors import DataError
from dpprobe.privacy.risk import budget_words, explain_risks, row_words
from dpprobe.results.best_head_price import choice_price
from dpprobe.results.best_private import best_private
from dpprobe.results.cell_record import read_cell
from dpprobe.results.cell_results import read_cell_results
from dpprobe.results.summary import (
    SCHEMA,
    Entry,
    Grid,
    read_grid,
    read_summaries,
    rounded_up,
    summarise_cells,
)
from tests.support.cell_files import grid_of, write_cell, write_study


def _entry(grid: Grid, dataset: str = "digits", epsilon: float = 1.0) -> Entry:
    entry = grid.get((dataset, epsilon), ("pixels", "sgd"))
    assert entry is not None
    return entry


def test_one_row_a_cell_and_seed(tmp_path: Path) -> None:
    cells = write_study(tmp_path, seeds=3)
    summarise_cells(cells, tmp_path / "summary.parquet", study="study")
    table = pq.read_table(tmp_path / "summary.parquet")
    assert table.schema.equals(SCHEMA)
    assert table.num_rows == 3 * len(cells)
    rows = table.to_pylist()
    record = read_cell(cells[0])
    found = [
        row
        for row in rows
        if all(row[name] == getattr(record.cell, name) for name in ("backbone", "method"))
        and row["epsilon_token"] == record.cell.epsilon
    ]
    assert [row["accuracy"] for row in found] == [seed["accuracy"] for seed in record.seeds]
    assert [row["seed_index"] for row in found] == [0, 1, 2]
    assert found[0]["accuracy_low"] == record.summary["accuracy"].low
    assert found[0]["study"] == "study"
    assert {row["top5_accuracy"] for row in rows} == {None}


def test_epsilon_is_a_number_and_orders_the_rows(tmp_path: Path) -> None:
    epsilons = ("10", "2", "inf", "0.5")
    cells = write_study(tmp_path, backbones=["pixels"], methods=["sgd"], epsilons=epsilons, seeds=1)
    summarise_cells(cells, tmp_path / "summary.parquet", study="study")
    table = pq.read_table(tmp_path / "summary.parquet")
    assert table["epsilon"].to_pylist() == [0.5, 2.0, 10.0, math.inf]
    assert table["private"].to_pylist() == [True, True, True, False]
    assert table["noise_multiplier"].to_pylist()[-1] is None


@pytest.mark.parametrize(
    "text", [None, "{", "[1]", '{"format": "dpprobe-cell", "format_version": 1}']
)
def test_what_is_no_record_is_refused_by_name(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "metrics.json"
    if text is not None:
        write_text(path, text)
    with pytest.raises(DataError, match=re.escape(str(path))):
        read_cell(path)


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


def test_grid_holds_means_and_intervals_in_percent(tmp_path: Path) -> None:
    cell = write_cell(tmp_path, epsilon="1", seeds=4)
    grid = grid_of(tmp_path, cell)
    accuracy, entry = read_json(cell)["summary"]["accuracy"], _entry(grid)
    assert entry.mean == pytest.approx(100 * accuracy["mean"])
    assert entry.low == pytest.approx(100 * accuracy["low"])
    assert entry.high == pytest.approx(100 * accuracy["high"])
    assert entry.over_seeds
    low, high = (100 * accuracy[f"rows_{end}"] for end in ("low", "high"))
    assert (entry.rows_low, entry.rows_high) == pytest.approx((low, high))
    assert entry.rows_reach == pytest.approx(max(entry.mean - low, high - entry.mean))
    assert (entry.seeds, entry.private, entry.ceiling) == (4, True, False)
    assert grid.deltas == {"digits": 1e-5}
    assert grid.above == frozenset()
    assert grid.delta_text("digits") == "1e-05"
    assert grid.delta_text("other") is None


@pytest.mark.parametrize(("n", "above"), [(99_999, False), (100_000, False), (100_001, True)])
def test_a_delta_above_one_over_n_is_marked(tmp_path: Path, n: int, above: bool) -> None:
    cells = [write_cell(tmp_path, epsilon=epsilon) for epsilon in ("1", "inf")]
    cells.append(write_cell(tmp_path, dataset="small"))
    for cell in cells[:2]:
        write_json(cell, read_json(cell) | {"n": n})
    summarise_cells(cells, tmp_path / "summary.parquet", study="study")
    assert set(pq.read_table(tmp_path / "summary.parquet")["n"].to_pylist()) == {n, 1000}
    grid = read_grid([tmp_path / "summary.parquet"])
    assert grid.above == ({"digits"} if above else set())
    assert grid.delta_text("digits") == ("1e-05 (above 1/n)" if above else "1e-05")
    assert grid.delta_text("small") == "1e-05"
    assert [result.delta_above for result in read_cell_results(cells)] == [above, False, False]


def test_a_cell_without_an_interval_has_none_in_thegrid_of(tmp_path: Path) -> None:
    cell = write_cell(tmp_path)
    record = read_json(cell)
    rows = {"rows_low": None, "rows_high": None, "rows_interval": None}
    record["summary"]["accuracy"] |= {"low": None, "high": None, "interval": None, **rows}
    write_json(cell, record)
    entry = _entry(grid_of(tmp_path, cell))
    assert (entry.low, entry.high, entry.rows_low, entry.rows_high) == (None,) * 4
    assert entry.rows_reach is None
    assert not entry.over_seeds


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


NAMES = ("round", "even", "absent")


def test_a_multi_label_dataset_is_shown_by_its_auc(tmp_path: Path) -> None:
    cell = write_cell(tmp_path, seeds=2, multi_label=True, class_names=NAMES)
    record = read_cell(cell)
    summarise_cells([cell], tmp_path / "summary.parquet", study="study")
    rows = pq.read_table(tmp_path / "summary.parquet").to_pylist()
    for name in ("auc", "mean_average_precision", "exact_match_accuracy", "accuracy"):
        assert [row[name] for row in rows] == [seed[name] for seed in record.seeds]
    assert {row["macro_accuracy"] for row in rows} == {None}
    assert rows[0]["headline"] == "auc"
    assert rows[0]["multi_label"] is True
    assert rows[0]["auc_low"] == record.summary["auc"].low
    grid = read_grid([tmp_path / "summary.parquet"])
    entry, auc = _entry(grid), record.summary["auc"]
    assert entry.mean == pytest.approx(100 * auc.mean)
    assert auc.high is not None
    assert entry.high == pytest.approx(100 * auc.high)
    measure = grid.measures["digits"]
    assert measure.is_partial
    assert measure.title == "mean AUC over 2 of 3 labels"


def test_a_dataset_may_choose_its_metric(tmp_path: Path) -> None:
    cells = [
        write_cell(tmp_path, dataset="a", class_names=("no", "yes"), headline="auc"),
        write_cell(tmp_path, dataset="b", multi_label=True, headline="accuracy"),
        write_cell(tmp_path, dataset="c", class_names=("no", "yes")),
        write_cell(tmp_path, dataset="d", multi_label=True),
    ]
    grid = grid_of(tmp_path, *cells)
    titles = {name: measure.title for name, measure in grid.measures.items()}
    named = {"a": "AUC", "b": "mean accuracy over labels", "c": "accuracy"}
    assert titles == named | {"d": "mean AUC over labels"}, "not over 4 of 4 labels"
    assert not any(measure.is_partial for measure in grid.measures.values())
    assert len({measure.least_title for measure in grid.measures.values()}) == 2
    for cell in cells:
        record = read_cell(cell)
        entry = _entry(grid, record.cell.dataset)
        assert entry.least_title == grid.measures[record.cell.dataset].least_title
        assert entry.mean == pytest.approx(100 * record.summary[record.headline].mean)


def test_cells_that_show_different_metrics_are_refused(tmp_path: Path) -> None:
    cells = [
        write_cell(tmp_path, class_names=("no", "yes"), headline="auc"),
        write_cell(tmp_path, class_names=("no", "yes"), epsilon="2"),
    ]
    with pytest.raises(DataError, match="metric"):
        summarise_cells(cells, tmp_path / "summary.parquet", study="study")


def test_a_privacy_loss_is_never_shown_smaller() -> None:
    assert rounded_up(0.12344999) == 0.1235
    assert rounded_up(0.5) == 0.5
    assert rounded_up(9.99999) == 10.0


@given(st.floats(1e-6, 1e6))
def test_a_rounded_privacy_loss_is_near(loss: float) -> None:
    assert loss <= rounded_up(loss) <= 1.0011 * loss


def test_private_cells_say_what_choosing_the_best_of_them_costs(tmp_path: Path) -> None:
    cells = [write_cell(tmp_path, method=method) for method in ("a", "b")]
    others = [write_cell(tmp_path, epsilon=epsilon) for epsilon in ("2", "inf")]
    others.append(write_cell(tmp_path, method="nonprivate", epsilon="inf"))
    choices = grid_of(tmp_path, *cells, *others).choices
    assert set(choices) == {("digits", 1.0), ("digits", 2.0)}
    expected = choice_price([cell.with_name("privacy.json") for cell in cells])
    assert expected is not None
    assert (choices["digits", 1.0].candidates, choices["digits", 1.0].epsilon) == (2, expected)
    assert (choices["digits", 2.0].candidates, choices["digits", 2.0].epsilon) == (1, None)


def test_a_summary_counts_the_patients_that_a_dataset_names(tmp_path: Path) -> None:
    paths = []
    for name, patients in (("named", 40), ("rows", None)):
        cell = write_cell(tmp_path, dataset=name, patients=patients)
        paths.append(tmp_path / f"{name}.parquet")
        summarise_cells([cell], paths[-1], study="study")
    named, rows = map(pq.read_table, paths)
    assert (set(named["train_units"].to_pylist()), set(named["test_units"].to_pylist())) == (
        {200}, {40},
    )  # fmt: skip
    assert set(rows["test_units"].to_pylist()) == {None}
    for read, patients, tested in (
        (paths[:1], True, "test patients"),
        (paths[1:], False, "test rows"),
        (paths, True, "test rows or test patients"),
    ):
        grid = read_grid(read)
        assert (grid.patients, grid.tested) == (patients, tested)


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
