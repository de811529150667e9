"""The cost of privacy by backbone and by distribution shift."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dpprobe.reporting.figures import accuracy_loss
from dpprobe.reporting.figures.accuracy_loss import (
    find_losses,
    plot_distribution_shift,
    plot_loss_by_backbone,
    relative_error,
)
from dpprobe.results.summary import Grid
from tests.support.baseline_records import write_zero_shot
from tests.support.figures import drawn_bars, legend_texts, title_of
from tests.support.made_grids import made_entry, made_grid

# results per (dataset, epsilon, backbone, method); intervals of ceilings are twice as long
ENDS = {"both_low": -4.0, "both_high": 3.0}


def _grid(means: dict[tuple[str, float, str, str], float], constant: float | None = 20.0) -> Grid:
    entries = {}
    for key, mean in means.items():
        free = key[3] == "nonprivate"
        ends = {name: mean + (1 + free) * end for name, end in ENDS.items()}
        entries[key] = made_entry(
            mean, private=math.isfinite(key[1]), ceiling=free, constant=constant, **ends
        )
    return made_grid(entries)


def _read(monkeypatch: pytest.MonkeyPatch, grid: Grid) -> None:
    monkeypatch.setattr(accuracy_loss, "read_grid", lambda _paths: grid)


def test_the_error_is_a_part_of_the_baseline_s() -> None:
    assert relative_error(100, 10) == 0
    assert relative_error(10, 10) == 100
    assert relative_error(75, 50) == 50  # AUC: a constant prediction has 50
    assert relative_error(90, None) is None
    assert relative_error(100, 100) is None  # a single class: the baseline has no error


def test_a_loss_is_the_ceiling_of_the_backbone_minus_its_best_private_head() -> None:
    grid = _grid(
        {
            ("d", 1.0, "x", "a"): 60.0,
            ("d", 1.0, "x", "b"): 65.0,
            ("d", 8.0, "x", "a"): 70.0,
            ("d", math.inf, "x", "nonprivate"): 80.0,
            ("d", 1.0, "y", "a"): 90.0,
            ("d", math.inf, "y", "nonprivate"): 95.0,
            ("d", 1.0, "no ceiling", "a"): 50.0,
        }
    )
    found = {(loss.backbone, loss.epsilon): loss for loss in find_losses(grid)}
    assert {key: loss.points for key, loss in found.items()} == {
        ("x", 1.0): 15.0,
        ("x", 8.0): 10.0,
        ("y", 1.0): 5.0,
    }
    # lower if the private head is better and the ceiling worse: 3 and 8, independent
    loss = found["x", 1.0]
    assert (loss.low, loss.high) == pytest.approx((15 - math.hypot(3, 8), 15 + math.hypot(4, 6)))
    assert loss.shift == 100 * 20 / 80


def test_losses_by_backbone_rise_with_the_ceiling_and_have_a_line_per_epsilon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    means: dict[Any, float] = {}
    for backbone, ceiling, losses in (("good", 90.0, (9, 3, 1)), ("poor", 60.0, (20, 8, 2))):
        means["d", math.inf, backbone, "nonprivate"] = ceiling
        for epsilon, loss in zip((1.0, 8.0, 16.0), losses, strict=True):
            means["d", epsilon, backbone, "a"] = ceiling - loss
    _read(monkeypatch, _grid(means))
    figure = plot_loss_by_backbone(summary=Path(), dataset="d")
    (axes,) = figure.axes
    # lines are shifted by 0.6% of the 30 points between the ceilings, but not the middle one
    points = [(60 - 0.18, 20), (90 - 0.18, 9), (60, 8), (90, 3), (60 + 0.18, 2), (90 + 0.18, 1)]
    assert [bar[:2] for bar in drawn_bars(axes)] == [pytest.approx(point) for point in points]
    assert axes.get_xlabel() == "non-private test accuracy of the backbone (%)"
    assert axes.get_ylabel() == "accuracy: points lost to privacy"
    assert legend_texts(figure) == [
        *("ε = 1", "ε = 8", "ε = 16"),
        *("backbones, from the left:", "60.0% poor", "90.0% good"),
    ]


def _two_datasets(**constants: float) -> Grid:
    """Returns ceilings of 90%, 60% and 100%; `constants` has majority-class baselines."""
    means: dict[Any, float] = {}
    for dataset, ceiling in (("near", 90.0), ("far", 60.0), ("old", 100.0)):
        means |= {
            (dataset, 1.0, "x", "a"): ceiling - 10,
            (dataset, 8.0, "x", "a"): ceiling - 4,
            (dataset, math.inf, "x", "nonprivate"): ceiling,
        }
    grid = _grid(means)
    for key, entry in grid.entries.items():
        constant = constants.get(key[0], 20.0)
        changed = {**vars(entry), "constant": constant, "constant_accuracy": constant + 1}
        grid.entries[key] = type(entry)(**changed)
    return grid


def test_shift_is_measured_by_the_ceiling_and_by_zero_shot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _read(monkeypatch, _two_datasets(old=100.0, far=40.0))
    records = [
        write_zero_shot(tmp_path, dataset="near", backbone="x", auc=0.8),  # not the cells' metric
        write_zero_shot(tmp_path, dataset="far", backbone="x", accuracy=0.7),
        write_zero_shot(tmp_path, dataset="far", backbone="other", accuracy=0.8),
    ]
    figure = plot_distribution_shift(summaries=[], zero_shot=records)
    probe, zero = figure.axes
    # errors of 10 and 40 points, of 80 and 60 for the majority class; zero-shot: 30 of 60
    near, far = 12.5, pytest.approx(200 / 3)
    bars = [bar[:2] for bar in drawn_bars(probe)]
    assert bars == [(near, 10.0), (far, 10.0), (near, 4.0), (far, 4.0)]
    assert [bar[:2] for bar in drawn_bars(zero)] == [(50.0, 10.0), (50.0, 4.0)]
    ends = 10 - math.hypot(3, 8), 10 + math.hypot(4, 6)
    assert drawn_bars(probe)[0][2:] == pytest.approx(ends)
    assert probe.get_xlim()[0] == zero.get_xlim()[0] == 0
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["shift by linear probe", "shift by zero-shot"]
    assert probe.get_xlabel() == "error in % of the majority-class\nbaseline's error"
    assert probe.get_ylabel() == "accuracy: points lost to privacy"
    assert legend_texts(figure) == ["ε = 1", "ε = 8", "near", "far"]
    left_out = "pairs left out (the majority class is always right): 1"
    assert left_out in title_of(figure)
