"""The summary table of a dataset's cells, and the best cells in it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import DataError
from dpprobe.files.json_files import read_json, write_json
from dpprobe.files.plain_files import sha256_file
from dpprobe.privacy.limits import ABOVE_MARK, rounded_up
from dpprobe.privacy.risk import RiskEpsilon, budget_words, explain_risks, row_words
from dpprobe.results.best_private import best_of_each, best_private
from dpprobe.results.cautions import list_cautions
from dpprobe.results.cell_record import read_cell
from dpprobe.results.cell_results import read_cell_results
from dpprobe.results.summary import read_grid, read_summaries, summarise_cells, table_schema
from tests.support.cell_files import BARE, grid_of, summarise, write_cell, write_study


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


SCHEMA = table_schema()
NAMED = SCHEMA.get_field_index("accuracy")


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,  # for a truncated file
        SCHEMA.remove(NAMED),
        SCHEMA.append(pa.field("more", pa.float64())),
        SCHEMA.set(NAMED, pa.field("precision", pa.float64())),
        SCHEMA.set(NAMED, pa.field("accuracy", pa.string())),
    ],
)
def test_an_error_names_a_summary_that_is_truncated_or_has_another_schema(
    schema: pa.Schema, tmp_path: Path
) -> None:
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
    """Writes a cell per realised epsilon, each with its own method, whose budget is a risk."""
    paths = []
    for index, epsilon in enumerate(realised):
        path = write_cell(folder, method=f"sgd{index}", epsilon=f"{epsilon:g}", seeds=1)
        target = path.parents[1] / f"eps-{token}"
        path.parent.rename(target)
        record = read_json(target / "metrics.json")
        record["cell"]["epsilon"], record["realised_epsilon"] = token, epsilon
        record["seeds"][0]["never_predicted"] = [3]
        write_json(target / "metrics.json", record)
        paths.append(target / "metrics.json")
    return paths


def test_a_permitted_risk_has_one_row_with_the_largest_epsilon_of_its_cells(tmp_path: Path) -> None:
    cells = [
        *_write_risk(tmp_path, 0.93171, 1.4, 1.2),
        write_cell(tmp_path, method="sgd0", epsilon="1", seeds=1),
    ]
    grid = grid_of(tmp_path, *cells)
    assert grid.rows == (("digits", 1.0), ("digits", 1.4))
    assert row_words(grid.rows[1][1]) == "advantage 0.1 (ε ≤ 1.4)"
    told = "advantage 0.1 is ε 0.9318 to 1.4 (TPR at most 0.41% at 0.1% FPR)"
    assert explain_risks(grid.risks) == told
    own = [grid.get(("digits", 1.4), ("pixels", name)) for name in ("sgd0", "sgd1")]
    assert [entry and entry.epsilon for entry in own] == [0.9318, 1.4]
    (caution,) = list_cautions(grid, "digits")
    assert "three in its one seed by sgd0 on pixels (ε = 0.9318 (advantage 0.1))" in caution
    assert own[0] is not None
    assert own[0].private
    assert {cell.epsilon for cell in read_cell_results(cells)} == {1.0, 1.4}
    best = [each for each in best_private(grid, {}) if each.epsilon == "advantage-0.1"]
    (own_words,) = [each.budget for each in best]
    assert own_words == budget_words(best[0].entry.epsilon or 0.0) == "1.2 (advantage 0.1)"


def test_a_risk_and_an_epsilon_that_agree_have_rows_of_their_own(tmp_path: Path) -> None:
    cells = [
        *_write_risk(tmp_path, 1.0),
        *_write_risk(tmp_path, 1.0, token="tpr-0.1-at-0.01"),
        write_cell(tmp_path, method="sgd0", epsilon="1", seeds=1),
        write_cell(tmp_path, dataset="other", epsilon="1.001", seeds=1),
    ]
    write_json(cells[-1], read_json(cells[-1]) | {"delta": 1e-3})
    grid = grid_of(tmp_path, *cells)
    assert [epsilon for _, epsilon in grid.rows] == [1.0, 1.001, 1.002, 1.001]
    for order in (cells, cells[::-1]):
        results = read_cell_results(order)
        assert {(cell.dataset, cell.epsilon) for cell in results} == set(grid.rows)
        risks = [cell.epsilon for cell in results if isinstance(cell.epsilon, RiskEpsilon)]
        assert [risk.delta for risk in risks] == [1e-5] * 2, "of their own dataset"


# The best private result, its ceiling, and the uncertainty of both if there are few images.


def test_the_best_of_each_key_is_the_first_of_equals(tmp_path: Path) -> None:
    paths = [
        write_cell(tmp_path, method=method, epsilon=epsilon, quality=quality)
        for method, epsilon, quality in (
            ("sgd", "2", 1.0),
            ("sgd", "1", 0.5),
            ("adam", "1", 4.0),
            ("lamb", "1", 0.5),
        )
    ]
    sgd, *cells = read_cell_results(paths)
    best = best_of_each([sgd, *cells, replace(sgd, method="copy")], lambda cell: cell.epsilon)
    found = [(epsilon, cell.method) for epsilon, cell in best.items()]
    assert found == [(2.0, "sgd"), (1.0, "adam")]


LESIONS: dict[str, Any] = {"class_names": ("benign", "malignant"), "shares": (0.9, 0.1)}


@pytest.mark.parametrize(
    ("options", "counts", "expected"),
    [
        ({}, [50, 50, 50, 50], 200.0),  # accuracy uses all rows
        ({"headline": "macro_accuracy"}, [50, 50, 50, 50], 200.0),
        ({"headline": "macro_accuracy"}, [190, 4, 4, 2], 6.5),
        ({"headline": "macro_accuracy"}, [197, 3, 0, 0], 3.1),
        (LESIONS, [180, 20], 24.7),
        (LESIONS | {"patients": 50}, [180, 20], 6.2),  # 5 patients of the rarer class
        ({"multi_label": True}, [100, 200, 0, 2], 2.2),
        ({"multi_label": True}, [0, 200, 200, 0], 200.0),
        ({"multi_label": True}, [0, 200, 200, 20], 24.7),  # a label that all rows have is ignored
    ],
)
def test_the_variance_rests_on_the_rows_of_rare_classes(
    options: dict[str, Any], counts: list[int], expected: float, tmp_path: Path
) -> None:
    path = write_cell(tmp_path, **options)
    write_json(path, read_json(path) | {"test_counts": counts})
    (entry,) = grid_of(tmp_path, path).entries.values()
    assert entry.resting == pytest.approx(expected, abs=0.05)


ENDS = ("low", "high", "rows_low", "rows_high", "both_low", "both_high")


def _several(folder: Path) -> list[Path]:
    """Writes cells: two epsilons, patients, one seed, a ceiling, and an unpriced search."""
    paths = [
        write_cell(folder, epsilon="10", seeds=2, patients=50),
        write_cell(folder, epsilon="2", seeds=2, patients=50),
        write_cell(folder, epsilon="2", method="one", seeds=1, patients=50),
        write_cell(folder, epsilon="inf", method="nonprivate", patients=50),
        write_cell(folder, epsilon="2", method="found", patients=50),
    ]
    options = {"head": "fine_tune", "search": {"trials": 2}}
    write_json(paths[4], read_json(paths[4]) | {"head": "fine_tune", "options": options})
    for path in paths:
        write_json(path, read_json(path) | {"n": 250})
    return paths


def test_a_summary_has_a_row_per_cell_and_seed_whatever_the_order_of_files(tmp_path: Path) -> None:
    paths = _several(tmp_path)
    file = summarise(tmp_path / "a.parquet", *paths)
    table = pq.read_table(file)
    assert table.equals(pq.read_table(summarise(tmp_path / "b.parquet", *reversed(paths))))
    rows = table.to_pylist()
    order = [(row["method"], row["epsilon"], row["seed_index"]) for row in rows]
    assert order == [
        *(("found", 2.0, seed) for seed in range(3)),
        *(("nonprivate", math.inf, seed) for seed in range(3)),
        ("one", 2.0, 0),
        *(("sgd", epsilon, seed) for epsilon in (2.0, 10.0) for seed in range(2)),
    ]
    records = {(r.cell.method, r.cell.epsilon): r for r in map(read_cell, paths)}
    for row in rows:
        record = records[row["method"], row["epsilon_token"]]
        seed = record.seeds[row["seed_index"]]
        assert row["accuracy"] == seed["accuracy"]
        assert row["auc"] is None, "four classes have no AUC"
        assert row["half_values"] == [value for pair in seed["halves"] for value in pair]
        for end in ENDS:
            assert row[f"accuracy_{end}"] == getattr(record.summary["accuracy"], end)
        assert (row["train_rows"], row["test_rows"]) == (1000, 200)
        assert (row["train_units"], row["test_units"], row["n"]) == (250, 50, 250)
        assert (row["study"], row["num_classes"], row["dimension"]) == ("study", 4, 64)
        assert row["fingerprint"] == record.fingerprint
        assert row["constant"] == row["constant_accuracy"] == record.constant_accuracy
        private = row["method"] in ("sgd", "one")
        assert (row["private"], row["network"]) == (private, row["method"] == "found")
        candidates = {2.0: 2, 10.0: 1}[row["epsilon"]] if private else None
        assert row["candidates"] == candidates
        assert (row["choice_epsilon"] is None) == (candidates != 2), "one cell is no choice"


def test_a_grid_has_the_numbers_of_the_records_in_percent(tmp_path: Path) -> None:
    paths = _several(tmp_path)
    grid = grid_of(tmp_path, *paths)
    assert grid.rows == (("digits", 2.0), ("digits", 10.0), ("digits", math.inf))
    assert grid.columns == tuple(("pixels", m) for m in ("found", "nonprivate", "one", "sgd"))
    assert (grid.unpriced, grid.patients, grid.tested) == ({"found"}, True, "test patients")
    assert grid.measures == {"digits": read_cell(paths[0]).measure}
    assert {row: choice.candidates for row, choice in grid.choices.items()} == {
        ("digits", 2.0): 2,
        ("digits", 10.0): 1,
    }
    for path in paths:
        record = read_cell(path)
        row = ("digits", float(record.cell.epsilon))
        entry = grid.get(row, ("pixels", record.cell.method))
        assert entry is not None
        assert entry.values == pytest.approx([100 * seed["accuracy"] for seed in record.seeds])
        assert entry.mean == entry.accuracy == pytest.approx(sum(entry.values) / entry.seeds)
        for end in ENDS:
            value = getattr(record.summary["accuracy"], end)
            assert getattr(entry, end) == pytest.approx(100 * value), end
        halves = [seed["halves"] for seed in record.seeds]
        assert entry.halves == pytest.approx(100 * np.array(halves))
        assert (entry.seeds, entry.test_units, entry.patients) == (len(halves), 50, True)
        free = record.cell.method == "nonprivate"
        assert (entry.ceiling, entry.private) == (free, record.guaranteed)
        assert entry.unpriced is entry.network is (record.cell.method == "found")
        assert not entry.balanced
        assert entry.over_seeds is (entry.interval == "t over seeds")
        assert entry.rows_low is not None
        assert entry.rows_high is not None
        reach = max(entry.mean - entry.rows_low, entry.rows_high - entry.mean)
        assert entry.rows_reach == reach
        assert replace(entry, rows_low=None).rows_reach is None
        recalls = np.mean([seed["per_class_recall"] for seed in record.seeds], axis=0)
        assert entry.least == pytest.approx(100 * recalls.min())
        assert entry.least_class == record.class_names[recalls.argmin()]


def test_intervals_and_worst_classes_that_are_missing_stay_missing(tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    record = read_json(path)
    for seed in record["seeds"]:
        seed |= {"per_class_recall": [None] * 4, "halves": [], "never_predicted": [0, 2]}
    write_json(path, record | {"summary": {"accuracy": BARE}})
    (entry,) = grid_of(tmp_path, path).entries.values()
    assert {getattr(entry, end) for end in ENDS} == {None}
    assert (entry.least, entry.least_class, entry.halves, entry.rows_reach) == (None,) * 4
    assert entry.never == {"zero": 3, "two": 3}


@pytest.mark.parametrize(
    ("n", "text"), [(99_999, "1e-05"), (100_000, "1e-05"), (100_001, "1e-05 > 1/n")]
)
def test_a_delta_above_one_over_the_units_is_marked(n: int, text: str, tmp_path: Path) -> None:
    path, free = write_cell(tmp_path), write_cell(tmp_path, dataset="free", epsilon="inf")
    write_json(path, read_json(path) | {"n": n})
    grid = grid_of(tmp_path, path, free)
    assert grid.delta_text("digits") == text.replace(" > 1/n", ABOVE_MARK)
    assert grid.delta_text("free") is None


def test_files_of_several_datasets_keep_their_order_and_say_their_reasons(tmp_path: Path) -> None:
    files = []
    first, second = ("y", "b"), ("x", "c")
    for name, patients, places in (("z", None, (first, second)), ("a", 40, (first,))):
        files.append(tmp_path / f"{name}.parquet")
        same: dict[str, Any] = {"dataset": name, "patients": patients, "headline": "accuracy"}
        cells = [write_cell(tmp_path, backbone=b, method=m, **same) for b, m in places]
        summarise_cells(cells, files[-1], study="s", metric_of=f"file {name}")
    grid = read_grid(files)
    assert [row[0] for row in grid.rows] == ["z", "a"]
    assert grid.columns == (("x", "c"), ("y", "b")), "backbones before methods"
    choices = {dataset: choice.candidates for (dataset, _), choice in grid.choices.items()}
    assert choices == {"z": 2, "a": 1}
    assert {key[0]: e.test_units for key, e in grid.entries.items()} == {"z": 200, "a": 40}
    assert grid.patients
    assert grid.tested == "test rows or test patients"
    assert {name: reason[-8:] for name, reason in grid.reasons.items()} == {
        "z": "file z).",
        "a": "file a).",
    }
    assert read_grid([]).rows == ()
    assert read_grid([]).tested == "test rows"


def test_a_head_at_infinite_epsilon_is_neither_private_nor_unpriced(tmp_path: Path) -> None:
    path = write_cell(tmp_path, epsilon="inf")
    write_json(path, read_json(path) | {"private": True})  # private at a finite epsilon
    grid = grid_of(tmp_path, path)
    (entry,) = grid.entries.values()
    assert (entry.private, entry.unpriced, entry.ceiling) == (False, False, False)
    assert (grid.choices, grid.unpriced) == ({}, set())


def test_the_majority_class_baseline_is_in_the_metric_and_in_accuracy(tmp_path: Path) -> None:
    path = write_cell(tmp_path, **LESIONS)
    (entry,) = grid_of(tmp_path, path).entries.values()
    counts = read_cell(path).test_counts
    assert entry.constant == 50.0, "an AUC of scores that are all equal"
    assert entry.constant_accuracy == pytest.approx(100 * max(counts) / sum(counts))
