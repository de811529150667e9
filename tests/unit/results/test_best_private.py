"""The best private result of each dataset and epsilon, with its ceiling and other references."""

from __future__ import annotations

import math

from dpprobe.privacy.risk import RiskEpsilon
from dpprobe.results.best_private import (
    Best,
    best_private,
    best_result,
    choose_highlights,
    from_one,
    list_best_columns,
)
from dpprobe.results.cell_record import Measure
from dpprobe.results.paired_difference import compare_entries
from tests.support.made_grids import made_entry, made_grid

FREE = {"private": False, "ceiling": True}


def _words(best: Best) -> tuple[str, str, str, str, float]:
    return best.dataset, best.epsilon, best.backbone, best.method, best.entry.mean


def test_each_dataset_and_epsilon_has_its_best_private_head_and_the_ceiling_of_its_backbone() -> (
    None
):
    grid = made_grid(
        {
            ("digits", 0.5, "x", "a"): made_entry(60.0),
            ("digits", 0.5, "x", "b"): made_entry(61.0),
            ("digits", 0.5, "y", "a"): made_entry(59.0),
            ("digits", 0.5, "y", "search"): made_entry(99.0, private=False, unpriced=True),
            ("digits", 2.0, "y", "a"): made_entry(70.0),
            ("digits", math.inf, "x", "free"): made_entry(80.0, **FREE),
            ("digits", math.inf, "x", "other"): made_entry(85.0, **FREE),
            ("digits", math.inf, "x", "b"): made_entry(99.0, private=False),
            ("wine", 2.0, "y", "a"): made_entry(50.0),
            ("wine", math.inf, "x", "free"): made_entry(90.0, **FREE),
        }
    )
    first, second, third = best_private(grid, {})
    assert _words(first) == ("digits", "0.5", "x", "b", 61.0)
    assert first.ceiling is grid.entries["digits", math.inf, "x", "other"]
    assert first.gap == 24.0
    assert first.beside_ceiling == compare_entries(first.entry, first.ceiling)
    assert (first.choice.candidates, first.choice.epsilon) == (3, 1.0)
    assert _words(second) == ("digits", "2", "y", "a", 70.0)
    assert (second.choice.candidates, second.choice.epsilon) == (1, 4.0)
    assert (second.ceiling, second.gap, second.beside_ceiling) == (None, None, None)
    assert _words(third) == ("wine", "2", "y", "a", 50.0)
    assert third.ceiling is None, "another backbone's ceiling, and another dataset's, are none"
    assert list_best_columns([first, second, third], "digits") == [("x", "b"), ("y", "a")]
    assert list_best_columns([first, first], "digits") == [("x", "b")]


def test_of_equal_results_the_first_is_the_best() -> None:
    grid = made_grid({("d", 1.0, "x", name): made_entry(50.0) for name in ("b", "a", "c")})
    (best,) = best_private(grid, {})
    assert best.method == "a", "methods come by name"
    entries = [made_entry(1.0), made_entry(2.0, seeds=1), made_entry(2.0, seeds=2)]
    assert best_result(entries) is entries[1]
    assert best_result([]) is None


def test_the_zero_shot_result_is_the_best_in_the_metric_of_the_dataset() -> None:
    entries = {(name, 1.0, "x", "a"): made_entry(50.0) for name in ("d", "e", "f")}
    grid = made_grid(entries, measures={"d": Measure(headline="auc")})
    zero = {
        ("d", "x"): ("accuracy", 99.0),
        ("d", "y"): ("auc", 60.0),
        ("d", "z"): ("auc", 61.0),
        ("e", "x"): ("auc", 40.0),
        ("e", "y"): ("auc", 30.0),
    }
    bests = best_private(grid, zero)
    assert [best.measure.headline for best in bests] == ["auc", "accuracy", "accuracy"]
    found = {best.dataset: best.zero_shot for best in bests}
    assert found == {"d": ("z", "auc", 61.0), "e": ("x", "auc", 40.0), "f": None}


def test_a_permitted_risk_is_reported_with_the_heads_own_epsilon() -> None:
    row = RiskEpsilon(1.4, "advantage-0.1", 1e-5)
    own = RiskEpsilon(1.2, "advantage-0.1", 1e-5)
    grid = made_grid({("d", row, "x", "a"): made_entry(50.0, epsilon=own)})
    (best,) = best_private(grid, {})
    assert (best.epsilon, best.at, best.head_epsilon) == ("advantage-0.1", 1.4, 1.2)
    assert best.budget == "1.2 (advantage 0.1)"
    (plain,) = best_private(made_grid({("d", 0.5, "x", "a"): made_entry(50.0)}), {})
    assert (plain.head_epsilon, plain.budget) == (0.5, "0.5")


def test_the_highlight_is_the_epsilon_nearest_to_one_by_factors() -> None:
    epsilons = {"a": (0.25, 2.0, 8.0), "b": (0.1, 1.0), "c": (0.5, 2.0)}
    grid = made_grid(
        {(name, e, "x", "m"): made_entry(50.0) for name, each in epsilons.items() for e in each}
    )
    chosen = choose_highlights(best_private(grid, {}))
    assert [(best.dataset, best.at) for best in chosen] == [("a", 2.0), ("b", 1.0), ("c", 0.5)]
    assert from_one(0.5) == from_one(2.0) > from_one(1.0) == 0
