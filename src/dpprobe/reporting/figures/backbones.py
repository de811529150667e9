"""Figures that compare the backbones of a dataset: by model, and by the size of images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpprobe.exhibits import style
from dpprobe.exhibits.published import Number, Published
from dpprobe.reporting.figures.option_panels import (
    Panel,
    draw_bars,
    draw_panels,
    format_budget,
    spread_offsets,
)
from dpprobe.results.best_private import best_of_each
from dpprobe.results.cell_results import CellResult
from dpprobe.study.ablations import keep_unique, same_but_size

MOST_EPSILONS = 5
PAGE_WIDTH = 7.2  # inches; then text of 8 points is readable on a printed page
WITHOUT: style.Look = (style.NEUTRAL, ("none", "|"))  # the look of results without privacy


@dataclass(frozen=True, kw_only=True)
class _PublishedModel:
    source: str
    model: str
    without: float
    private: Mapping[float, float]


def backbone_figure(
    cells: Sequence[CellResult],
    *,
    dataset: str,
    published: Published | None = None,
    name: str | None = None,
) -> Figure:
    """Draws the best results of each backbone with and without privacy, and the gap between them.

    Backbones appear in the study's order. The lower half of the figure shows models for which a
    paper prints results with and without privacy. `name` is the dataset's name in `published`.
    """
    finite = sorted({cell.epsilon for cell in cells if cell.private})
    epsilons = spread_values(finite, MOST_EPSILONS)
    backbones = keep_unique(cell.backbone for cell in cells)
    measure = cells[0].measure
    networks = any(cell.network for cell in cells)
    models = _published_models(published, name or dataset, measure.headline, networks=networks)
    others = sorted({epsilon for model in models for epsilon in model.private} - set(epsilons))
    shown = sorted([*epsilons, *others])
    looks = dict(zip(shown, style.choose_looks(len(shown)), strict=True))
    places = len(backbones) + len(models)
    # a row per backbone, so that names are horizontal, and the width fits a page
    height = 1.3 + places * max(0.42, 0.13 * len(shown))
    figure = Figure(
        figsize=(PAGE_WIDTH, max(height, 1.2 + style.LEGEND_LINE * (len(shown) + 4))),
        layout="constrained",
    )
    axes = figure.add_subplot()
    gaps = _draw_measured(axes, cells, backbones, {e: looks[e] for e in epsilons})
    gaps += _draw_published(axes, models, len(backbones), looks)
    if models:
        axes.axhline(len(backbones) - 0.5, color="#BBBBBB", linewidth=0.8, zorder=0.5)
    names = [style.fit_name(each, 24) for each in backbones]
    names += [f"{style.wrap_name(each.model, 24)},\n{each.source}" for each in models]
    axes.set_yticks(range(places), names, fontsize=8)
    axes.set_ylim(places - 0.4, -0.6)
    for place, gap in enumerate(gaps):
        if gap is not None:
            axes.text(
                1.015,
                place,
                f"{gap:+.1f}",
                transform=axes.get_yaxis_transform(),
                fontsize=8,
                va="center",
                color=style.SUBTLE,
            )
    axes.set_xlim(right=min(axes.get_xlim()[1], style.TOP))
    axes.set_xlabel(f"test {measure.title} (%)")
    axes.grid(axis="x")
    figure.legend(
        handles=_make_handles(looks, published=bool(models)),
        loc="outside right upper",
        handlelength=1.6,
    )
    caption = "best of all methods of each, by test result; bars: 95% CI\nright: points from the "
    caption += "best without privacy to the largest ε"
    if models:
        caption += "\nhollow: published, placed at their own non-private results"
    style.title_axes(axes, f"{style.shorten_middle(dataset, 40)}: results by backbone", caption)
    return figure


def spread_values(values: Sequence[float], count: int) -> list[float]:
    """Selects at most `count` of the sorted values, evenly spaced, with the first and the last."""
    if len(values) <= count:
        return list(values)
    last = len(values) - 1
    return [values[round(index * last / (count - 1))] for index in range(count)]


def _draw_measured(
    axes: Axes,
    cells: Sequence[CellResult],
    backbones: Sequence[str],
    looks: Mapping[float, style.Look],
) -> list[float | None]:
    """Draws backbones' best results; returns their gaps from the largest epsilon to no privacy."""
    *offsets, end = spread_offsets(len(looks) + 1, 0.14)
    gaps: list[float | None] = []
    best = best_of_each(
        (cell for cell in cells if cell.private), lambda cell: (cell.backbone, cell.epsilon)
    )
    without = best_of_each(
        (cell for cell in cells if math.isinf(cell.epsilon)), lambda cell: cell.backbone
    )
    for place, backbone in enumerate(backbones):
        last = None
        for offset, (epsilon, look) in zip(offsets, looks.items(), strict=True):
            if last := best.get((backbone, epsilon)):
                draw_bars(axes, [(float(place), last)], offset, look, across=True)
        if free := without.get(backbone):
            draw_bars(axes, [(float(place), free)], end, WITHOUT, across=True)
        gaps.append(None if last is None or free is None else 100 * (last.mean - free.mean))
    return gaps


