"""The headline of imbalanced data: its metric, what always answering gets, and warnings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.reporting.headline import (
    ALWAYS,
    ONE_SEED,
    beside_words,
    ceiling_words,
    chosen_words,
    headline_lines,
)
from dpprobe.results.best_private import best_private
from dpprobe.results.cautions import describe_falls, list_cautions, never_predicted_lines
from dpprobe.results.cell_record import read_cell
from dpprobe.results.halves import half_values, split_rows
from dpprobe.results.headline_metric import headline_reason, least_class
from dpprobe.results.held_out import HeldOut
from dpprobe.results.summary import Entry, Grid, read_grid, summarise_cells
from tests.support.cell_files import write_cell

LESIONS: dict[str, Any] = {"class_names": ("benign", "malignant"), "shares": (0.9, 0.1)}


def _grid(tmp_path: Path, *cells: Path) -> Grid:
    summarise_cells(cells, tmp_path / "s.parquet", study="s")
    return read_grid([tmp_path / "s.parquet"])


@pytest.mark.parametrize(
    ("options", "headline", "words"),
    [
        ({}, "accuracy", "no class has more than 2 times"),
        (LESIONS, "auc", "that a malignant image scores above a benign one: the largest class has"),
        ({"shares": (0.6, 0.2, 0.1, 0.1)}, "macro_accuracy", "mean of the classes' accuracies"),
        (LESIONS | {"headline": "accuracy"}, "accuracy", "as the study or the catalog says"),
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
    grid = _grid(tmp_path, write_cell(tmp_path, **options))
    (best,) = best_private(grid, {})
    assert record.headline == best.measure.headline == headline
    assert words in str(headline_reason(record))
    assert grid.reasons["digits"] == headline_reason(record)
    lines = headline_lines(grid, "digits")
    assert lines[0] == grid.reasons["digits"]


def test_what_named_the_metric_is_told(tmp_path: Path) -> None:
    cell = write_cell(tmp_path, **LESIONS, headline="accuracy")
    summarise_cells([cell], tmp_path / "s.parquet", study="s", metric_of="the study")
    (reason,) = read_grid([tmp_path / "s.parquet"]).reasons.values()
    assert reason == "The metric is accuracy, as the study says."


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
    (entry,) = _grid(tmp_path, path).entries.values()
    assert entry.resting == pytest.approx(expected, abs=0.05)


def _majority(path: Path, *, seeds: int) -> None:
    """Changes a cell to one of which so many seeds answer the first class alone."""
    values = read_json(path)
    for seed in values["seeds"][:seeds]:
        seed |= {"per_class_recall": [1.0, 0.0], "never_predicted": [1]}
    write_json(path, values)


def test_classes_left_out_by_different_numbers_of_seeds_are_told_the_most(tmp_path: Path) -> None:
    path = write_cell(tmp_path, epsilon="1", rows=660)
    values = read_json(path)
    for seed, never in zip(values["seeds"], ([0, 1], [0], []), strict=True):
        seed["never_predicted"] = never
    write_json(path, values)
    (line,) = never_predicted_lines(_grid(tmp_path, path), "digits")
    assert "in up to 2 of 3 seeds" in line


def test_a_class_that_is_never_predicted_is_named_with_its_cells(tmp_path: Path) -> None:
    cells = [
        write_cell(tmp_path, epsilon=epsilon, rows=660, **LESIONS) for epsilon in ("0.5", "1", "8")
    ]
    for path, seeds in zip(cells, (3, 3, 1), strict=True):
        values = read_json(path)
        for seed in values["seeds"]:
            seed["never_predicted"] = []
        write_json(path, values)
        _majority(path, seeds=seeds)
    grid = _grid(tmp_path, *cells)
    assert never_predicted_lines(grid, "digits") == [
        "sgd on pixels never predicts malignant in all 3 seeds (epsilon 0.5, 1)",
        "sgd on pixels never predicts malignant in 1 of 3 seeds (epsilon 8)",
    ]
    assert "Never predicted: sgd on pixels" in " ".join(list_cautions(grid, [], "digits"))
    record = read_cell(cells[0])
    least = least_class(record)
    assert least is not None
    assert (least.name, least.value) == ("malignant", 0.0)
    best = best_private(grid, {})[0]
    words = beside_words(best)
    share = 100 * max(record.test_counts or ()) / 660
    assert f"{ALWAYS} has AUC 50.0\u00a0% and accuracy {share:.1f}" in words
    assert "`balanced: true`" in " ".join(list_cautions(grid, [], "digits"))
    assert "least recall of a class 0.0\u00a0% (malignant)" in words


@pytest.mark.parametrize(
    ("options", "constant"),
    [
        ({"class_names": ("a", "b", "c"), "shares": (0.48, 0.46, 0.06)}, "macro accuracy 33.3"),
        (LESIONS, "AUC 50.0"),
        ({"shares": (0.25,) * 4}, "accuracy 2"),
    ],
)
def test_a_constant_answer_is_told_in_the_metric_of_the_headline(
    options: dict[str, Any], constant: str, tmp_path: Path
) -> None:
    """A result as good as noise is told as such, and one that is better is not."""
    cells = [
        write_cell(tmp_path, epsilon=epsilon, quality=quality, rows=400, **options)
        for epsilon, quality in (("1", 0.0), ("8", 3.0))
    ]
    grid = _grid(tmp_path, *cells)
    poor, good = best_private(grid, {})
    assert f"{ALWAYS} has {constant}" in beside_words(good)
    assert beside_words(poor).startswith(f"not distinguishable from {ALWAYS}, which has {constant}")
    lines = headline_lines(grid, "digits")
    assert any(
        line.startswith(f"Always answering the most frequent has {constant}") for line in lines
    )
    assert f"The best private cells are not distinguishable from {ALWAYS}: at 1." in lines


def test_a_result_below_a_constant_answer_is_told(tmp_path: Path) -> None:
    shares: dict[str, Any] = {
        "class_names": ("a", "b"),
        "shares": (0.95, 0.05),
        "headline": "accuracy",
    }
    (best,) = best_private(
        _grid(tmp_path, write_cell(tmp_path, quality=0.0, rows=400, **shares)), {}
    )
    assert beside_words(best).startswith(f"worse than {ALWAYS}, which has accuracy 9")


@pytest.mark.parametrize(("seeds", "told"), [(2, True), (5, False)])
def test_few_seeds_are_told_where_they_widen_an_interval(
    seeds: int, told: bool, tmp_path: Path
) -> None:
    cells = [
        write_cell(tmp_path, epsilon="4", quality=0.95, seeds=seeds, rows=600),
        write_cell(
            tmp_path, method="nonprivate", epsilon="inf", quality=0.95, seeds=seeds, rows=600
        ),
    ]
    lines = headline_lines(_grid(tmp_path, *cells), "digits")
    assert any(line.startswith("More seeds may tell, at 4: ") for line in lines) == told


def test_many_classes_are_counted_rather_than_listed(tmp_path: Path) -> None:
    path = write_cell(tmp_path, class_names=[f"c{i}" for i in range(100)], rows=400)
    values = read_json(path)
    for seed in values["seeds"]:
        seed["never_predicted"] = list(range(90))
    write_json(path, values)
    (line,) = never_predicted_lines(_grid(tmp_path, path), "digits")
    assert line.count(",") < 10
    assert "c4 and 85 more in all 3 seeds" in line


def test_a_result_that_falls_as_epsilon_grows_is_told(tmp_path: Path) -> None:
    cells = [
        write_cell(tmp_path, method="prototypes", epsilon=epsilon, quality=quality, rows=600)
        for epsilon, quality in (("1", 4.0), ("2", 2.0), ("8", 0.5))
    ]
    grid = _grid(tmp_path, *cells)
    (line,) = describe_falls(grid, best_private(grid, {}), "digits")
    means = {entry[1]: grid.entries[entry].mean for entry in grid.entries}
    assert line == (
        f"prototypes on pixels falls by {means[1.0] - means[8.0]:.1f} points from epsilon 1 "
        f"({means[1.0]:.1f} %) to 8 ({means[8.0]:.1f} %), more than noise"
    )
    rising = [
        write_cell(tmp_path, method="sgd", epsilon=epsilon, quality=2.0, rows=600)
        for epsilon in ("0.5", "1", "2", "8")
    ]
    grid = _grid(tmp_path, *rising)
    assert describe_falls(grid, best_private(grid, {}), "digits") == []
    assert "Falling" not in " ".join(list_cautions(grid, best_private(grid, {}), "digits"))


@pytest.mark.parametrize(("seeds", "told"), [(1, 0), (5, 2)])
def test_the_noise_of_training_is_no_fall(seeds: int, told: int) -> None:
    """Five epsilons are equally good, and noise moves each seed by 4 points.

    One curve in twenty may be said to fall. Of one seed nothing tells the noise from a fall.
    """
    generator = np.random.default_rng(0)
    labels = np.zeros(600, dtype=np.int64)
    halves = split_rows("accuracy", labels)
    epsilons = (0.5, 1.0, 2.0, 4.0, 8.0)
    fell = 0
    for _ in range(40):
        hard = generator.random(600)
        entries = {}
        for epsilon in epsilons:
            chance = 0.7 + 0.04 * generator.normal(size=(seeds, 1))
            right = 0.5 * hard + 0.5 * generator.random((seeds, 600)) < _quantile(chance)
            values = [
                half_values("accuracy", np.eye(2)[1 - each.astype(int)], labels, halves=halves)
                for each in right
            ]
            entries["d", epsilon, "b", "m"] = Entry(
                mean=100 * right.mean(), low=None, high=None, interval=None,
                values=tuple(100 * right.mean(axis=1)), halves=100 * np.array(values),
                test_units=600, seeds=seeds, private=True, ceiling=False,
            )  # fmt: skip
        grid = Grid(
            rows=tuple(("d", epsilon) for epsilon in epsilons), columns=(("b", "m"),),
            entries=entries, deltas={}, above=frozenset(), measures={}, choices={}, reasons={},
        )  # fmt: skip
        fell += bool(describe_falls(grid, [], "d"))
    assert fell <= told


@pytest.mark.parametrize(("luck", "told"), [(0.0, True), (25.0, False)])
def test_what_two_choices_add_makes_a_fall_less_sure(
    luck: float, told: bool, tmp_path: Path
) -> None:
    """The luck of both is the same: the difference stays at 28 points."""
    cells = [
        write_cell(tmp_path, method=method, epsilon=epsilon, quality=quality, rows=600)
        for method, epsilon, quality in (("a", "1", 2.0), ("c", "4", 0.5))
    ]
    grid = _grid(tmp_path, *cells)
    bests = [
        replace(
            best,
            held_out=HeldOut(value=best.entry.mean - luck, seeds=True),
        )
        for best in best_private(grid, {})
    ]
    assert bool(describe_falls(grid, bests, "digits")) is told


def _quantile(chance: np.ndarray) -> np.ndarray:
    """The quantile of (U + V) / 2, U and V uniform: below it with that chance, of above a half."""
    return 1 - np.sqrt((1 - chance) / 2)


def test_of_one_seed_a_difference_from_the_ceiling_may_be_its_noise(tmp_path: Path) -> None:
    cells = [
        write_cell(tmp_path, epsilon="8", quality=2.1, seeds=1),
        write_cell(tmp_path, method="nonprivate", epsilon="inf", quality=2.0, seeds=1),
        write_cell(tmp_path, epsilon="1", quality=0.2, seeds=1),
        write_cell(tmp_path, epsilon="2", quality=0.2, seeds=2),
    ]
    grid = _grid(tmp_path, *cells)
    low, several, high = best_private(grid, {})
    assert ceiling_words(low).endswith(f" ({ONE_SEED})")
    assert ceiling_words(high).endswith(f" ({ONE_SEED})")
    assert ONE_SEED not in ceiling_words(several)
    assert (
        "One seed: its training noise is not in the comparison with the non-private ceiling, at "
        "1, 8."
    ) in headline_lines(grid, "digits")


def test_level_with_the_ceiling_is_not_above_it(tmp_path: Path) -> None:
    cells = [
        write_cell(tmp_path, epsilon="8", quality=2.1),
        write_cell(tmp_path, method="nonprivate", epsilon="inf", quality=2.0),
        write_cell(tmp_path, epsilon="1", quality=0.2),
    ]
    low, high = best_private(_grid(tmp_path, *cells), {})
    assert "points below the non-private ceiling" in ceiling_words(low)
    words = ceiling_words(high)
    assert words.startswith("not distinguishable from the non-private ceiling")
    assert "above" not in words
    assert "95\u00a0% interval" in words


def test_the_best_of_equal_methods_is_shown_without_its_luck(tmp_path: Path) -> None:
    cells = [write_cell(tmp_path, method=f"m{i}", seeds=4) for i in range(8)]
    (best,) = best_private(_grid(tmp_path, *cells), {})
    assert best.held_out is not None
    assert best.value < best.entry.mean
    assert best.luck == pytest.approx(best.entry.mean - best.value)
    assert best.low is not None
    assert best.high is not None
    assert best.low < best.value < best.high
    assert f"own mean is {best.entry.mean:.1f}" in chosen_words(best)
    (alone,) = best_private(_grid(tmp_path, cells[0]), {})
    assert (alone.value, alone.held_out, chosen_words(alone)) == (alone.entry.mean, None, "")


def test_too_few_test_rows_to_choose_twice_are_said(tmp_path: Path) -> None:
    options: dict[str, Any] = {"class_names": ("a", "b"), "rows": 3, "headline": "auc"}
    cells = [write_cell(tmp_path, dataset="b", method=f"m{i}", **options) for i in range(3)]
    (best,) = best_private(_grid(tmp_path, *cells), {})
    assert best.uncorrected
    assert "too high by the luck of the choice" in chosen_words(best)
    assert "which too few test rows leave unknown" in chosen_words(best)
    assert np.isfinite(best.value)


@pytest.mark.parametrize("old", [1, 3])
def test_many_test_rows_are_not_called_few_where_an_old_record_has_no_halves(
    old: int, tmp_path: Path
) -> None:
    cells = [write_cell(tmp_path, method=f"m{i}", rows=600) for i in range(3)]
    for path in cells[:old]:
        values = read_json(path)
        for seed in values["seeds"]:
            del seed["halves"]
        write_json(path, values | {"format_version": 3})
    (best,) = best_private(_grid(tmp_path, *cells), {})
    assert best.uncorrected
    assert not best.few_rows
    assert chosen_words(best).endswith("by the luck of the choice, which is not known here")
