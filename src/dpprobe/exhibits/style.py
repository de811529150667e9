"""The common style of all figures: colours and styles of series, sizes, titles, saving.

Colours are Okabe and Ito's, safe for colour-blind readers; lines also differ by style and marker.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from dpprobe.counted_nouns import count_noun
from dpprobe.files.atomic_writes import atomic_path

# Okabe and Ito's colours except yellow, which is faint on white; then darker and lighter variants.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
    "#7F4F00", "#5B2C6F", "#8C8C8C", "#1B4F3A", "#C0392B",
)  # fmt: skip
LineStyle = tuple[Any, str]  # a pattern of dashes, and a marker
Look = tuple[str, LineStyle]  # a colour, and a line style
Interval = tuple[float, float | None, float | None]  # a mean and the ends of its interval
LINE_STYLES = (
    ("-", "o"), ((0, (4, 1.2)), "s"), ((0, (1, 1)), "^"), ((0, (6, 1.5, 1, 1.5)), "D"),
    ((0, (8, 2)), "v"), ((0, (3, 1, 1, 1, 1, 1)), "P"), ("-", "X"), ((0, (1, 2)), "*"),
    ((0, (5, 1, 1, 1)), "<"), ((0, (2, 1)), ">"), ((0, (10, 2, 2, 2)), "p"), ((0, (2, 2)), "h"),
)  # fmt: skip
NEUTRAL = "#444444"
SUBTLE = "#555555"
CEILING_STYLE = (0, (6, 3))
SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "grid.color": "#D9D9D9",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.hashsalt": "dpprobe",
    "text.parse_math": False,  # a class name may contain a dollar sign
}
DPI = 200
# Metadata without a date or a version, so that equal figures have equal bytes.
METADATA: dict[str, Any] = {"svg": {"Date": None, "Creator": "dpprobe"}, "png": {"Software": None}}
TOP = 101.0  # top of the accuracy axis: a line at 100% is fully visible
LEGEND_LINE = 0.185  # inches
CAPTION_LETTER = 0.065  # mean width of a character in inches


def choose_looks(count: int) -> list[Look]:
    """Returns a colour and a line style per series; repeated colours have other line styles."""
    series = []
    for index in range(count):
        rounds, place = divmod(index, len(COLOURS))
        series.append((COLOURS[place], LINE_STYLES[(index + rounds) % len(LINE_STYLES)]))
    return series


def choose_markers(names: Sequence[str]) -> dict[str, str]:
    """Maps each name to a marker, for points whose colour has another meaning."""
    looks = choose_looks(len(names))
    return {name: marker for name, (_, (_, marker)) in zip(names, looks, strict=True)}


def make_dot_handles(dots: Iterable[tuple[str, str, str]]) -> list[Line2D]:
    """Makes legend entries for points, from their labels, colours and markers."""
    return [
        Line2D([], [], color=colour, linestyle="none", marker=marker, label=label)
        for label, colour, marker in dots
    ]


def panel_grid(
    panels: int, *, legend: int, columns: int | None = None
) -> tuple[Figure, list[Axes]]:
    """Makes a figure of panels, up to three (or `columns`) per row, with a common y axis.

    The figure is at least as high as `legend` lines of a legend.
    """
    columns = columns or min(panels, 3)
    rows = -(-panels // columns)
    figure = Figure(
        figsize=(max(2.6 * columns, 4.2) + 2.2, max(2.7 * rows + 0.5, 0.6 + LEGEND_LINE * legend)),
        layout="constrained",
    )
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    axes = [panel for line in grid for panel in line]
    for spare in axes[panels:]:
        spare.set_axis_off()
    return figure, axes[:panels]


def label_outer_panels(panels: Sequence[Axes], label: str) -> None:
    for axes in panels:
        place = axes.get_subplotspec()
        if place is not None and place.is_first_col():
            axes.set_ylabel(label, fontsize=8.5)


def title_figure(figure: Figure, title: str, caption: str, *, panels: int) -> None:
    """Writes a figure's title and caption, on separate lines above a single panel.

    Lines end before legends at the figure's upper right corner, so draw the legends first.
    """
    text = f"{title}\n{caption}" if panels == 1 else f"{title}; {caption}"
    figure.suptitle("\n".join(_wrap(figure, text, margin=0.2)), fontsize=9, x=0.01, ha="left")


def title_axes(axes: Axes, title: str, subtitle: str) -> None:
    """Writes a title above a figure's only axes, and smaller lines below the title.

    Lines end before legends on the figure's right side, so draw the legends first.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    legend = axes.get_legend()
    lines = _wrap(figure, subtitle, margin=0.8, legends=[] if legend is None else [legend])
    axes.set_title(title + "\n" * len(lines))
    small = axes.annotate(
        "\n".join(lines),
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 5),
        textcoords="offset points",
        fontsize=8,
        color=SUBTLE,
    )
    small.set_in_layout(False)  # long lines would make the axes narrow; the title reserves space


