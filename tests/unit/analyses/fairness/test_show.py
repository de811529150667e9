"""The figures of subgroups: gaps against epsilon and against quality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from dpprobe.analyses.fairness.fairness_record import FairnessRecord
from dpprobe.analyses.fairness.show import gap_figure, quality_figure
from tests.support.fairness_records import value, write_fairness
from tests.support.figures import drawn_figure, tick_texts


def records(root: Path, *backbones: str, **options: Any) -> list[FairnessRecord]:
    names = backbones or ("pixels",)
    return [FairnessRecord.read(write_fairness(root, backbone=name, **options)) for name in names]


def marks(axes: Any) -> list[tuple[float, bool]]:
    """The height of each mark, and True for a filled one."""
    lines = [line for line in axes.get_lines() if line.get_marker() in "os"]
    lines = [line for line in lines if line.get_linestyle() == "None"]
    return [(line.get_ydata()[0], line.get_markerfacecolor() != "white") for line in lines]


def gap(method: str, epsilon: str, groups: int) -> float:
    return 100 * (value(method, epsilon, 0) - value(method, epsilon, groups - 1))


def test_every_attribute_and_backbone_has_a_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = records(tmp_path, "pixels", "scattering")
    figure = drawn_figure(monkeypatch, lambda files: gap_figure(read, **files))
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.axison] == [
        "sex, 2 groups, pixels", "sex, 2 groups, scattering",
        "age, 3 groups, pixels", "age, 3 groups, scattering",
    ]  # fmt: skip
    assert "not private" in figure.get_suptitle()


def test_marks_are_filled_where_chance_does_not_explain_the_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = records(tmp_path, methods=("sgd",))
    figure = drawn_figure(monkeypatch, lambda files: gap_figure(read, **files))
    sex, age = figure.axes
    tokens = ("0.5", "1", "2", "inf")
    heights, filled = zip(*marks(sex), strict=True)
    assert list(heights) == pytest.approx([gap("sgd", epsilon, 2) for epsilon in tokens])
    assert filled == (True, True, True, False)
    assert all(filled for _, filled in marks(age))
    assert tick_texts(sex)[:3] == ["0.5", "1", "2"]


def test_the_gap_without_privacy_has_a_line_and_a_band(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = records(tmp_path, methods=("sgd",), epsilons=("1", "2"))
    figure = drawn_figure(monkeypatch, lambda files: gap_figure(read, **files))
    axes = figure.axes[0]
    level = gap("nonprivate", "inf", 2)
    flat = [line for line in axes.get_lines() if list(line.get_xdata()) == [0, 1]]
    assert [line.get_ydata()[0] for line in flat] == [pytest.approx(level)]
    (band,) = axes.patches
    assert band.get_y() == pytest.approx(0)
    assert band.get_y() + band.get_height() == pytest.approx(level + 3)
    chance = [line for line in axes.get_lines() if line.get_marker() == "_"]
    assert [list(line.get_ydata()) for line in chance] == [pytest.approx([2.5, 2.25])]


def test_each_method_may_have_a_reference_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = records(tmp_path, methods=("sgd",), reference=("sgd", "inf"))
    for draw in (gap_figure, quality_figure):
        figure = drawn_figure(monkeypatch, lambda files: draw(read, **files))  # noqa: B023
        texts = [text.get_text() for text in figure.legends[0].get_texts()]
        assert texts[0] == "sgd"
        assert any("without privacy" in text for text in texts)


def test_quality_stands_below_each_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = records(tmp_path, methods=("sgd",), epsilons=("1", "2"))
    figure = drawn_figure(monkeypatch, lambda files: quality_figure(read, **files))
    axes = figure.axes[0]
    points = sorted(
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in axes.get_lines()
        if line.get_linestyle() == "None"
    )
    assert points == [
        (pytest.approx(100 * value(*cell, 1)), pytest.approx(gap(*cell, 2)))
        for cell in (("sgd", "1"), ("sgd", "2"), ("nonprivate", "inf"))
    ]
    assert {text.get_text() for text in axes.texts} == {"1", "2", "∞"}


@pytest.mark.parametrize("draw", [gap_figure, quality_figure])
def test_ugly_records_are_drawn(draw: Any, tmp_path: Path) -> None:
    nothing = dict.fromkeys(("gap", "low", "high", "chance_gap", "difference", "overall"))
    unbounded = dict.fromkeys(("low", "high", "chance_gap", "std"))
    ugly = {
        "nothing": records(tmp_path, groups={"sex": {"f": 3}}, gap=nothing),
        "no_interval": records(tmp_path, gap=unbounded, reference=None, epsilons=("1",)),
        "no_private": records(tmp_path, epsilons=("inf",), methods=("sgd",)),
        "many": records(tmp_path, groups={f"a{i} $x$": {"f": 30, "m": 20} for i in range(7)}),
    }
    for name, read in ugly.items():
        files = tmp_path / f"{name}.svg", tmp_path / f"{name}.png"
        draw(read, svg=files[0], png=files[1])
        assert all(file.stat().st_size > 1000 for file in files)


def test_a_figure_of_nothing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = records(tmp_path, groups={"sex": {"f": 3}}, gap={"gap": None})
    figure: Figure = drawn_figure(monkeypatch, lambda files: gap_figure(read, **files))
    (text,) = figure.axes[0].texts
    assert text.get_text() == "No two groups are large enough to compare."
