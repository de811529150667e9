"""What privacy costs by backbone and by distribution shift."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.errors import NothingToShow
from dpprobe.reporting.figures.accuracy_loss import (
    find_losses,
    plot_distribution_shift,
    plot_loss_by_backbone,
    relative_error,
)
from dpprobe.results.best_private import best_private
from dpprobe.results.cell_results import CellResult
from dpprobe.results.summary import read_grid, summarise_cells
from tests.support.comparison_cells import compared_cells
from tests.support.figures import legend_words


def write_summaries(root: Path, cells: Sequence[CellResult]) -> list[Path]:
    """Writes the summaries of made-up cells, one a dataset."""
    paths = []
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        paths.append(root / f"{dataset}.parquet")
        files = sorted(root.glob(f"cells/{dataset}/*/*/*/metrics.json"))
        summarise_cells(files, paths[-1], study="study")
    return paths


def write_zero_shot(root: Path, dataset: str, backbone: str, **metrics: float) -> Path:
    """Writes the record of a zero-shot classifier; its headline is the first metric."""
    path = root / f"zero_shot_{dataset}_{backbone}.json"
    values = {"dataset": dataset, "backbone": backbone, "headline": next(iter(metrics))}
    kind = {"format": "dpprobe-zero-shot", "format_version": 1}
    write_json(path, {**kind, **values, "metrics": metrics})
    return path


def drawn_points(axes: Any) -> list[tuple[float, float]]:
    """Returns the places of all markers."""
    lines = [line for line in axes.get_lines() if line.get_marker() not in ("None", "_", "|", "")]
    return [(float(x), float(y)) for line in lines for x, y in line.get_xydata()]


def test_a_loss_is_the_ceiling_of_the_backbone_minus_its_best_private_head(tmp_path: Path) -> None:
    cells = compared_cells(tmp_path, epsilons=("1", "inf"), backbones=("small", "large"))
    grid = read_grid(write_summaries(tmp_path, cells))
    losses = {loss.backbone: loss for loss in find_losses(grid)}
    assert set(losses) == {"small", "large"}
    for backbone, loss in losses.items():
        here = [cell for cell in cells if cell.backbone == backbone]
        best = max(100 * cell.mean for cell in here if cell.private)
        (ceiling,) = (100 * cell.mean for cell in here if cell.ceiling)
        assert loss.ceiling.mean == pytest.approx(ceiling)
        # choosing the best of two heads flatters it: the loss is no less than the plain gap
        assert loss.points >= ceiling - best - 1e-9
        assert loss.low is not None
        assert loss.high is not None
        assert loss.low < loss.points < loss.high
    (whole,) = best_private(grid, {})
    assert losses[whole.backbone].points == pytest.approx(whole.gap, abs=2.0)


def test_the_error_is_a_part_of_the_baseline_s() -> None:
    assert relative_error(100, 10) == 0
    assert relative_error(10, 10) == 100
    assert relative_error(75, 50) == 50  # an AUC: one answer for all has 50
    assert relative_error(90, None) is None
    assert relative_error(100, 100) is None  # one class alone: no error to compare with


def test_losses_stand_at_the_backbones_non_private_results(tmp_path: Path) -> None:
    names = ("small", "medium", "large")
    cells = compared_cells(tmp_path, backbones=names, epsilons=("0.1", "8", "inf"))
    (summary,) = write_summaries(tmp_path, cells)
    figure = plot_loss_by_backbone(summary=summary, dataset="digits")
    losses = find_losses(read_grid([summary]))
    assert len(losses) == 6
    (axes,) = figure.axes
    points = drawn_points(axes)
    for loss in losses:
        near = [y for x, y in points if abs(x - loss.ceiling.mean) < 0.5]
        assert any(y == pytest.approx(loss.points) for y in near)
    assert axes.get_xlabel() == "non-private test accuracy of the backbone (%)"
    texts = legend_words(figure)
    assert texts[:3] == ["ε = 0.1", "ε = 8", "backbones, from the left:"]
    assert [text.split("% ")[1] for text in texts[3:]] == list(names)


def test_shift_is_measured_by_the_ceiling_and_by_zero_shot(tmp_path: Path) -> None:
    cells = compared_cells(tmp_path, datasets=("near", "far", "solved"), epsilons=("1", "inf"))
    for path in tmp_path.glob("cells/solved/*/nonprivate/*/metrics.json"):
        record = read_json(path)
        perfect = [seed | {"accuracy": 1.0} for seed in record["seeds"]]
        write_json(path, record | {"seeds": perfect})
    summaries = write_summaries(tmp_path, cells)
    records = [
        write_zero_shot(tmp_path, "near", "large", accuracy=0.8),
        write_zero_shot(tmp_path, "far", "large", auc=0.8),  # not the metric of its cells
        write_zero_shot(tmp_path, "solved", "large", accuracy=1.0),
    ]
    figure = plot_distribution_shift(summaries=summaries, zero_shot=records)
    probe, zero = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "shift by linear probe", "shift by zero-shot",
    ]  # fmt: skip
    grid = read_grid(summaries)
    losses = find_losses(grid)
    assert all(loss.ceiling.constant for loss in losses)
    wanted = [
        ((100 - loss.ceiling.mean) / (100 - (loss.ceiling.constant or 0.0)) * 100, loss.points)
        for loss in losses
    ]
    assert [x for x, _ in wanted].count(0) == 2
    for point, expected in zip(sorted(drawn_points(probe)), sorted(wanted), strict=True):
        assert point == pytest.approx(expected)
    near, solved = (
        next(loss for loss in losses if (loss.dataset, loss.backbone) == (name, "large"))
        for name in ("near", "solved")
    )
    assert drawn_points(zero) == [
        pytest.approx((100 * 20 / (100 - (near.ceiling.constant or 0.0)), near.points)),
        pytest.approx((0.0, solved.points)),
    ]
    texts = legend_words(figure)
    assert texts == ["ε = 1", "near", "far", "solved"]
    assert "left out" not in figure.get_suptitle()


def test_pairs_of_one_class_are_counted_and_without_text_there_is_one_panel(tmp_path: Path) -> None:
    cells = compared_cells(tmp_path, datasets=("a", "b", "old"), backbones=["x"])
    for path in tmp_path.glob("cells/old/*/*/*/metrics.json"):
        write_json(path, read_json(path) | {"constant_accuracy": 1.0})
    summaries = write_summaries(tmp_path, cells)
    figure = plot_distribution_shift(summaries=summaries, zero_shot=[])
    assert len(figure.axes) == 1
    assert "pairs left out (the majority class is always right): 1" in " ".join(
        figure.get_suptitle().split()
    )
    with pytest.raises(NothingToShow, match="1 datasets"):
        plot_distribution_shift(summaries=summaries[::2], zero_shot=[])
