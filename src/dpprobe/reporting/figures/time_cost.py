"""Draws results against training seconds, with the Pareto front of result and seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dpprobe.errors import NothingToShow
from dpprobe.exhibits import style
from dpprobe.privacy.risk import RiskEpsilon
from dpprobe.reporting.figures.backbones import PAGE_WIDTH, spread_values
from dpprobe.reporting.figures.option_panels import format_budget
from dpprobe.results.cell_record import record_paths
from dpprobe.results.cell_results import CellResult, read_cell_results
from dpprobe.results.study_files import StudyFiles
from dpprobe.study.ablations import keep_unique
from dpprobe.study.study import Study

MOST_EPSILONS = 3
PANEL_HEIGHT = 2.1  # inches
LEAST_SECONDS = 0.001  # records round seconds to this precision
OTHERS: style.Look = ("#B5B5B5", ("none", "o"))
Point = tuple[float, CellResult]  # seconds per model


def plot_time_cost(*, study: Study, results: Path, dataset: str) -> Figure:
    """Draws test results against a model's wall-clock training seconds, one panel per epsilon.

    The seconds for all seeds are divided by the number of seeds. If Snakemake's benchmarks have
    the extraction of training features for all backbones, a second row of panels adds the seconds
    of extraction. Networks are omitted, because resumed jobs time only their last part. Searches
    that epsilon covers have no seconds, because these would reveal the random number of trials.
    Raises NothingToShow if no epsilon has two private cells with a time.
    """
    cells = read_cell_results(record_paths(results, study.list_cells(dataset)))
    timed = [
        (max(cell.seconds / len(cell.values), LEAST_SECONDS), cell)
        for cell in cells
        if cell.private and cell.seconds is not None and not cell.network
    ]
    epsilons = spread_values(sorted({cell.epsilon for _, cell in timed}), MOST_EPSILONS)
    if max((len(_at_epsilon(timed, epsilon)) for epsilon in epsilons), default=0) < 2:
        raise NothingToShow(f"{dataset}: no two private heads of one epsilon have a recorded time")
    extraction = read_extraction_seconds(study, results, dataset)
    rows = [("", timed)]
    if {cell.backbone for _, cell in timed} <= extraction.keys():
        whole = [(seconds + extraction[cell.backbone], cell) for seconds, cell in timed]
        rows.append((", with extraction", whole))
    fronts = [find_front(_at_epsilon(points, e)) for _, points in rows for e in epsilons]
    looks, entries = _choose_looks([cell for front in fronts for _, cell in front], timed)
    handles = [*style.make_handles(entries, joined=False)]
    handles.append(
        Line2D([], [], color=style.SUBTLE, linestyle="--", linewidth=0.8, label="Pareto front")
    )
    # the legend is below, so that the width fits a page
    columns = 2 if any(len(label) > 20 for label, _ in entries) else 3
    lines = -(-len(handles) // columns) + max(label.count("\n") for label, _ in entries)
    figure, grid = style.panel_grid(len(fronts), legend=0, columns=len(epsilons))
    figure.set_size_inches(PAGE_WIDTH, 0.9 + PANEL_HEIGHT * len(rows) + style.LEGEND_LINE * lines)
    panels = [(words, points, e) for words, points in rows for e in epsilons]
    for place, (axes, front, (words, points, epsilon)) in enumerate(
        zip(grid, fronts, panels, strict=True)
    ):
        _draw_points(axes, _at_epsilon(points, epsilon))
        _draw_front(axes, front, {id(cell): looks[cell.backbone, cell.method] for _, cell in front})
        words = words.replace(", ", "\n") if isinstance(epsilon, RiskEpsilon) else words
        axes.set_title(f"{format_budget(epsilon)}{words}", fontsize=9)
        if place >= len(panels) - len(epsilons):
            axes.set_xlabel("seconds per model (log scale)", fontsize=8.5)
    style.label_outer_panels(grid, f"test {cells[0].measure.title} (%)")
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, handlelength=1.8)
    title = f"{style.shorten_middle(dataset, 40)}: results by the seconds they take"
    caption = _write_caption(cells, [cell for _, cell in timed], extraction=len(rows) > 1)
    style.title_figure(figure, title, caption, panels=1)
    return figure


def _choose_looks(
    front: Sequence[CellResult], timed: Sequence[Point]
) -> tuple[dict[tuple[str, str], style.Look], list[tuple[str, style.Look]]]:
    """Chooses looks of the backbones and methods on a front; returns looks and legend entries.

    With several backbones, colours show backbones and markers show methods, because the legend
    would otherwise need an entry for each pair.
    """
    methods = keep_unique(cell.method for cell in front)
    backbones = keep_unique(cell.backbone for cell in front)
    plain = dict(zip(methods, style.choose_looks(len(methods)), strict=True))
    looks = {(cell.backbone, cell.method): plain[cell.method] for cell in front}
    entries = [(style.fit_name(name, 34), look) for name, look in plain.items()]
    if len({cell.backbone for _, cell in timed}) > 1:
        colours = dict(zip(backbones, style.choose_looks(len(backbones)), strict=True))
        looks = {(b, m): (colours[b][0], look[1]) for (b, m), look in looks.items()}
        entries = [
            *((style.fit_name(b, 34), (look[0], ("none", "o"))) for b, look in colours.items()),
            *((label, (style.NEUTRAL, look[1])) for label, look in entries),
        ]
    return looks, [*entries, ("slower or worse", OTHERS)]


def _write_caption(
    cells: Sequence[CellResult], timed: Sequence[CellResult], *, extraction: bool
) -> str:
    counts = sorted({len(cell.values) for cell in timed})
    caption = f"mean of {style.counted_seeds(counts)}; bars: 95% CI"
    if not extraction:
        caption += "; training time only (extraction was not timed)"
    private = {cell.method for cell in cells if cell.private}
    if left_out := len(private) - len({cell.method for cell in timed}):
        caption += f"; methods left out (no comparable time): {left_out}"
    return caption


def read_extraction_seconds(study: Study, results: Path, dataset: str) -> dict[str, float]:
    """Reads the wall-clock seconds of extracting each backbone's training features.

    Omits backbones if a training shard has no Snakemake benchmark.
    """
    shards = [name.removesuffix(".h5") for name in StudyFiles(study).list_shard_names()]
    seconds = {}
    for backbone in study.backbones:
        folder = results / "benchmarks/extract_features" / dataset / backbone / "train"
        files = [folder / f"{name}.tsv" for name in shards]
        if all(path.exists() for path in files):
            seconds[backbone] = sum(pd.read_csv(path, sep="\t").s.mean() for path in files)
    return seconds


def find_front(points: Sequence[Point]) -> list[Point]:
    """Finds the points of the Pareto front (no other point is faster and better), fastest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda each: (each[0], -each[1].mean)):
        if not front or point[1].mean > front[-1][1].mean:
            front.append(point)
    return front


