"""The figure of the planner: one line per epsilon through measured results, and one range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.errors import ConfigError
from dpprobe.planner.accuracy_plan import Scale
from dpprobe.planner.predicted_accuracy import Setting, Start, predict
from dpprobe.reporting.figures import planner

SETTING = Setting(n=3000, classes=4, epsilon=1.0, dimension=1280)
SCALE = Scale(chance=0.25, majority=0.4, ceilings=(0.82,), given=True)
PUBLIC = Scale(chance=0.1, majority=0.1, ceilings=(0.7, 0.8, 0.9), given=False)
MEASURED = {0.5: 0.65, 1.0: 0.75, 2.0: 0.8}


def _starts() -> dict[float, Any]:
    return {
        epsilon: Start.of_measured(SETTING.with_epsilon(epsilon), SCALE.share_of(accuracy))
        for epsilon, accuracy in MEASURED.items()
    }


def _draw(setting: Setting, scale: Scale, lines: Any) -> Any:
    figure = planner.draw_plan(setting, scale, lines, title="", unit="image")
    return figure.axes[0]


def _lines(axes: Any) -> dict[str, Any]:
    named = {line.get_label(): np.asarray(line.get_xydata()) for line in axes.get_lines()}
    return {name: line for name, line in named.items() if name.startswith("ε")}


def test_lines_pass_through_their_marks_and_one_has_a_range() -> None:
    axes = _draw(SETTING, SCALE, _starts())
    lines = _lines(axes)
    assert list(lines) == ["ε = 0.5", "ε = 1", "ε = 2"]
    for (epsilon, accuracy), line in zip(MEASURED.items(), lines.values(), strict=True):
        at = np.interp(3000, line[:, 0], line[:, 1])
        assert at == pytest.approx(100 * accuracy, abs=0.2), epsilon
        assert (np.diff(line[:, 1]) >= 0).all()
        assert (line[0, 0], line[-1, 0]) == (300, 90_000)
    marks = [line for line in axes.get_lines() if line.get_marker() not in ("None", None)]
    places = [np.asarray(line.get_xydata()).tolist()[0] for line in marks]
    assert places == [pytest.approx((3000, 100 * each)) for each in MEASURED.values()]
    (band,) = axes.collections
    vertices = np.asarray(band.get_paths()[0].vertices)
    middle = lines["ε = 1"]
    inside = [y for x, y in vertices if x == middle[30, 0]]
    assert min(inside) < middle[30, 1] < max(inside), "the range of the setting's epsilon"


def test_without_a_measured_result_lines_are_the_prediction() -> None:
    line = _lines(_draw(SETTING, PUBLIC, {1.0: None}))["ε = 1"]
    for n, percent in line[::20]:
        low, expected, high = predict(SETTING.with_n(int(n))).predict_accuracy(
            chance=0.1, ceiling=0.8
        )
        assert low <= expected <= high
        assert percent == pytest.approx(100 * expected)


def test_a_plan_s_figure_is_a_file_of_its_epsilon_and_the_usual_ones(tmp_path: Path) -> None:
    for name, start in (("plan.svg", b"<?xml"), ("plan.png", b"\x89PNG")):
        setting = SETTING.with_epsilon(0.7)
        planner.write_plan_figure(tmp_path / name, setting, SCALE, unit="image")
        assert (tmp_path / name).read_bytes().startswith(start)
    text = (tmp_path / "plan.svg").read_text()
    assert [f"ε = {e} -->" in text for e in (0.1, 0.3, 0.7, 1, 3, 10)] == [True] * 6
    with pytest.raises(ConfigError, match=r"plan\.pdf: use a name that ends in \.svg or \.png"):
        planner.write_plan_figure(tmp_path / "plan.pdf", SETTING, SCALE, unit="image")
    svg = planner.plan_svg(SETTING, SCALE, list(_starts().values()), title="a", unit="image")
    assert b"<svg" in svg
    assert [f"ε = {e} -->".encode() in svg for e in (0.5, 1, 2, 3)] == [True] * 3 + [False]
