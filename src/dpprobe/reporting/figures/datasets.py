"""Figures that compare datasets, values of delta, and the labels of one dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpprobe.exhibits import style
from dpprobe.exhibits.epsilon_axis import EpsilonScale, draw_epsilon_axis
from dpprobe.exhibits.published import Published
from dpprobe.features.shard_manifest import read_manifest
from dpprobe.reporting.figures.backbones import backbone_figure, image_side, resolution_figure
from dpprobe.results.best_private import best_ceiling, best_of_each
from dpprobe.results.cell_record import record_paths
from dpprobe.results.cell_results import CellResult, read_cell_results
from dpprobe.study.ablations import keep_unique
from dpprobe.study.study import Study

DP_FC = "feature_covariance"
_NAME = 28  # most characters on a line of a legend


@dataclass(frozen=True, kw_only=True)
class _Line:
    """The best cell at each finite epsilon, for one dataset and backbone."""

    name: str
    dataset: str
    backbone: str
    cells: Mapping[float, CellResult]
    ceiling: float | None


def plot_comparison(
    *,
    manifests: Sequence[Path],
    study: Study,
    results: Path,
    published: Published,
    dataset: str,
    figure: str,
    name: str,
    backbones: Mapping[str, Mapping[str, object]],
    base: str | None,
) -> Figure:
    """Draws a dataset's comparison `figure`: "by_backbone", "by_resolution" or "real_labels".

    The manifests of the training features state the size of images. `name` is the dataset's name in
    the published numbers. The figure by resolution shows the method `base`.
    """
    cells = read_cell_results(record_paths(results, study.list_cells(dataset)))
    if figure == "by_backbone":
        return backbone_figure(cells, dataset=dataset, published=published, name=name)
    if figure == "by_resolution":
        sizes = {path.parent.parent.name: image_side(read_manifest(path)) for path in manifests}
        return resolution_figure(
            cells, backbones=backbones, sizes=sizes, dataset=dataset, base=base
        )
    return real_labels_figure(cells, dataset=dataset)


def plot_datasets(
    *, metrics: Sequence[Path], figure: str, groups: Sequence[Sequence[str]]
) -> Figure:
    """Draws the figure "datasets", or "deltas" for groups of datasets that differ only in delta."""
    cells = read_cell_results(metrics)
    return delta_figure(groups, cells) if figure == "deltas" else datasets_figure(cells)


def datasets_figure(cells: Sequence[CellResult]) -> Figure:
    """Draws all datasets against epsilon: one panel per backbone, one line per dataset.

    Lines show DP-FC if the study has it, as in figure 2 of Mehta et al. 2023, otherwise the best
    private method at each epsilon. Dashed lines are non-private baselines.
    """
    chosen, words = _choose_heads(cells)
    lines = _make_lines(cells, chosen, lambda dataset: dataset)
    title = f"Datasets against epsilon, {words}"
    return _draw_lines(lines, title, label=_name_measures(chosen))


def delta_figure(groups: Sequence[Sequence[str]], cells: Sequence[CellResult]) -> Figure:
    """Draws results on equal images by delta: one panel per backbone, one line per delta."""
    chosen, words = _choose_heads(cells)
    deltas = {cell.dataset: cell.delta for cell in chosen}
    several = len(groups) > 1

    def name_curve(dataset: str) -> str:
        text = f"δ = {deltas[dataset]:g}"
        return f"{dataset}, {text}" if several else text

    lines = _make_lines(cells, chosen, name_curve)
    title = "Deltas" if several else f"{style.shorten_middle(groups[0][0], 40)} at several deltas"
    return _draw_lines(lines, f"{title}, {words}", label=_name_measures(cells))


def _choose_heads(cells: Sequence[CellResult]) -> tuple[list[CellResult], str]:
    """Chooses and names the private cells of the comparison."""
    private = [cell for cell in cells if cell.private]
    # `auto` is omitted, because it may choose DP-FC only at some epsilons.
    fixed = [cell for cell in private if "chosen" not in cell.options]
    heads = [cell for cell in fixed if cell.base_options.get("head", cell.head) == DP_FC]
    covered = {cell.dataset for cell in heads} == {cell.dataset for cell in private}
    chosen, word = (heads, "DP-FC") if heads and covered else (private, "private method")
    if len(keep_unique(cell.method for cell in chosen)) == 1:
        return chosen, word if word == "DP-FC" else chosen[0].method
    return chosen, f"best {word} at each ε, by test result"


def _name_measures(cells: Sequence[CellResult]) -> str:
    return f"test {' or '.join(keep_unique(cell.measure.title for cell in cells))} (%)"


def _make_lines(
    cells: Sequence[CellResult], chosen: Sequence[CellResult], name: Callable[[str], str]
) -> list[_Line]:
    lines = []
    for dataset, backbone in keep_unique((cell.dataset, cell.backbone) for cell in cells):
        here = [c for c in chosen if (c.dataset, c.backbone) == (dataset, backbone)]
        best = dict(sorted(best_of_each(here, lambda cell: cell.epsilon).items()))
        ceiling = best_ceiling(c for c in cells if (c.dataset, c.backbone) == (dataset, backbone))
        if best:
            lines.append(
                _Line(
                    name=name(dataset),
                    dataset=dataset,
                    backbone=backbone,
                    cells=best,
                    ceiling=None if ceiling is None else 100 * ceiling.mean,
                )
            )
    return lines


def _draw_lines(lines: Sequence[_Line], title: str, *, label: str, width: int = _NAME) -> Figure:
    """Draws a panel for each backbone; the legend breaks a name after `width` characters."""
    names = keep_unique(line.name for line in lines)
    looks = dict(zip(names, style.choose_looks(len(names)), strict=True))
    backbones = keep_unique(line.backbone for line in lines)
    finite = tuple(sorted({epsilon for line in lines for epsilon in line.cells}))
    labels = [style.fit_name(name, width) for name in names]
    figure, grid = style.panel_grid(len(backbones), legend=style.count_lines(labels) + 2)
    scale = EpsilonScale(finite=finite, infinite=False, curves=len(names))
    for axes, backbone in zip(grid, backbones, strict=True):
        draw_epsilon_axis(axes, scale, width=0.5)
        for line in lines:
            if line.backbone == backbone:
                _draw_line(axes, scale, line, looks)
        axes.set_title(style.fit_name(backbone, 34), fontsize=9)
    grid[0].set_ylim(top=min(grid[0].get_ylim()[1], style.TOP))
    style.label_outer_panels(grid, label)
    handles = style.make_handles(zip(labels, looks.values(), strict=True))
    if any(line.ceiling is not None for line in lines):
        handles.append(style.make_ceiling_handle(linewidth=0.8))
    figure.legend(handles=handles, loc="outside right upper", handlelength=2.8)
    counts = sorted({len(cell.values) for line in lines for cell in line.cells.values()})
    caption = f"mean of {style.counted_seeds(counts)}; bands: 95% CI"
    style.title_figure(figure, title, caption, panels=1)
    return figure


def _draw_line(
    axes: Axes, scale: EpsilonScale, line: _Line, looks: Mapping[str, style.Look]
) -> None:
    places = [scale.place_of(epsilon) for epsilon in line.cells]
    style.draw_banded(
        axes, places, [cell.percent for cell in line.cells.values()], looks[line.name]
    )
    if line.ceiling is not None:
        colour = looks[line.name][0]
        axes.axhline(line.ceiling, color=colour, linestyle=style.CEILING_STYLE, linewidth=0.8)


def real_labels_figure(cells: Sequence[CellResult], *, dataset: str) -> Figure:
    """Draws results on the dataset's labels and on ReaL's labels: one panel per backbone.

    Each line shows the best private method at each epsilon, selected by its headline result.
    """
    known = [cell for cell in cells if cell.private and cell.real is not None]
    titles = (f"{known[0].measure.title}, the dataset's labels", "accuracy, ReaL's labels")
    lines = _make_lines(known, known, lambda _: titles[0])
    lines += [
        replace(
            line,
            name=titles[1],
            cells={
                epsilon: replace(cell, mean=cell.real.mean, low=cell.real.low, high=cell.real.high)
                for epsilon, cell in line.cells.items()
                if cell.real is not None
            },
        )
        for line in lines
    ]
    title = f"{style.shorten_middle(dataset, 40)}: ReaL's labels, best private method at each ε"
    return _draw_lines(lines, title, label="test result (%)", width=60)
