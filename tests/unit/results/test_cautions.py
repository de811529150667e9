"""The headline of imbalanced data: its metric, what always answering gets, and warnings."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.reporting.headline import (
    baseline_doubt,
    headline_lines,
)
from dpprobe.results.best_private import best_private
from dpprobe.results.cautions import list_cautions, never_predicted
from dpprobe.results.cell_record import read_cell
from dpprobe.results.headline_metric import headline_reason
from tests.support.cell_files import grid_of, write_cell

LESIONS: dict[str, Any] = {"class_names": ("benign", "malignant"), "shares": (0.9, 0.1)}


@pytest.mark.parametrize(
    ("options", "headline", "words"),
    [
        ({}, "accuracy", "(classes are balanced: "),
        (LESIONS, "auc", "a malignant image scores above a benign one. Classes are imbalanced ("),
        ({"shares": (0.6, 0.2, 0.1, 0.1)}, "macro_accuracy", "mean of the recalls of the classes"),
        (LESIONS | {"headline": "accuracy"}, "accuracy", "(set by the study or the catalog)"),
        ({"multi_label": True}, "auc", "may have several labels"),
        ({"class_names": ("a", "b"), "shares": (1.0, 0.0)}, "accuracy", "are of one class"),
        ({"class_names": [f"c{i}" for i in range(100)],
          "shares": [0.109] + [0.009] * 99, "rows": 2000}, "macro_accuracy", "macro accuracy"),
        ({"class_names": ("a", "b"), "rows": 3, "seeds": 1, "shares": (0.5, 0.5)},
         "accuracy", "are of one class"),
    ],
)  # fmt: skip
def test_the_metric_follows_the_test_split_and_says_why(
    options: dict[str, Any], headline: str, words: str, tmp_path: Path
) -> None:
    record = read_cell(write_cell(tmp_path, **options))
    grid = grid_of(tmp_path, write_cell(tmp_path, **options))
    (best,) = best_private(grid, {})
    assert record.headline == best.measure.headline == headline
    assert words in str(headline_reason(record))
    assert grid.reasons["digits"] == headline_reason(record)
    lines = headline_lines(grid, best_private(grid, {}), "digits")
    assert lines[0] == grid.reasons["digits"]


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


@pytest.mark.parametrize(
    ("seeds", "never", "words"),
    [
        (1, {"a": 1}, "a in its one seed"),
        (4, {"a": 2}, "a in 2 of 4 seeds"),
        (4, {"a": 3, "b": 3}, "a, b in 3 of 4 seeds"),
        (4, {"a": 1, "b": 3}, "a, b in up to 3 of 4 seeds"),
        (4, {"a": 4, "b": 1, "c": 4}, "a, c in all 4 seeds, and b in 1 of 4 seeds"),
    ],
)
def test_a_caution_counts_the_seeds_that_never_predict_a_class(
    seeds: int, never: dict[str, int], words: str, tmp_path: Path
) -> None:
    (entry,) = grid_of(tmp_path, write_cell(tmp_path)).entries.values()
    assert never_predicted(replace(entry, seeds=seeds, never=never)) == words


@pytest.mark.parametrize(("quality", "told"), [(1.4, False), (3.0, True)])
def test_a_baseline_below_a_head_without_noise_is_called_a_reference(
    quality: float, told: bool, tmp_path: Path
) -> None:
    cells = [
        write_cell(tmp_path, method="nonprivate", epsilon="inf", quality=1.6, rows=2000),
        write_cell(tmp_path, method="sgd", epsilon="inf", quality=quality, rows=2000),
    ]
    grid = grid_of(tmp_path, *cells)
    means = {method: entry.mean for (_, _, _, method), entry in grid.entries.items()}
    cautions = list(list_cautions(grid, "digits"))
    assert (means["sgd"] - means["nonprivate"] > 1) is told
    assert cautions == [
        f"On pixels the non-private baseline ({means['nonprivate']:.1f}%) is below sgd without "
        f"noise ({means['sgd']:.1f}%): it is a reference, not an upper bound."
    ] * told  # fmt: skip


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