def _draw_published(
    axes: Axes, models: Sequence[_PublishedModel], first: int, looks: Mapping[float, style.Look]
) -> list[float | None]:
    """Draws papers' models; returns their gaps from the largest epsilon to no privacy."""
    for place, model in enumerate(models, start=first):
        for epsilon, value in model.private.items():
            colour, (_, marker) = looks[epsilon]
            axes.plot(
                value,
                place,
                color="none",
                marker=marker,
                markeredgecolor=colour,
                markersize=6,
                linestyle="none",
            )
        axes.plot(model.without, place, color=style.NEUTRAL, marker="|", markersize=9)
    return [model.private[max(model.private)] - model.without for model in models]


def _published_models(
    published: Published | None, dataset: str, metric: str, *, networks: bool
) -> list[_PublishedModel]:
    """Finds the models for which a paper prints results with and without privacy.

    Each model's best result is used, as in the papers' figures, without results on a part of the
    dataset. If the study fine-tunes no network, only results with a trained last layer are used,
    for each model that has any.
    """
    if published is None:
        return []
    numbers = [
        number
        for number in published.select_numbers(dataset=dataset, metric=metric, train_rows=None)
        if number.model and number.epsilon is not None and not math.isnan(number.value)
    ]
    models = []
    for citation, model in keep_unique((number.citation, number.model or "") for number in numbers):
        same = [n for n in numbers if (n.citation, n.model) == (citation, model)]
        heads = [number for number in same if number.tuning == "last layer"]
        same = same if networks or not heads else heads
        free = [number.percent for number in same if number.epsilon == math.inf]
        private = _best_by_epsilon(same)
        if free and private:
            models.append(
                _PublishedModel(
                    source=published.citations[citation].short,
                    model=model,
                    without=max(free),
                    private=private,
                )
            )
    return models


def _best_by_epsilon(numbers: Sequence[Number]) -> dict[float, float]:
    best: dict[float, float] = {}
    for number in numbers:
        epsilon = number.single_epsilon
        if epsilon is not None:
            best[epsilon] = max(best.get(epsilon, -math.inf), number.percent)
    return best


def _make_handles(looks: Mapping[float, style.Look], *, published: bool) -> list[Line2D]:
    handles = style.make_handles([("without privacy", WITHOUT)], joined=False)
    handles[0].set_markersize(9)
    epsilons = ((format_budget(epsilon), look) for epsilon, look in looks.items())
    handles += style.make_handles(epsilons, joined=False)
    if published:
        handles.append(
            Line2D(
                [],
                [],
                color="none",
                markeredgecolor=style.NEUTRAL,
                linestyle="none",
                marker="o",
                markersize=6,
                label="hollow: published",
            )
        )
    return handles


def resolution_figure(
    cells: Sequence[CellResult],
    *,
    backbones: Mapping[str, Mapping[str, object]],
    sizes: Mapping[str, int],
    dataset: str,
    base: str | None = None,
) -> Figure:
    """Draws results of one method by image size, from backbones that differ only in image size.

    Draws the method `base`; if None, the method with the best mean result.
    """
    panels = []
    for group in same_but_size(backbones):
        here = [cell for cell in cells if cell.backbone in group and not cell.ceiling]
        if len({sizes[cell.backbone] for cell in here}) < 2:
            continue
        method = base if any(cell.method == base for cell in here) else _best_method(here)
        chosen = [cell for cell in here if cell.method == method]
        panels.append(
            Panel(
                title=f"{group[0]}, {method}",
                subtitle=" … ".join(keep_unique([group[0], group[-1]])),
                cells=[(float(sizes[cell.backbone]), cell) for cell in chosen],
                ticks={float(sizes[c.backbone]): str(sizes[c.backbone]) for c in chosen},
            )
        )
    return draw_panels(
        panels, title=f"{dataset}: size of images", label="pixels per side (log scale)"
    )


def image_side(manifest: Mapping[str, Any]) -> int:
    """Reads from a manifest of features the backbone's input size, in pixels per side."""
    preprocessing = manifest["preprocessing"]
    # timm writes channels, height and width; open_clip writes one side, or height and width
    size = preprocessing["input_size" if "input_size" in preprocessing else "size"]
    return int(size if isinstance(size, int) else size[-1])


def _best_method(cells: Sequence[CellResult]) -> str:
    means = {
        method: [cell.mean for cell in cells if cell.method == method]
        for method in keep_unique(cell.method for cell in cells)
    }
    return max(means, key=lambda method: sum(means[method]) / len(means[method]))
