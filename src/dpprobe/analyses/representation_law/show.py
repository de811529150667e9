"""Figures and report section of representation laws: measures by block, test results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from dpprobe.analyses.analysis import Page
from dpprobe.analyses.representation_law.law_record import (
    ACCURACY_FIGURE,
    MEASURE_FIGURES,
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
    law_tables,
    published_laws,
    shown_epsilon,
    sort_networks,
)
from dpprobe.errors import DataError
from dpprobe.exhibits import style
from dpprobe.exhibits.published import Number, Published, read_published
from dpprobe.exhibits.tables import write_html
from dpprobe.privacy.limits import epsilon_value
from dpprobe.results.summary import Grid, read_grid
from dpprobe.study.ablations import keep_unique

_TITLES: dict[Measure, str] = {
    "separability": "separability Tr[SS_b SS_w⁺], as printed: it grows",
    "fuzziness": "fuzziness Tr[SS_w SS_b⁺], He and Su's order: it falls",
    "residual": "prediction residual of the class number",
    "residual_one_hot": "prediction residual of one-hot classes",
}
_AXES: dict[Measure, str] = {
    "separability": "separability",
    "fuzziness": "fuzziness",
    "residual": "residual",
    "residual_one_hot": "one-hot residual",
}
_COLOURS = "viridis"
_FROZEN: dict[str, Any] = {"color": "black", "linestyle": (0, (4, 1.5)), "linewidth": 1.6}
_SHUFFLED: dict[str, Any] = {"color": "#8C8C8C", "linestyle": (0, (1, 1.5)), "linewidth": 1.2}
_NOISE: dict[str, Any] = {"color": "#8C8C8C", "linestyle": "-", "linewidth": 0.9}
# Dashes of the curves of accuracy, by setting.
_DASHES: dict[Setting, Any] = {"constant": (0, (1, 1)), "searched": "-"}

CHART_MIDDLE = 50.0  # percent: words of a higher result stand below it
_NOTHING: tuple[None] = (None,)
Curve = tuple[str | None, int | None]  # what was tuned, in words and in blocks


def plot_law(*, record: Path, summary: Path, published: Published, name: str, folder: Path) -> None:
    """Draws the representation laws of one (dataset, backbone).

    Args:
      name: the dataset's name in the published numbers.
    """
    read = LawRecord.read(record)
    numbers = published_laws(published, name, [read])
    law_figures(read, read_grid([summary]), folder, published=numbers)


def make_section(paths: Sequence[Path], page: Page) -> list[dict[str, Any]]:
    """Reads records, and makes the tables of each dataset; no part for a dataset without."""
    records = read_laws(paths)
    return [
        {"dataset": dataset, "tables": _make_tables(records, dataset, page)}
        for dataset in page.datasets
        if any(record.dataset == dataset for record in records)
    ]


def _make_tables(records: Sequence[LawRecord], dataset: str, page: Page) -> list[Markup]:
    numbers = published_laws(
        read_published(),
        page.names.get(dataset, dataset),
        [record for record in records if record.dataset == dataset],
    )
    made = law_tables(records, page.grid, dataset=dataset, published=numbers)
    return [write_html(table, caption=table.title) for table in made.values()]


def law_figures(
    record: LawRecord, grid: Grid, folder: Path, *, published: Sequence[Number] = ()
) -> None:
    """Draws all figures of a (dataset, backbone) as <name>_<backbone>.svg and .png."""

    def name_files(name: str) -> dict[str, Path]:
        stem = f"{name}_{record.backbone}"
        return {"svg": folder / f"{stem}.svg", "png": folder / f"{stem}.png"}

    for measure, name in zip(MEASURES, MEASURE_FIGURES, strict=True):
        law_figure(record, measure, **name_files(name))
    if len(record.networks) > 1:
        accuracy_figure(record, grid, published=published, **name_files(ACCURACY_FIGURE))


def law_figure(record: LawRecord, measure: Measure, *, svg: Path, png: Path) -> None:
    """Draws one measure by block: a column of panels per epsilon, rows are options and splits.

    One curve per number of tuned blocks, the frozen network dashed in black, and in gray the frozen
    network with shuffled labels. In the fitted rows residuals also have what pure noise leaves.
    """
    tuned = [network for network in record.networks if network.setting != "frozen"]
    epsilons = sorted(keep_unique(network.epsilon or "" for network in tuned), key=epsilon_value)
    settings = [setting for setting in SETTINGS if setting in {n.setting for n in tuned}]
    # the frozen network alone has a column of panels
    rows = [(setting, split) for setting in settings or _NOTHING for split in SPLITS]
    columns: Sequence[str | None] = epsilons or _NOTHING
    looks = _choose_looks(tuned)
    with mpl.rc_context(style.SETTINGS):
        figure = Figure(
            figsize=(max(2.5 * len(columns), 3.6) + 2.4, 2.1 * len(rows) + 0.8),
            layout="constrained",
        )
        grid = figure.subplots(len(rows), len(columns), squeeze=False, sharey="row", sharex=True)
        for line, (setting, split) in zip(grid, rows, strict=True):
            for axes, epsilon in zip(line, columns, strict=True):
                here = [n for n in tuned if (n.setting, n.epsilon) == (setting, epsilon)]
                _draw_panel(axes, record.frozen, here, measure, split, looks)
                text = _law_text(
                    [n.find_series(measure, split).law for n in [record.frozen, *here]]
                )
                title = _panel_title(setting, epsilon, split)
                axes.set_title(f"{title}\n{text}", fontsize=7.5)
        for axes in grid[:, 0]:
            axes.set_ylabel(f"{_AXES[measure]} (log scale)", fontsize=8)
        for axes in grid[-1]:
            axes.set_xlabel("block", fontsize=8.5)
        noise = record.frozen.find_series(measure, "train").noise is not None
        figure.legend(handles=_make_handles(looks, noise=noise), loc="outside right center")
        token = "class token" if record.token == "class" else "pooled"
        style.title_figure(
            figure,
            f"{record.dataset}, {record.backbone}: {_TITLES[measure]} (not private)",
            f"{record.train_rows:,} training and {record.test_rows:,} test rows; {token}; "
            "0 is what enters the first block",
            panels=1,
        )
        style.save_figure(figure, svg, png)


def _panel_title(setting: Setting | None, epsilon: str | None, split: Split) -> str:
    rows = f"{SPLITS[split]} rows"
    if setting is None or epsilon is None:
        return f"frozen network, {rows}"
    return f"ε = {shown_epsilon(epsilon)}, {SETTINGS[setting]}, {rows}"


def _choose_looks(tuned: Sequence[NetworkLaws]) -> dict[Curve, dict[str, Any]]:
    """Gives each number of tuned blocks a colour of a scale, other choices colours of their own."""
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
    """Draws values by layer, with gaps where there are none, or none that a logarithm has."""
    axes.plot(range(len(values)), [value or math.nan for value in values], **look)


def _law_text(laws: Sequence[FittedLaw | None]) -> str:
    """Writes rho of the frozen network, and the range of the tuned ones."""
    frozen, tuned = laws[0], [law.rho for law in laws[1:] if law is not None]
    text = "no law" if frozen is None else f"ρ: frozen {frozen.rho:.2f}"
    if not tuned:
        return text
    low, high = f"{min(tuned):.2f}", f"{max(tuned):.2f}"
    return f"{text}, tuned {low}" + (f" to {high}" if high != low else "")


def _label_logarithm(axes: Axes) -> None:
    """Writes plain numbers; between powers of ten too where there are few of them."""
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


def accuracy_figure(
    record: LawRecord,
    grid: Grid,
    *,
    svg: Path,
    png: Path,
    published: Sequence[Number] = (),
) -> None:
    """Draws test results by what was tuned: one colour per epsilon, dashes tell the options.

    Thin lines: the best private linear head on the stored features at that epsilon. Brackets on the
    right: published results at that epsilon, over the blocks that a paper gives them for.

    Raises:
      DataError: without a tuned network.
    """
    tuned = [network for network in sort_networks(record.networks) if network.method]
    if not tuned:
        raise DataError(
            f"{record.dataset}, {record.backbone}: no tuned network; add a method of head fine_tune"
        )
    curves: list[Curve] = keep_unique((n.tuned, n.blocks) for n in tuned)
    places = {
        curve: place
        for place, curve in enumerate(
            sorted(curves, key=lambda curve: (curve[1] is None, curve[1] or 0, curve[0] or ""))
        )
    }
    epsilons = sorted(keep_unique(n.epsilon or "" for n in tuned), key=epsilon_value)
    colours = dict(zip(epsilons, style.COLOURS, strict=False))
    measure = grid.measures.get(record.dataset)
    with mpl.rc_context(style.SETTINGS):
        beside = len(keep_unique((n.blocks, n.learning_rate, n.epsilon) for n in published))
        width = max(0.42 * (len(places) + beside), 3.0) + 3.2
        figure = Figure(figsize=(width, 3.6), layout="constrained")
        axes = figure.subplots()
        for epsilon in epsilons:
            for setting in _DASHES:
                _result_line(axes, record, tuned, grid, (setting, epsilon), places, colours)
            _best_linear(axes, record, grid, epsilon, colours[epsilon])
        _draw_published(axes, published, colours, len(places))
        if measure is None or measure.headline == "accuracy":
            axes.axhline(100 / record.classes, color="#8C8C8C", linewidth=0.9, linestyle=":")
        axes.set_xticks(range(len(places)), [_format_tick(curve) for curve in places], fontsize=8)
        axes.set_xlabel("tuned blocks, from the last (0: the head alone)", fontsize=8.5)
        axes.set_ylabel(f"{measure.title if measure else 'result'} on test rows, %", fontsize=8.5)
        axes.grid(axis="y")
        figure.legend(handles=_result_handles(tuned, colours), loc="outside right center")
        style.title_figure(
            figure,
            f"{record.dataset}, {record.backbone}: test results by tuned blocks (not private)",
            "bars: 95% intervals; thin: best private linear head; dotted gray: chance",
            panels=1,
        )
        style.save_figure(figure, svg, png)


def _format_tick(curve: Curve) -> str:
    return str(curve[1]) if curve[1] is not None else (curve[0] or "")


def _result_line(
    axes: Axes,
    record: LawRecord,
    tuned: Sequence[NetworkLaws],
    grid: Grid,
    chosen: tuple[Setting, str],
    places: dict[Curve, int],
    colours: dict[str, str],
) -> None:
    """Draws the results of one setting at one epsilon."""
    setting, epsilon = chosen
    points = []
    for network in tuned:
        row = (record.dataset, epsilon_value(epsilon))
        entry = grid.get(row, (record.backbone, network.method or ""))
        if (network.setting, network.epsilon) == chosen and entry is not None:
            points.append((places[network.tuned, network.blocks], entry))
    points.sort(key=lambda point: point[0])
    if not points:
        return
    reach = [
        [entry.mean - (entry.mean if entry.low is None else entry.low) for _, entry in points],
        [(entry.mean if entry.high is None else entry.high) - entry.mean for _, entry in points],
    ]
    axes.errorbar(
        [place for place, _ in points], [entry.mean for _, entry in points], yerr=reach,
        color=colours[epsilon], linestyle=_DASHES[setting], marker="o", markersize=3.5,
        elinewidth=0.9, capsize=1.5,
    )  # fmt: skip


def _best_linear(
    axes: Axes,
    record: LawRecord,
    grid: Grid,
    epsilon: str,
    colour: str,
) -> None:
    row = (record.dataset, epsilon_value(epsilon))
    results = [
        entry.mean
        for backbone, method in grid.columns
        if backbone == record.backbone
        and (entry := grid.get(row, (backbone, method))) is not None
        and entry.private
        and not entry.network
    ]
    if results:
        axes.axhline(max(results), color=colour, linewidth=0.8, alpha=0.8)


def _draw_published(
    axes: Axes, published: Sequence[Number], colours: dict[str, str], right: int
) -> None:
    """Draws what a paper prints right of the measured results: a bracket from lowest to highest."""
    shown = [
        (number.blocks, number.learning_rate, epsilon)
        for epsilon in colours
        for number in published
        if number.single_epsilon == epsilon_value(epsilon)
    ]
    groups = sorted(keep_unique(shown), key=lambda group: (group[1] or "", epsilon_value(group[2])))
    for place, (blocks, rate, epsilon) in enumerate(groups):
        values = [
            number.value
            for number in published
            if (number.blocks, number.learning_rate) == (blocks, rate)
            and number.single_epsilon == epsilon_value(epsilon)
        ]
        x = right + 0.25 + 0.9 * place
        axes.plot(
            [x, x], [min(values), max(values)], color=colours[epsilon], marker="_", markersize=8,
            linewidth=1.4,
        )  # fmt: skip
        words = f"{blocks[0]} to {blocks[1]}" if isinstance(blocks, tuple) else f"{blocks}"
        above = max(values) < CHART_MIDDLE
        axes.annotate(
            f"published, {words},\n{rate}", (x, max(values) if above else min(values)),
            textcoords="offset points", xytext=(0, 6 if above else -6), ha="center",
            va="bottom" if above else "top", fontsize=6, color=style.SUBTLE, rotation=90,
        )  # fmt: skip
    if groups:
        axes.axvline(right - 0.4, color="#BBBBBB", linewidth=0.8, zorder=0.5)


def _result_handles(tuned: Sequence[NetworkLaws], colours: dict[str, str]) -> list[Line2D]:
    handles = [
        Line2D([], [], color=colour, marker="o", linestyle="none", markersize=4,
               label=f"ε = {shown_epsilon(epsilon)}")
        for epsilon, colour in colours.items()
    ]  # fmt: skip
    settings = {network.setting for network in tuned}
    return handles + [
        Line2D([], [], color=style.NEUTRAL, linestyle=dashes, label=SETTINGS[setting])
        for setting, dashes in _DASHES.items()
        if setting in settings
    ]