def _at_epsilon(points: Sequence[Point], epsilon: float) -> list[Point]:
    return [point for point in points if point[1].epsilon == epsilon]


def _draw_points(axes: Axes, points: Sequence[Point]) -> None:
    axes.plot(
        [seconds for seconds, _ in points],
        [100 * cell.mean for _, cell in points],
        color=OTHERS[0],
        linestyle="none",
        marker="o",
        markersize=3,
    )
    axes.set_xscale("log")
    seconds = [each for each, _ in points]
    axes.set_xlim(min(seconds) / 1.6, 1.6 * max(seconds))  # wide enough for at least one tick
    steps = (1.0,) if max(seconds) > 30 * min(seconds) else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=steps))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=8)
    axes.grid(axis="y")


def _draw_front(axes: Axes, front: Sequence[Point], looks: Mapping[int, style.Look]) -> None:
    axes.plot(
        [seconds for seconds, _ in front],
        [100 * cell.mean for _, cell in front],
        color=style.SUBTLE,
        linestyle="--",
        linewidth=0.8,
        drawstyle="steps-post",
    )
    for seconds, cell in front:
        colour, (_, marker) = looks[id(cell)]
        style.draw_error_bars(
            axes,
            [seconds],
            [cell.percent],
            color=colour,
            marker=marker,
            elinewidth=0.8,
            markeredgecolor="white",
            markeredgewidth=0.5,
            markersize=5.5,
        )
