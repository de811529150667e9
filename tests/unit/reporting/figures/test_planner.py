"""The figure of the planner: a line with a band an epsilon."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpprobe.planner.accuracy_plan import Scale
from dpprobe.planner.predicted_accuracy import Setting, Start
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
    made = [
        Start.of_measured(SETTING.with_epsilon(epsilon), SCALE.share_of(accuracy))
        for epsilon, accuracy in ((0.5, 0.65), (1.0, 0.75), (2.0, 0.8))
    ]
    starts = [start for start in made if start is not None]
    assert len(starts) == len(made)
    svg = plan_svg(SETTING, SCALE, starts, title="digits, pixels")
    assert b"<svg" in svg
    assert svg == plan_svg(SETTING, SCALE, starts, title="digits, pixels")
    axes = drawn[0].axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert {"ε = 0.5", "ε = 2"} <= set(lines)
    assert len(axes.collections) == 1, "the band of epsilon 1"
    sizes, values = (np.asarray(part) for part in lines["ε = 2"].get_data())
    assert np.interp(3000, sizes, values) == pytest.approx(80, abs=0.2), "through its mark"
    assert (np.diff(values) >= 0).all()
    marks = [line for line in axes.get_lines() if line.get_marker() not in ("None", None)]
    places = [[float(np.asarray(part)[0]) for part in line.get_data()] for line in marks]
    assert np.allclose(places, [(3000, 65), (3000, 75), (3000, 80)])
    assert axes.get_xscale() == "log"
    assert "digits, pixels" in axes.get_title(loc="left")


@pytest.mark.parametrize(("name", "start"), [("plan.svg", b"<?xml"), ("plan.png", b"\x89PNG")])
def test_a_plans_figure_is_a_file(tmp_path: Path, name: str, start: bytes) -> None:
    write_plan_figure(tmp_path / name, SETTING, SCALE)
    assert (tmp_path / name).read_bytes().startswith(start)
