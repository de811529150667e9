"""Draws the planner's figure: predicted accuracy against images, one line per epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpprobe.errors import ConfigError
from dpprobe.exhibits import style
from dpprobe.planner.accuracy_plan import Scale
from dpprobe.planner.predicted_accuracy import Kept, Setting, Start, predict
from dpprobe.privacy.risk import budget_in_full

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
_POINTS = 60
_LESS, _MORE = 10, 30  # the axis is from n / _LESS to n * _MORE


def write_plan_figure(path: Path, setting: Setting, scale: Scale, *, unit: str) -> None:
    """Writes the figure of a plan, for the plan's epsilon and `EPSILONS`, as SVG or PNG."""
    kind = path.suffix[1:]
    if kind not in ("svg", "png"):
        raise ConfigError(f"figure {path}: use a name that ends in .svg or .png")
    lines = dict.fromkeys(sorted({*EPSILONS, setting.epsilon}))
    with style.use_settings():
        style.save_figure(draw_plan(setting, scale, lines, title="", unit=unit), path)


def plan_svg(
    setting: Setting, scale: Scale, starts: Sequence[Start], *, title: str, unit: str
) -> bytes:
    """Draws the plan for a study's dataset, with lines through the measured results."""
    lines = {start.setting.epsilon: start for start in starts}
    with style.use_settings():
        return style.draw_svg(draw_plan(setting, scale, lines, title=title, unit=unit))


def draw_plan(
    setting: Setting, scale: Scale, lines: Mapping[float, Start | None], *, title: str, unit: str
) -> Figure:
    """Draws one line per epsilon, the range at the setting's epsilon, both baselines, and n."""
    figure = Figure(figsize=(7.4, 4.1), layout="constrained")
    axes = figure.subplots()
    looks = style.choose_looks(len(lines))
    for (epsilon, start), (colour, (dashes, marker)) in zip(lines.items(), looks, strict=True):
        banded = epsilon == setting.epsilon  # bands of all epsilons would hide each other
        at = setting.with_epsilon(epsilon)
        _draw_line(axes, at, scale, start, colour, dashes, banded=banded)
        if start is not None:
            axes.plot(
                [setting.n],
                [100 * scale.accuracy_of(start.share)],
                color=colour,
                marker=marker,
                zorder=5,
                linestyle="none",
                markersize=6,
                markeredgecolor="white",
                clip_on=False,
            )
    axes.axhline(100 * scale.middle, color=style.NEUTRAL, linestyle=style.CEILING_STYLE, lw=1)
    axes.axhline(100 * scale.majority, color=style.SUBTLE, linestyle=(0, (1, 2)), lw=1)
    axes.axvline(setting.n, color=style.NEUTRAL, lw=0.9)
    axes.annotate(
        f" n = {setting.n:,}",
        (setting.n, 1),
        xycoords=("data", "axes fraction"),
        va="top",
        fontsize=8,
        color=style.SUBTLE,
        zorder=4,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1},
    )
    axes.set_xlabel(f"training {unit}s")
    _label_axes(axes, setting, scale, title, measured=any(lines.values()))
    return figure


def _draw_line(
    axes: Axes,
    setting: Setting,
    scale: Scale,
    begin: Start | None,
    colour: str,
    dashes: object,
    *,
    banded: bool,
) -> None:
    start = max(setting.n / _LESS, setting.classes)
    ratio = setting.n * _MORE / start
    sizes = [round(start * ratio ** (step / (_POINTS - 1))) for step in range(_POINTS)]
    kept: list[Kept] = [predict(setting.with_n(n), start=begin) for n in sizes]
    values = [item.predict_accuracy(chance=scale.chance, ceiling=scale.middle) for item in kept]
    low, expected, high = (
        [100 * value for value in column] for column in zip(*values, strict=True)
    )
    if banded:
        axes.fill_between(sizes, low, high, color=colour, alpha=0.16, linewidth=0)
    label = f"ε = {budget_in_full(setting.epsilon)}".replace(", TPR", ",\nTPR")
    axes.plot(sizes, expected, color=colour, linestyle=dashes, label=label)


def _label_axes(axes: Axes, setting: Setting, scale: Scale, title: str, *, measured: bool) -> None:
    axes.set_xscale("log")
    powers = range(math.floor(math.log10(axes.get_xlim()[0])), 12)
    ticks = [part * 10.0**power for power in powers for part in (1, 3)]
    left, right = axes.get_xlim()
    shown = [tick for tick in ticks if left <= tick <= right]
    axes.set_xticks(shown, [f"{tick:,.0f}" for tick in shown])
    axes.set_xticks([], minor=True)
    axes.set_ylabel("test accuracy (%)")
    axes.set_ylim(0, style.TOP)
    axes.grid(visible=True)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0))
    features = f"{setting.dimension:,} features, " if setting.dimension else ""
    lines = [
        f"{features}{setting.classes} classes, δ = {setting.delta:g}; band: the range at ε = "
        f"{setting.epsilon:g}",
        f"dashed: non-private {100 * scale.middle:.0f}%"
        + ("" if scale.given else ", the middle of public sets")
        + "; dotted: the largest class"
        + ("; marks: measured" if measured else ""),
    ]
    style.title_axes(axes, title or "Expected accuracy of a private head", "\n".join(lines))
