"""The tidy table of a dataset's cells, and the best of them."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.artifacts import read_json, sha256_file, write_json
from dpprobe.errors import DataError
from dpprobe.privacy.limits import rounded_up
from dpprobe.privacy.risk import budget_words, explain_risks, row_words
from dpprobe.reporting.headline import baseline_doubt
from dpprobe.results.best_private import best_of_each, best_private
from dpprobe.results.cautions import list_cautions
from dpprobe.results.cell_record import read_cell
from dpprobe.results.cell_results import read_cell_results
from dpprobe.results.summary import read_summaries, summarise_cells, table_schema
from tests.support.cell_files import grid_of, write_cell, write_study
from tests.support.paper_tables import LAMB, paper_cell, paper_run, rows_as_text, table_of


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
    grid = grid_of(tmp_path, *cells)
    assert [epsilon for _, epsilon in grid.rows] == [1.0, 1.001, 1.002, 1.001]
    for order in (cells, cells[::-1]):
        read = {(cell.dataset, cell.epsilon) for cell in read_cell_results(order)}
        assert read == set(grid.rows)


# The best private result, its ceiling, and what few images leave open of both.


@pytest.mark.parametrize("qualities", [(0.5, 4.0, 1.0), (4.0, 0.5, 1.0), (0.5, 1.0, 4.0)])
def test_of_several_ceilings_every_reader_takes_the_best(
    qualities: tuple[float, ...], tmp_path: Path
) -> None:
    cells = [
        paper_cell(tmp_path, method=f"free_{i}", epsilon="inf", head="nonprivate", quality=quality)
        for i, quality in enumerate(qualities)
    ]
    options = LAMB | {"batch_size": 64}
    cells += [
        paper_cell(tmp_path, method="lamb", epsilon=epsilon, head="lamb", options=options)
        for epsilon in ("8", "inf")
    ]
    best = 100 * max(cell.mean for cell in read_cell_results(cells) if cell.ceiling)
    rows = rows_as_text(table_of(paper_run(cells), "large_scale_transfer_table2"))
    (row,) = [row for row in rows if row["Data"] == "digits" and row["ε"] == "∞"]
    assert row["Best"].startswith(f"{best:.1f} ")
    (result,) = best_private(grid_of(tmp_path, *cells), {})
    assert result.ceiling is not None
    assert result.ceiling.mean == pytest.approx(best)


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
        ({}, [50, 50, 50, 50], 200.0),  # an accuracy: all rows
        ({"headline": "macro_accuracy"}, [50, 50, 50, 50], 200.0),
        ({"headline": "macro_accuracy"}, [190, 4, 4, 2], 6.5),
        ({"headline": "macro_accuracy"}, [197, 3, 0, 0], 3.1),
        (LESIONS, [180, 20], 24.7),
        (LESIONS | {"patients": 50}, [180, 20], 6.2),  # 5 patients of the rarer class
        ({"multi_label": True}, [100, 200, 0, 2], 2.2),
        ({"multi_label": True}, [0, 200, 200, 0], 200.0),
    ],
)
def test_the_variance_rests_on_the_rows_of_rare_classes(
    options: dict[str, Any], counts: list[int], expected: float, tmp_path: Path
) -> None:
    path = write_cell(tmp_path, **options)
    write_json(path, read_json(path) | {"test_counts": counts})
    (entry,) = grid_of(tmp_path, path).entries.values()
    assert entry.resting == pytest.approx(expected, abs=0.05)


def test_a_large_difference_on_few_images_is_not_called_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An AUC of a half beside one of 0.87, on a dozen images."""
    options: dict[str, Any] = {"class_names": ("a", "b"), "headline": "auc", "rows": 12, "seeds": 5}
    cells = [
        write_cell(tmp_path, epsilon="1", quality=0.2, **options),
        write_cell(tmp_path, method="nonprivate", epsilon="inf", quality=1.5, **options),
    ]
    (best,) = best_private(grid_of(tmp_path, *cells), {})
    beside = best.beside_ceiling
    assert beside is not None
    assert beside.difference < -10
    assert beside.high is not None
    assert beside.high > 0
    needed = 12 * ((beside.high - beside.difference) / -beside.difference) ** 2
    assert f"at least {math.ceil(needed)} test examples" in baseline_doubt(best)
    for low, high in ((-2.0, 2.0), (-0.5, 0.1), (-1.0, 2.1), (-2.1, 1.0)):
        near = replace(beside, low=low, high=high)
        monkeypatch.setattr(type(best), "beside_ceiling", near)
        assert ("is within noise" in baseline_doubt(best)) == (max(-low, high) <= 2)
