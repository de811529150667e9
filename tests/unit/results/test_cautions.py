"""Warnings about classes that are never predicted, and about weak non-private baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dpprobe.files.json_files import read_json, write_json
from dpprobe.privacy.risk import RiskEpsilon
from dpprobe.results.cautions import (
    list_cautions,
    never_predicted,
    never_predicted_lines,
    weak_baseline_lines,
)
from dpprobe.results.summary import Grid
from tests.support.cell_files import grid_of, write_cell
from tests.support.made_grids import made_entry, made_grid


@pytest.mark.parametrize(
    ("seeds", "never", "expected"),
    [
        (4, {}, ""),
        (4, {"a": 4}, "a in all 4 seeds"),
        (1, {"a": 1}, "a in its one seed"),
        (4, {"a": 2}, "a in 2 of 4 seeds"),
        (4, {"a": 3, "b": 3}, "a, b in 3 of 4 seeds"),
        (4, {"a": 1, "b": 3}, "a, b in up to 3 of 4 seeds"),
        (4, {"a": 4, "b": 1, "c": 4}, "a, c in all 4 seeds, and b in 1 of 4 seeds"),
        (4, dict.fromkeys("abcde", 4), "a, b, c, d, e in all 4 seeds"),
        (4, dict.fromkeys("abcdefg", 4), "a, b, c, d, e and 2 more in all 4 seeds"),
    ],
)
def test_classes_are_reported_with_the_seeds_that_leave_them_out(
    seeds: int, never: dict[str, int], expected: str
) -> None:
    assert never_predicted(made_entry(50.0, seeds=seeds, never=never)) == expected


def _never(grid: Grid, *, balanced: bool = False) -> list[str]:
    return never_predicted_lines(grid, "d", grid.columns, balanced=balanced)


def test_equal_sets_of_classes_are_one_line_with_all_their_epsilons() -> None:
    rare, both = {"rare": 3}, {"rare": 3, "other": 1}
    risk = RiskEpsilon(1.2, "advantage-0.1", 1e-5)
    grid = made_grid(
        {
            ("d", 0.5, "x", "a"): made_entry(50.0, never=rare),
            ("d", 1.4, "x", "a"): made_entry(50.0, never=rare, epsilon=risk),
            ("d", 8.0, "x", "a"): made_entry(50.0, never=both),
            ("d", math.inf, "x", "a"): made_entry(50.0),
            ("d", 8.0, "y", "a"): made_entry(50.0, never=rare, balanced=True),
            ("e", 8.0, "x", "a"): made_entry(50.0, never=rare),
        }
    )
    assert _never(grid) == [
        "rare in all 3 seeds by a on x (ε = 0.5, 1.2 (advantage 0.1))",
        "rare in all 3 seeds, and other in 1 of 3 seeds by a on x (ε = 8)",
    ]
    assert _never(grid, balanced=True) == ["rare in all 3 seeds by a on y (ε = 8)"]
    plain, balanced = list_cautions(grid, "d")
    assert plain.startswith(f"Never predicted: {'; '.join(_never(grid))}. If the class is rare, ")
    assert "`balanced: true`" in plain
    assert "class-balanced already" in balanced
    assert "balanced: true" not in balanced
    assert [*list_cautions(grid, "d", columns=[("y", "a")])] == [balanced]
    assert [*list_cautions(grid, "d", columns=[])] == []


def _at_infinity(means: Mapping[str, float], backbone: str = "x") -> dict[Any, Any]:
    return {
        ("d", math.inf, backbone, name): made_entry(
            mean, private=False, ceiling=name.startswith("free"), network=name.startswith("net")
        )
        for name, mean in means.items()
    }


@pytest.mark.parametrize(
    ("means", "told"),
    [
        ({"free": 60.0, "sgd": 60.0}, False),
        ({"free": 60.0, "sgd": 60.9375}, False),
        ({"free": 60.0, "sgd": 61.0}, True),  # exactly one point
        ({"free": 60.0, "net": 99.0}, False),  # a network is not a head
        ({"free": 60.0, "free_too": 70.0, "sgd": 65.0}, False),  # the best ceiling counts
        ({"sgd": 99.0}, False),
    ],
)
def test_a_baseline_below_a_head_without_noise_is_called_a_reference(
    means: dict[str, float], told: bool
) -> None:
    private = {("d", 1.0, "x", "sgd"): made_entry(99.0)}
    lines = weak_baseline_lines(made_grid(private | _at_infinity(means)), "d")
    assert lines == told * [
        "On x the non-private baseline (60.0%) is below sgd without noise (61.0%): it is a "
        "reference, not an upper bound"
    ]


@pytest.mark.parametrize("option", ["class_priors", "class_weights"])
def test_records_say_which_heads_are_balanced_and_what_seeds_leave_out(
    option: str, tmp_path: Path
) -> None:
    cells = [write_cell(tmp_path, dataset="d", method=name) for name in ("auto", "plain")]
    for path, options in zip(cells, ({"chosen": {option: "released"}}, {}), strict=True):
        record = read_json(path)
        for seed, classes in zip(record["seeds"], ([0, 3], [3], [3]), strict=True):
            seed["never_predicted"] = classes
        write_json(path, record | {"options": {"head": "auto"} | options})
    grid = grid_of(tmp_path, *cells)
    told = "three in all 3 seeds, and zero in 1 of 3 seeds by {} on pixels (ε = 1)"
    assert _never(grid, balanced=True) == [told.format("auto")]
    assert _never(grid) == [told.format("plain")]