def _wrap(figure: Figure, text: str, *, margin: float, legends: Sequence[Legend] = ()) -> list[str]:
    """Breaks lines to the width of a figure minus its legends and a margin in inches.

    Legends wider than half of the figure are ignored, because they are below the axes.
    """
    whole = figure.get_figwidth()
    widths = [each.get_window_extent().width / figure.dpi for each in (*figure.legends, *legends)]
    taken = max((width for width in widths if width < whole / 2), default=0)
    width = int((whole - taken - margin) / CAPTION_LETTER)
    return [part for line in text.splitlines() for part in textwrap.wrap(line, width)]


def make_handles(looks: Iterable[tuple[str, Look]], *, joined: bool = True) -> list[Line2D]:
    """Makes legend entries for series, without lines if `joined` is False."""
    return [
        Line2D(
            [], [], color=colour, linestyle=dashes if joined else "none", marker=marker, label=label
        )
        for label, (colour, (dashes, marker)) in looks
    ]


def draw_error_bars(
    axes: Axes,
    places: Sequence[float],
    values: Sequence[Interval],
    *,
    across: bool = False,
    **line: Any,
) -> None:
    """Draws means with vertical intervals, or with horizontal intervals if `across` is True."""
    means = [mean for mean, _, _ in values]
    # rounding may put a mean of equal values outside its interval of width 0
    below = [0.0 if low is None else max(0.0, mean - low) for mean, low, _ in values]
    above = [0.0 if high is None else max(0.0, high - mean) for mean, _, high in values]
    if across:
        axes.errorbar(means, places, xerr=[below, above], **line)
    else:
        axes.errorbar(places, means, yerr=[below, above], **line)


def draw_banded(
    axes: Axes, x: Sequence[float], values: Sequence[Interval], look: Look, *, alpha: float = 0.15
) -> None:
    """Draws a curve of means, with a band of their intervals if they exist."""
    colour, (dashes, marker) = look
    axes.plot(
        x,
        [mean for mean, _, _ in values],
        color=colour,
        linestyle=dashes,
        marker=marker,
        markeredgecolor="white",
        markeredgewidth=0.5,
    )
    banded = [
        (place, low, high)
        for place, (_, low, high) in zip(x, values, strict=True)
        if low is not None and high is not None
    ]
    axes.fill_between(
        [place for place, _, _ in banded],
        [low for _, low, _ in banded],
        [high for _, _, high in banded],
        color=colour,
        alpha=alpha,
        linewidth=0,
    )


def write_reason(text: str) -> Figure:
    """Makes a figure with a sentence that explains why there is nothing to draw."""
    figure = Figure(figsize=(5.6, 1.2), layout="constrained")
    figure.text(0.02, 0.5, textwrap.fill(text, 80), fontsize=9, va="center", color=SUBTLE)
    return figure


def make_ceiling_handle(*, linewidth: float = 1.0) -> Line2D:
    return Line2D(
        [],
        [],
        color=NEUTRAL,
        linestyle=CEILING_STYLE,
        linewidth=linewidth,
        label="non-private baseline",
    )


def counted_seeds(counts: Sequence[int]) -> str:
    """Formats numbers of seeds, in rising order: "5 seeds", "1 seed", "3 to 5 seeds"."""
    first = "" if len(counts) == 1 else f"{counts[0]} to "
    return f"{first}{count_noun(counts[-1], 'seed')}"


def wrap_name(text: str, width: int) -> str:
    """Breaks a name that is longer than a line, also after underscores and hyphens."""
    lines = [""]
    for part in re.split(r"(?<=[ _/-])", text):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
        while len(lines[-1]) > width + 1:  # a long word without spaces or hyphens
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return "\n".join(line.rstrip(" ") for line in lines)


def shorten_middle(text: str, width: int) -> str:
    """Removes the middle of a text that is longer than a line."""
    if len(text) <= width:
        return text
    half = (width - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def fit_name(name: str, width: int) -> str:
    return wrap_name(shorten_middle(name, 60), width)


def count_lines(texts: Iterable[str]) -> int:
    return sum(text.count("\n") + 1 for text in texts)


def use_settings() -> AbstractContextManager[None]:
    """Returns a context in which figures have the common style."""
    return mpl.rc_context(SETTINGS)


def save_figure(figure: Figure, path: Path) -> None:
    kind = path.suffix[1:]
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=DPI, metadata=METADATA[kind])


def draw_svg(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", dpi=DPI, metadata=METADATA["svg"])
    return stream.getvalue()
