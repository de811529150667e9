"""Figures of test results against an option, such as the batch size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from dpprobe.heads.gradient_options import INIT_DEVIATION
from dpprobe.reporting.figures.option_panels import Panel, draw_panels
from dpprobe.results.cell_record import record_paths
from dpprobe.results.cell_results import CellResult, read_cell_results
from dpprobe.study.ablations import OPTIMISERS, find_varied, keep_unique
from dpprobe.study.study import Study

OPTION_TITLES = {
    "batch_size": "batch size",
    "init_scale": "scale of the initial weights",
    "optimiser": "optimiser",
}
OPTION_LABELS = {
    "batch_size": "expected batch size (log scale)",
    "init_scale": "standard deviation of initial weights (log scale)",
    "optimiser": "optimiser",
}


def plot_option(*, study: Study, results: Path, dataset: str, option: str) -> Figure:
    cells = read_cell_results(record_paths(results, study.list_cells(dataset)))
    return option_figure(cells, option, dataset=dataset)


def option_figure(cells: Sequence[CellResult], option: str, *, dataset: str) -> Figure:
    """Draws test results against an option, from methods that differ only in this option.

    Draws one panel per backbone and family of methods, and one line per epsilon. Methods of a
    family may also differ in learning rate. At each value and epsilon, the method with the best
    test result is drawn, as in the papers; the panel gives the number of methods. `option` is a key
    of `VARIED`.
    """
    groups = find_varied({cell.method: cell.options for cell in cells}, option)
    panels = []
    for backbone in keep_unique(cell.backbone for cell in cells):
        for group in groups:
            members = [c for c in cells if c.backbone == backbone and c.method in group]
            if members:
                panels.append(_make_panel(members, option, backbone, group))
    return draw_panels(
        panels, title=f"{dataset}: {OPTION_TITLES[option]}", label=OPTION_LABELS[option]
    )


def _make_panel(
    cells: Sequence[CellResult], option: str, backbone: str, group: Sequence[str]
) -> Panel:
    """Places a backbone's cells on the axis; the value 0 is to the left of the logarithmic axis."""
    span = group[0] if len(group) == 1 else f"{group[0]} … {group[-1]}"
    if option == "optimiser":
        heads = [head for head in OPTIMISERS if any(cell.head == head for cell in cells)]
        return Panel(
            title=backbone,
            subtitle=span,
            cells=[(float(heads.index(cell.head)), cell) for cell in cells],
            ticks={float(place): OPTIMISERS[head] for place, head in enumerate(heads)},
            named=True,
        )
    values = [_option_place(cell, option) for cell in cells]
    positive = sorted({value for value in values if value > 0})
    left = positive[0] / 10 if positive else 1.0
    return Panel(
        title=f"{backbone}, {cells[0].head}",
        subtitle=span,
        cells=[(value or left, cell) for value, cell in zip(values, cells, strict=True)],
        ticks={value or left: _format_tick(value, cells, option) for value in values},
        split=left * 10**0.5 if 0.0 in values else None,
    )


def _option_place(cell: CellResult, option: str) -> float:
    if option == "batch_size":
        return float(cell.batch_size or 0)
    kind, scale = cell.options["init"], cell.options["init_scale"]
    if kind == "zero":
        return 0.0
    return float(cell.dimension**-0.5 if kind == "lecun_normal" else scale or INIT_DEVIATION)


def _format_tick(value: float, cells: Sequence[CellResult], option: str) -> str:
    if option == "batch_size":
        full = value == max(cell.n for cell in cells)
        return f"{value:,.0f}" + ("\n(all)" if full else "")
    lecun = any(
        cell.options["init"] == "lecun_normal" and _option_place(cell, option) == value
        for cell in cells
    )
    return "\n1/√d" if lecun else f"{value:g}"  # on a second line, because ticks may be close
