"""The best private result, its ceiling, and what few images leave open of both."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.reporting.headline import baseline_doubt
from dpprobe.results.best_private import best_of_each, best_private
from dpprobe.results.cell_results import read_cell_results
from tests.support.cell_files import grid_of, write_cell
from tests.support.paper_tables import LAMB, paper_cell, paper_run, rows_as_text, table_of


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
            ("sgd", "2", 1.0), ("sgd", "1", 0.5), ("adam", "1", 4.0), ("lamb", "1", 0.5),
        )
    ]  # fmt: skip
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
