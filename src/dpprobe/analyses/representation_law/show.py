"""Figures and report section of representation laws: measures by block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from dpprobe.analyses.analysis import Page
from dpprobe.analyses.representation_law.law_record import (
    MEASURES,
    FittedLaw,
    LawRecord,
    Measure,
    NetworkLaws,
    Setting,
    Split,
    read_laws,
)
from dpprobe.analyses.representation_law.law_tables import (
    SETTINGS,
    SPLITS,
    TITLES,
    law_tables,
    shown_epsilon,
    sort_networks,
)
from dpprobe.exhibits import style
from dpprobe.exhibits.published import read_published
from dpprobe.exhibits.tables import write_html
from dpprobe.privacy.risk import budget_order
from dpprobe.study.ablations import keep_unique

_TITLES: dict[Measure, str] = {
    "separability": "separability Tr[SS_b SS_w⁺], as in the paper: it grows",
    "fuzziness": "fuzziness Tr[SS_w SS_b⁺], He and Su's order: it falls",
    "residual": "prediction residual of the class number",
    "residual_one_hot": "prediction residual of one-hot classes",
}
_COLOURS = "viridis"
_FROZEN: dict[str, Any] = {"color": "black", "linestyle": (0, (4, 1.5)), "linewidth": 1.6}
_SHUFFLED: dict[str, Any] = {"color": "#8C8C8C", "linestyle": (0, (1, 1.5)), "linewidth": 1.2}
_NOISE: dict[str, Any] = {"color": "#8C8C8C", "linestyle": "-", "linewidth": 0.9}

_NOTHING: tuple[None] = (None,)
Curve = tuple[str | None, int | None]  # the tuned part in words, and the number of tuned blocks


def plot_law(record: Path) -> list[Figure]:
    """Draws the figures of a (dataset, backbone), in the order of `MEASURE_FIGURES`."""
    read = LawRecord.read(record)
    return [law_figure(read, measure) for measure in MEASURES]


def make_section(paths: Sequence[Path], page: Page) -> list[dict[str, Any]]:
    """Reads records; returns the section's parts, one per dataset with records, with tables."""
    records, parts = read_laws(paths), []
    for dataset in page.datasets:
        if any(record.dataset == dataset for record in records):
            name = page.names.get(dataset, dataset)
            made = law_tables(records, page.grid, read_published(), dataset=dataset, name=name)
            tables = [write_html(table, caption=table.title) for table in made]
            parts.append({"dataset": dataset, "tables": tables})
    return parts


