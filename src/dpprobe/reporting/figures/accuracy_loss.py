"""Figures of the accuracy lost to privacy: by backbone quality, and by distribution shift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpprobe.errors import NothingToShow
from dpprobe.exhibits import style
from dpprobe.reporting.figures.backbones import MOST_EPSILONS, spread_values
from dpprobe.reporting.figures.option_panels import format_budget
from dpprobe.reporting.report.sections import zero_shot_results
from dpprobe.results.best_private import best_private
from dpprobe.results.summary import Entry, Grid, read_grid
from dpprobe.study.ablations import keep_unique

LOSS_LABEL = "points lost to privacy"
BARS = "bars: 95% CI of the difference"


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The accuracy lost to privacy on one backbone at one epsilon, in percentage points.

    Attributes:
      ceiling: the best non-private head on the backbone's features.
      points: the result of the ceiling minus the result of the best private head.
      low, high: the ends of the 95% interval of `points`.
    """

    dataset: str
    backbone: str
    epsilon: float
    ceiling: Entry
    points: float
    low: float | None
    high: float | None

    @property
    def shift(self) -> float | None:
        """The non-private baseline's error in percent of the majority-class baseline's error."""
        return relative_error(self.ceiling.mean, self.ceiling.constant)


def relative_error(percent: float, constant: float | None) -> float | None:
    """Returns an accuracy's error in percent of the error at the accuracy `constant`."""
    if constant is None or constant >= 100:
        return None
    return 100 * (100 - percent) / (100 - constant)


def find_losses(grid: Grid) -> list[Loss]:
    """Finds losses per epsilon, dataset and backbone with a non-private baseline."""
    losses = []
    for backbone in keep_unique(name for name, _ in grid.columns):
        of_backbone = replace(
            grid,
            columns=tuple(column for column in grid.columns if column[0] == backbone),
            entries={key: entry for key, entry in grid.entries.items() if key[2] == backbone},
        )
        for best in best_private(of_backbone, {}):
            beside = best.beside_ceiling
            if best.ceiling is None or beside is None:
                continue
            low, high = beside.low, beside.high
            losses.append(
                Loss(
                    dataset=best.dataset,
                    backbone=backbone,
                    epsilon=best.at,
                    ceiling=best.ceiling,
                    points=-beside.difference,
                    low=None if high is None else -high,
                    high=None if low is None else -low,
                )
            )
    return losses


def plot_loss_by_backbone(*, summary: Path, dataset: str) -> Figure:
    """Draws the points lost to privacy against the backbone's non-private result.

    Each epsilon has one line; better backbones are further to the right. If the line of a small
    epsilon is steeper, better pre-training helps more at small epsilons.
    """
    grid = read_grid([summary])
    losses = sorted(find_losses(grid), key=lambda loss: loss.ceiling.mean)
    backbones = {loss.backbone: loss.ceiling.mean for loss in losses}
    epsilons = spread_values(sorted({loss.epsilon for loss in losses}), MOST_EPSILONS)
    looks = dict(zip(epsilons, style.choose_looks(len(epsilons)), strict=True))
    names = [
        style.wrap_name(f"{value:.1f}% {style.shorten_middle(name, 60)}", 30)
        for name, value in backbones.items()
    ]
    lines = len(epsilons) + 1 + style.count_lines(names)
    figure, (axes,) = style.panel_grid(1, legend=lines)
    step = 0.006 * max(max(backbones.values()) - min(backbones.values()), 1.0)
    for index, (epsilon, look) in enumerate(looks.items()):
        offset = step * (index - (len(epsilons) - 1) / 2)
        here = [loss for loss in losses if loss.epsilon == epsilon]
        _draw_losses(axes, [(loss.ceiling.mean + offset, loss) for loss in here], look)
    measure = grid.measures[dataset].title
    _label_axes(axes, f"non-private test {measure} of the backbone (%)")
    axes.set_ylabel(f"{measure}: {LOSS_LABEL}", fontsize=8.5)
    handles = style.make_handles((format_budget(each), look) for each, look in looks.items())
    handles.append(Line2D([], [], linestyle="none", label="backbones, from the left:"))
    handles += [Line2D([], [], linestyle="none", label=name) for name in names]
    figure.legend(handles=handles, loc="outside right upper", handlelength=2.2)
    title = f"{style.shorten_middle(dataset, 40)}: what privacy costs by backbone"
    style.title_figure(figure, title, f"best private head on each; {BARS}", panels=1)
    return figure


