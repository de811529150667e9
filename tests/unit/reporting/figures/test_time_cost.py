"""Results against seconds: the front, the seconds of extraction, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.errors import NothingToShow
from dpprobe.reporting.figures.time_cost import find_front, plot_time_cost, read_extraction_seconds
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.support.comparison_cells import compared_cells

HEAD = "s\tmax_rss\tcpu_time\n"


def make_study() -> Study:
    return load_study(
        {
            "datasets": {"digits": {"source": "sklearn", "name": "digits"}},
            "backbones": {name: {"family": "pixels"} for name in ("small", "large")},
            "methods": {
                "sgd": {"head": "sgd"},
                "feature_covariance": {"head": "feature_covariance"},
                "nonprivate": {"head": "nonprivate"},
            },
            "epsilons": [0.1, 1, 8, "inf"],
            "delta": 1e-4,
            "features": {"shards": 2},
        }
    )


def set_seconds(root: Path, **seconds: float | None) -> None:
    """Writes the time of each method into its cells, longer on the second backbone."""
    for path in root.glob("cells/*/*/*/*/metrics.json"):
        record = read_json(path)
        time = seconds.get(record["cell"]["method"], 1.0)
        twice = 2 if record["cell"]["backbone"] == "large" else 1
        write_json(path, record | {"seconds": None if time is None else twice * time})


def write_benchmarks(root: Path, backbone: str, seconds: float) -> None:
    for name in ("shard-00000-of-00002", "shard-00001-of-00002"):
        path = root / f"benchmarks/extract_features/digits/{backbone}/train/{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{HEAD}{seconds}\t1\t99\n")


def draw(root: Path) -> Any:
    return plot_time_cost(study=make_study(), results=root, dataset="digits")


def stairs(axes: Any) -> list[tuple[float, float]]:
    (line,) = (line for line in axes.get_lines() if line.get_drawstyle() == "steps-post")
    return [(float(x), float(y)) for x, y in line.get_xydata()]


def test_no_point_of_the_front_is_beaten_in_both(tmp_path: Path) -> None:
    (cell, *_) = compared_cells(tmp_path, epsilons=("1",))
    means = {1.0: 0.5, 2.0: 0.4, 3.0: 0.7, 4.0: 0.7, 5.0: 0.9}
    points = [(seconds, replace(cell, mean=mean)) for seconds, mean in means.items()]
    points.append((1.0, replace(cell, mean=0.3)))
    assert [(s, c.mean) for s, c in find_front(points[::-1])] == [
        (1.0, 0.5),
        (3.0, 0.7),
        (5.0, 0.9),
    ]


def test_panels_are_of_epsilons_and_seconds_of_one_model(tmp_path: Path) -> None:
    cells = compared_cells(tmp_path)
    set_seconds(tmp_path, sgd=6.0, feature_covariance=0.3)
    figure = draw(tmp_path)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["ε = 0.1", "ε = 1", "ε = 8"]
    for axes, epsilon in zip(figure.axes, (0.1, 1.0, 8.0), strict=True):
        wanted = find_front(
            [
                # three seeds share the seconds of a cell
                ((2 if c.backbone == "large" else 1) * (2.0 if c.method == "sgd" else 0.1), c)
                for c in cells
                if c.private and c.epsilon == epsilon
            ]
        )
        assert stairs(axes) == [pytest.approx((s, 100 * c.mean)) for s, c in wanted]
    assert "extraction was not timed" in " ".join(figure.get_suptitle().split())


def test_extraction_has_panels_of_its_own_where_all_of_it_was_timed(tmp_path: Path) -> None:
    compared_cells(tmp_path)
    set_seconds(tmp_path, sgd=6.0, feature_covariance=0.3)
    write_benchmarks(tmp_path, "small", 10.0)
    assert read_extraction_seconds(make_study(), tmp_path, "digits") == {"small": 20.0}
    assert len(draw(tmp_path).axes) == 3
    write_benchmarks(tmp_path, "large", 50.0)
    figure = draw(tmp_path)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[3:] == [f"ε = {e}, with extraction" for e in ("0.1", "1", "8")]
    places = {round(seconds, 3) for axes in figure.axes[3:] for seconds, _ in stairs(axes)}
    assert places <= {20.1, 22.0, 100.2, 104.0}
    assert places


def test_cells_without_a_time_are_left_out_and_said(tmp_path: Path) -> None:
    compared_cells(tmp_path)
    set_seconds(tmp_path, sgd=None)
    figure = draw(tmp_path)
    assert "methods left out (no comparable time): 1" in " ".join(figure.get_suptitle().split())
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert not any(text.startswith("sgd") for text in texts)
    set_seconds(tmp_path, sgd=None, feature_covariance=None)
    with pytest.raises(NothingToShow, match="digits"):
        draw(tmp_path)
