"""The figure of the planner: a line with a band an epsilon."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpprobe.planner.accuracy_plan import Scale
from dpprobe.planner.predicted_accuracy import Setting, predict
from dpprobe.reporting.figures import planner
from dpprobe.reporting.figures.planner import plan_svg, write_plan_figure

SETTING = Setting(n=3000, classes=4, epsilon=1.0, dimension=1280)
SCALE = Scale(chance=0.25, majority=0.25, ceilings=(0.82,), given=True)


def test_each_epsilon_has_its_line_and_one_a_band(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    inner = planner._plan_figure

    def kept(*arguments: object, **options: object) -> Figure:
        drawn.append(inner(*arguments, **options))  # type: ignore[arg-type]
        return drawn[-1]

    monkeypatch.setattr(planner, "_plan_figure", kept)
    svg = plan_svg(SETTING, SCALE, [0.5, 1.0, 2.0], title="digits, pixels", measured={2.0: 0.7})
    assert b"<svg" in svg
    assert svg == plan_svg(
        SETTING, SCALE, [0.5, 1.0, 2.0], title="digits, pixels", measured={2.0: 0.7}
    )
    axes = drawn[0].axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert {"ε = 0.5", "ε = 2"} <= set(lines)
    assert len(axes.collections) == 1, "the band of epsilon 1"
    sizes, values = (np.asarray(part) for part in lines["ε = 2"].get_data())
    middle = len(sizes) // 2
    expected = predict(SETTING.with_epsilon(2.0).with_n(int(sizes[middle])))
    assert values[middle] == pytest.approx(100 * (0.25 + expected.expected * 0.57))
    marks = [line for line in axes.get_lines() if line.get_marker() not in ("None", None)]
    assert [tuple(float(np.asarray(part)[0]) for part in line.get_data()) for line in marks] == [
        (3000, 70.0)
    ]
    assert axes.get_xscale() == "log"
    assert "digits, pixels" in axes.get_title(loc="left")


@pytest.mark.parametrize(("name", "start"), [("plan.svg", b"<?xml"), ("plan.png", b"\x89PNG")])
def test_a_plans_figure_is_a_file(tmp_path: Path, name: str, start: bytes) -> None:
    write_plan_figure(tmp_path / name, SETTING, SCALE)
    assert (tmp_path / name).read_bytes().startswith(start)