def plot_distribution_shift(*, summaries: Sequence[Path], zero_shot: Sequence[Path]) -> Figure:
    """Draws the points lost to privacy against a dataset's distance from the pre-training data.

    The distance of a (dataset, backbone) is an error on the frozen features, in percent of the
    majority-class baseline's error. One panel shows the error of the linear probe. For backbones
    that read text, one panel shows the error of zero-shot classification. At distance 0 the
    features solve the task; at distance 100 they have no information on the task.

    Raises NothingToShow if fewer than two datasets have losses and a majority-class baseline.
    """
    grid = read_grid(summaries)
    losses = find_losses(grid)
    probe = [(shift, loss) for loss in losses if (shift := loss.shift) is not None]
    datasets = keep_unique(loss.dataset for _, loss in probe)
    if len(datasets) < 2:
        raise NothingToShow(
            f"{len(datasets)} datasets have losses and a majority-class baseline below 100%"
        )
    measured = zero_shot_results(zero_shot)
    zero = []
    for _, loss in probe:
        metric, percent = measured.get((loss.dataset, loss.backbone), ("", 0.0))
        shift = relative_error(percent, loss.ceiling.constant)
        if metric == grid.measures[loss.dataset].headline and shift is not None:
            zero.append((shift, loss))
    panels = {"linear probe": probe} | ({"zero-shot": zero} if zero else {})
    epsilons = spread_values(sorted({loss.epsilon for _, loss in probe}), 4)
    colours = dict(zip(epsilons, style.COLOURS, strict=False))
    markers = style.choose_markers(datasets)
    labels = [style.fit_name(name, 28) for name in datasets]
    legend = len(epsilons) + style.count_lines(labels)
    figure, axes_list = style.panel_grid(len(panels), legend=legend)
    for axes, (title, points) in zip(axes_list, panels.items(), strict=True):
        for epsilon, colour in colours.items():
            for dataset, marker in markers.items():
                here = [p for p in points if (p[1].epsilon, p[1].dataset) == (epsilon, dataset)]
                _draw_losses(axes, here, (colour, ("none", marker)))
        axes.set_title(f"shift by {title}", fontsize=9)
        _label_axes(axes, "error in % of the majority-class\nbaseline's error")
        axes.set_xlim(left=0)
    measures = " or ".join(keep_unique(grid.measures[d].title for d in datasets))
    style.label_outer_panels(axes_list, f"{measures}: {LOSS_LABEL}")
    dots = [(format_budget(epsilon), colour, "o") for epsilon, colour in colours.items()]
    dots += [
        (label, style.NEUTRAL, markers[name]) for name, label in zip(datasets, labels, strict=True)
    ]
    figure.legend(handles=style.make_dot_handles(dots), loc="outside right upper", handlelength=1.6)
    left_out = len({(a.dataset, a.backbone) for a in losses if a.shift is None})
    caption = f"one point per dataset, backbone and ε; {BARS}"
    if left_out:
        caption += f"; pairs left out (the majority class is always right): {left_out}"
    style.title_figure(
        figure, "What privacy costs by distribution shift", caption, panels=len(panels)
    )
    return figure


def _draw_losses(axes: Axes, points: Sequence[tuple[float, Loss]], look: style.Look) -> None:
    colour, (dashes, marker) = look
    style.draw_error_bars(
        axes,
        [x for x, _ in points],
        [(loss.points, loss.low, loss.high) for _, loss in points],
        color=colour,
        linestyle=dashes,
        marker=marker,
        elinewidth=0.8,
        linewidth=1.2,
        markersize=5,
        markeredgecolor="white",
        markeredgewidth=0.5,
    )


def _label_axes(axes: Axes, label: str) -> None:
    axes.set_xlabel(label, fontsize=8.5)
    axes.axhline(0, color="#BBBBBB", linewidth=0.8, zorder=0.5)
    axes.grid(axis="y")