def law_figure(record: LawRecord, measure: Measure) -> Figure:
    """Draws one measure by block: one column of panels per epsilon, one row per setting and split.

    A panel has one curve per number of tuned blocks. The frozen network's curve is dashed in black,
    and in gray for shuffled labels. Residuals on fitted rows have a curve for pure noise.
    """
    tuned = [network for network in record.networks if network.setting != "frozen"]
    epsilons = sorted(keep_unique(network.epsilon or "" for network in tuned), key=budget_order)
    settings = [setting for setting in SETTINGS if setting in {n.setting for n in tuned}]
    # A record of only the frozen network has one column of panels.
    rows = [(setting, split) for setting in settings or _NOTHING for split in SPLITS]
    columns: Sequence[str | None] = epsilons or _NOTHING
    looks = _choose_looks(tuned)
    figure = Figure(
        figsize=(max(2.5 * len(columns), 3.6) + 2.4, 2.1 * len(rows) + 0.8), layout="constrained"
    )
    grid = figure.subplots(len(rows), len(columns), squeeze=False, sharey="row", sharex=True)
    for line, (setting, split) in zip(grid, rows, strict=True):
        for axes, epsilon in zip(line, columns, strict=True):
            here = [n for n in tuned if (n.setting, n.epsilon) == (setting, epsilon)]
            _draw_panel(axes, record.frozen, here, measure, split, looks)
            text = _law_text([n.find_series(measure, split).law for n in [record.frozen, *here]])
            title = _panel_title(setting, epsilon, split)
            axes.set_title(f"{title}\n{text}", fontsize=7.5)
    for axes in grid[:, 0]:
        axes.set_ylabel(f"{TITLES[measure]} (log scale)", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("block", fontsize=8.5)
    noise = record.frozen.find_series(measure, "train").noise is not None
    figure.legend(handles=_make_handles(looks, noise=noise), loc="outside right center")
    token = "class token" if record.token == "class" else "pooled"
    style.title_figure(
        figure,
        f"{record.dataset}, {record.backbone}: {_TITLES[measure]} (not private)",
        f"{record.train_rows:,} training and {record.test_rows:,} test rows; {token}; block 0 "
        "is the input of the first block",
        panels=1,
    )
    return figure


def _panel_title(setting: Setting | None, epsilon: str | None, split: Split) -> str:
    rows = f"{SPLITS[split]} rows"
    if setting is None or epsilon is None:
        return f"frozen network, {rows}"
    return f"ε = {shown_epsilon(epsilon)}, {SETTINGS[setting]}, {rows}"


def _choose_looks(tuned: Sequence[NetworkLaws]) -> dict[Curve, dict[str, Any]]:
    """Chooses a look per tuned part: a colour scale for numbers of blocks, else other colours."""
    curves: list[Curve] = keep_unique((n.tuned, n.blocks) for n in sort_networks(tuned))
    counted = sorted((c for c in curves if c[1] is not None), key=lambda curve: curve[1] or 0)
    scale = mpl.colormaps[_COLOURS]
    looks: dict[Curve, dict[str, Any]] = {
        curve: {"color": scale(0.93 * place / max(1, len(counted) - 1)), "linewidth": 1.3}
        for place, curve in enumerate(counted)
    }
    others = [curve for curve in curves if curve[1] is None]
    for curve, (colour, _) in zip(others, style.choose_looks(len(others) + 1)[1:], strict=True):
        looks[curve] = {"color": colour, "linestyle": (0, (6, 1.5)), "linewidth": 1.3}
    return looks


def _draw_panel(
    axes: Axes,
    frozen: NetworkLaws,
    tuned: Sequence[NetworkLaws],
    measure: Measure,
    split: Split,
    looks: dict[Curve, dict[str, Any]],
) -> None:
    reference = frozen.find_series(measure, split)
    if reference.noise:
        _draw_line(axes, reference.noise, **_NOISE)
    _draw_line(axes, reference.shuffled, **_SHUFFLED)
    for network in tuned:
        look = looks[network.tuned, network.blocks]
        _draw_line(
            axes, network.find_series(measure, split).values, marker="o", markersize=2.2, **look
        )
    _draw_line(axes, reference.values, marker="s", markersize=2.6, **_FROZEN)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    _label_logarithm(axes)
    axes.grid(axis="both")
    axes.tick_params(labelsize=7.5)


def _draw_line(axes: Axes, values: Sequence[float | None], **look: Any) -> None:
    """Draws values by layer, with gaps for missing values and zeros."""
    axes.plot(range(len(values)), [value or math.nan for value in values], **look)


def _law_text(laws: Sequence[FittedLaw | None]) -> str:
    """Formats rho of the frozen network, and the range of rho over the tuned networks."""
    frozen, tuned = laws[0], [law.rho for law in laws[1:] if law is not None]
    text = "no law" if frozen is None else f"ρ: frozen {frozen.rho:.2f}"
    if not tuned:
        return text
    low, high = f"{min(tuned):.2f}", f"{max(tuned):.2f}"
    return f"{text}, tuned {low}" + (f" to {high}" if high != low else "")


def _label_logarithm(axes: Axes) -> None:
    """Labels a logarithmic axis with plain numbers, with more labels on a shorter range."""
    low, high = axes.get_ylim()
    decades = math.log10(high / low) if low > 0 else 9.0
    steps: tuple[float, ...] = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    if decades < 0.7:
        steps = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=steps, numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _make_handles(looks: dict[Curve, dict[str, Any]], *, noise: bool) -> list[Line2D]:
    handles = [Line2D([], [], label="frozen", marker="s", markersize=3, **_FROZEN)]
    handles += [
        Line2D([], [], label=curve[0] or "", marker="o", markersize=3, **look)
        for curve, look in looks.items()
    ]
    handles.append(Line2D([], [], label="frozen, shuffled labels", **_SHUFFLED))
    if noise:
        handles.append(Line2D([], [], label="pure noise, fitted rows", **_NOISE))
    return handles
