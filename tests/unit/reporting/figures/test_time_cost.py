"""Results by seconds: the Pareto front, the time of extraction, and methods left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.errors import NothingToShow
from dpprobe.reporting.figures import time_cost
from dpprobe.reporting.figures.time_cost import find_front, plot_time_cost, read_extraction_seconds
from dpprobe.results.cell_results import CellResult
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.support.figures import drawn_bars, legend_texts, title_of
from tests.support.made_grids import made_ceiling, made_result
from tests.support.small_study import STUDY


def make_study() -> Study:
    backbones = {name: {"family": "pixels"} for name in ("small", "large")}
    return load_study(STUDY | {"backbones": backbones, "features": {"shards": 2}})


def write_benchmarks(root: Path, backbone: str, *seconds: float) -> None:
    """Writes Snakemake's benchmarks of two shards, with one line per repetition."""
    for name in ("shard-00000-of-00002", "shard-00001-of-00002"):
        path = root / f"benchmarks/extract_features/digits/{backbone}/train/{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{each}\t1\t99" for each in seconds]
        path.write_text("\n".join(["s\tmax_rss\tcpu_time", *lines, ""]))


def draw(monkeypatch: pytest.MonkeyPatch, root: Path, cells: Sequence[CellResult]) -> Any:
    monkeypatch.setattr(time_cost, "read_cell_results", lambda _paths: list(cells))
    return plot_time_cost(study=make_study(), results=root, dataset="digits")


def _stairs(axes: Any) -> list[tuple[float, float]]:
    (line,) = (line for line in axes.get_lines() if line.get_drawstyle() == "steps-post")
    return [(float(x), float(y)) for x, y in line.get_xydata()]


def _dots(axes: Any) -> list[tuple[float, float]]:
    line = next(line for line in axes.get_lines() if line.get_markersize() == 3)
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


def _looks(figure: Any) -> tuple[list[tuple[str, str]], dict[str, tuple[str, str]]]:
    """Returns colour and marker for each point of the first front, and for each legend name."""
    drawn = [container.lines[0] for container in figure.axes[0].containers]
    named = dict(zip(legend_texts(figure), figure.legends[0].legend_handles, strict=True))
    each = {name: (line.get_color(), line.get_marker()) for name, line in named.items()}
    return [(line.get_color(), line.get_marker()) for line in drawn], each


def _timed(seconds: float | None, mean: float, epsilon: float = 1.0, **changes: Any) -> CellResult:
    """Returns a cell of three seeds that took this many seconds each."""
    three = None if seconds is None else 3 * seconds
    return made_result(mean, epsilon, **{"backbone": "small"} | changes, seconds=three)


CELLS = [
    _timed(4.0, 0.7),
    _timed(0.2 / 3, 0.5, method="dp_fc", values=(0.5,) * 2),  # two seeds in 0.2 seconds
    _timed(2.0, 0.4, method="slow"),
    _timed(4.0, 0.9, 8.0),
    _timed(0.1, 0.8, 8.0, method="dp_fc"),
    made_ceiling(0.99, backbone="small"),
]


def test_no_point_of_the_front_is_beaten_in_both() -> None:
    means = {1.0: 0.5, 2.0: 0.4, 3.0: 0.7, 4.0: 0.7, 5.0: 0.9}
    points = [(seconds, made_result(mean)) for seconds, mean in means.items()]
    front = find_front([(1.0, made_result(0.3)), *points[::-1]])
    assert [(seconds, cell.mean) for seconds, cell in front] == [(1.0, 0.5), (3.0, 0.7), (5.0, 0.9)]
    assert find_front([]) == []


def test_panels_are_of_epsilons_and_seconds_of_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = draw(monkeypatch, tmp_path, CELLS)
    first, second = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["ε = 1", "ε = 8"]
    assert _dots(first) == [pytest.approx(each) for each in ((4, 70), (0.1, 50), (2, 40))]
    assert _stairs(first) == [pytest.approx((0.1, 50)), pytest.approx((4, 70))]
    assert _stairs(second) == [pytest.approx((0.1, 80)), pytest.approx((4, 90))]
    ends = [bar[1:] for bar in drawn_bars(first)]
    assert ends == [pytest.approx((50, 48, 52)), pytest.approx((70, 68, 72))]
    low, high = first.get_xlim()
    assert (low, high) == pytest.approx((0.1 / 1.6, 1.6 * 4))
    assert first.get_xscale() == "log"
    assert [axes.get_xlabel() for axes in figure.axes] == ["seconds per model (log scale)"] * 2
    assert [axes.get_ylabel() for axes in figure.axes] == ["test accuracy (%)", ""]
    assert legend_texts(figure) == ["dp_fc", "sgd", "slower or worse", "Pareto front"]
    drawn, named = _looks(figure)
    assert drawn == [named["dp_fc"], named["sgd"]]
    assert named["dp_fc"][0] != named["sgd"][0]
    assert "mean of 2 to 3 seeds; bars: 95% CI; training time only (extraction was not" in title_of(
        figure
    )


def test_extraction_panels_are_drawn_only_if_all_extractions_were_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [*CELLS, _timed(1.0, 0.6, backbone="large")]
    write_benchmarks(tmp_path, "small", 9.0, 11.0)  # 10 seconds per shard
    assert read_extraction_seconds(make_study(), tmp_path, "digits") == {"small": 20.0}
    assert len(draw(monkeypatch, tmp_path, cells).axes) == 2
    write_benchmarks(tmp_path, "large", 50.0)
    figure = draw(monkeypatch, tmp_path, cells)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["ε = 1", "ε = 8", "ε = 1, with extraction", "ε = 8, with extraction"]
    drawn, named = _looks(figure)  # one colour per backbone, one marker per method
    points = (("small", "dp_fc"), ("large", "sgd"), ("small", "sgd"))
    assert drawn == [(named[backbone][0], named[method][1]) for backbone, method in points]
    assert len({*drawn}) == 3
    whole = _dots(figure.axes[2])
    assert whole == [pytest.approx(each) for each in ((24, 70), (20.1, 50), (22, 40), (101, 60))]
    assert [bool(axes.get_xlabel()) for axes in figure.axes] == [False, False, True, True]
    assert "was not timed" not in title_of(figure)
    next(tmp_path.glob("benchmarks/*/*/small/*/*.tsv")).unlink()
    assert read_extraction_seconds(make_study(), tmp_path, "digits") == {"large": 100.0}


def test_cells_without_a_comparable_time_are_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [
        *CELLS,
        _timed(None, 0.99, method="searched"),
        _timed(0.01, 0.99, method="net", network=True),
        _timed(0.0, 0.3, method="least"),  # records are rounded to milliseconds
    ]
    figure = draw(monkeypatch, tmp_path, cells)
    assert "methods left out (no comparable time): 2" in title_of(figure)
    assert max(y for _, y in _dots(figure.axes[0])) < 99
    assert dict(_dots(figure.axes[0]))[0.001] == pytest.approx(30)
    assert "methods left out" not in title_of(draw(monkeypatch, tmp_path, CELLS))


def test_one_head_per_epsilon_has_no_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cells in (CELLS[::3], []):
        with pytest.raises(NothingToShow, match="digits: no two private heads of one epsilon"):
            draw(monkeypatch, tmp_path, cells)
