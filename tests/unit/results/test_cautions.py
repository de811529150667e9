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
    choice_words,
    headline_lines,
    majority_doubt,
    majority_words,
    verdict,
)
from dpprobe.results.best_private import best_private
from dpprobe.results.cautions import list_cautions, never_predicted, never_predicted_lines
from dpprobe.results.cell_record import read_cell
from dpprobe.results.headline_metric import headline_reason, least_class
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


def _never(path: Path, *never: list[int]) -> Path:
    """Changes the classes that the seeds of a cell never predict."""
    values = read_json(path)
    for seed, classes in zip(values["seeds"], never, strict=True):
        seed["never_predicted"] = classes
        if classes == [1]:
            seed["per_class_recall"] = [1.0, 0.0]
    write_json(path, values)
    return path


def test_a_class_that_is_never_predicted_is_named_with_its_cells(tmp_path: Path) -> None:
    cells = [
        _never(write_cell(tmp_path, epsilon=epsilon, rows=660, **LESIONS), *never)
        for epsilon, never in (("0.5", [[1]] * 3), ("1", [[1]] * 3), ("8", [[1], [], []]))
    ]
    grid = grid_of(tmp_path, *cells)
    assert never_predicted_lines(grid, "digits", grid.columns, balanced=False) == [
        "malignant in all 3 seeds by sgd on pixels (ε = 0.5, 1)",
        "malignant in 1 of 3 seeds by sgd on pixels (ε = 8)",
    ]
    (caution,) = list_cautions(grid, "digits")
    assert "`balanced: true`" in caution
    assert not list(list_cautions(grid, "digits", columns=[("pixels", "another")]))
    least = least_class(read_cell(cells[0]))
    assert least is not None
    assert (least.name, least.value) == ("malignant", 0.0)
    told = headline_lines(grid, best_private(grid, {}), "digits")
    assert any("0.0% (class malignant) at ε = 0.5" in line for line in told)


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


@pytest.mark.parametrize(
    ("options", "constant"),
    [
        ({"class_names": ("a", "b", "c"), "shares": (0.48, 0.46, 0.06)}, "33.3% macro accuracy"),
        (LESIONS, "50.0% AUC"),
        ({"shares": (0.25,) * 4}, "% accuracy"),
    ],
)
def test_the_majority_class_baseline_is_told_in_the_metric_of_the_headline(
    options: dict[str, Any], constant: str, tmp_path: Path
) -> None:
    """A result as good as noise is told as such, and one that is better is not."""
    cells = [
        write_cell(tmp_path, epsilon=epsilon, quality=quality, rows=400, **options)
        for epsilon, quality in (("1", 0.0), ("8", 3.0))
    ]
    grid = grid_of(tmp_path, *cells)
    poor, good = best_private(grid, {})
    assert constant in majority_words(good.entry, good.measure)
    assert "points above the majority-class baseline (" in verdict(good)
    assert majority_doubt(good) == ""
    assert majority_doubt(poor) == "Its interval includes the majority-class baseline."
    lines = headline_lines(grid, best_private(grid, {}), "digits")
    assert any(line.startswith("Majority-class baseline: ") and constant in line for line in lines)
    assert "ε = 1: Its interval includes the majority-class baseline." in lines


@pytest.mark.parametrize("option", ["class_priors", "class_weights"])
def test_a_class_balanced_head_is_not_told_to_become_one(option: str, tmp_path: Path) -> None:
    cells = [write_cell(tmp_path, method=name, rows=660, **LESIONS) for name in ("auto", "plain")]
    for path in cells:
        values = read_json(path)
        if "auto" in path.as_posix():
            values["options"] = {"head": "auto", "chosen": {"head": "sgd", option: "released"}}
        write_json(path, values)
        _never(path, *[[1]] * 3)
    grid = grid_of(tmp_path, *cells)
    already, advised = sorted(list_cautions(grid, "digits"), key=lambda text: "plain" in text)
    assert "malignant in all 3 seeds by auto on pixels" in already
    assert "class-balanced already" in already
    assert "balanced: true" not in already
    assert "malignant in all 3 seeds by plain on pixels" in advised
    assert "`balanced: true`" in advised


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


def test_the_best_of_several_heads_is_said_to_be_selected(tmp_path: Path) -> None:
    cells = [write_cell(tmp_path, method=f"m{i}") for i in range(3)]
    (best,) = best_private(grid_of(tmp_path, *cells), {})
    assert choice_words(best) == (
        f"Selected from 3 private heads by test results, so {best.entry.mean:.1f}% tends to be too "
        "high (selection bias)."
    )
    (alone,) = best_private(grid_of(tmp_path, cells[0]), {})
    assert choice_words(alone) == ""
